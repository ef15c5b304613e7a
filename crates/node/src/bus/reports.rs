//! What the loop decides about nodes, and about what owners report.

use orchestrix_core::limits::OWNED_LEASES_MAX;
use orchestrix_core::{
    Claim, Claimed, Command, Decision, HeldLease, LeaseId, NodeLeftReason, OwnerToken, OwnershipCommand,
    Refusal, State, TaskCommand, Timestamp,
};

use super::decisions::BusDecisions;
use super::{BusAnswer, OwnedLease, OwnerAsk, Report, ReportItem, Reported, Said};
use crate::decider::Decider;
use crate::request::{Error, Recipient};
use crate::tasks::TaskDecisions;

impl<R: Recipient> BusDecisions<R> {
    pub(crate) fn owner(
        &mut self,
        decider: &mut Decider<R>,
        tasks: &mut TaskDecisions<R>,
        ask: OwnerAsk,
        now: Timestamp,
    ) -> Result<BusAnswer, Error> {
        match ask {
            OwnerAsk::Join { node, incarnation, address } => {
                let name = node.to_string();
                let join = OwnershipCommand::Join { node: name.clone(), incarnation, address };
                commit(decider, join, now).map_err(|refusal| decider.refuse(refusal))?;
                self.nodes.is_disturbed();
                let joined = decider.state.node_named(&name).expect("a node that joined is there");
                Ok(BusAnswer::Joined(joined.token))
            }
            OwnerAsk::Drain { node } => {
                let drain = OwnershipCommand::Drain { node };
                commit(decider, drain, now).map_err(|refusal| decider.refuse(refusal))?;
                Ok(BusAnswer::Done)
            }
            OwnerAsk::Leave { node } => {
                let leave = OwnershipCommand::Leave { node, reason: NodeLeftReason::Stopped };
                commit(decider, leave, now).map_err(|refusal| decider.refuse(refusal))?;
                self.nodes.is_disturbed();
                Ok(BusAnswer::Done)
            }
            OwnerAsk::Release { node, leases } => {
                let release = OwnershipCommand::Release { node, leases };
                commit(decider, release, now).map_err(|refusal| decider.refuse(refusal))?;
                self.nodes.is_disturbed();
                Ok(BusAnswer::Done)
            }
            OwnerAsk::Report(report) => Ok(self.report(decider, tasks, &report, now)),
        }
    }

    fn report(
        &mut self,
        decider: &mut Decider<R>,
        tasks: &mut TaskDecisions<R>,
        report: &Report,
        now: Timestamp,
    ) -> BusAnswer {
        let node = report.node;
        if decider.state.node(node).is_none() {
            return BusAnswer::Gone;
        }
        self.nodes.hear(node, now);
        let own = own(decider, node, &report.own, now);
        let items = report.items.iter().map(|item| self.take(decider, tasks, node, item, now)).collect();
        let owned = decider.state.owned_by(node, report.after, OWNED_LEASES_MAX);
        let more = owned.len() == OWNED_LEASES_MAX;
        let owned = owned.into_iter().filter_map(|lease| owned_lease(&decider.state, lease)).collect();
        let mean = mean_of_others(&decider.state, &decider.options.node, node);
        BusAnswer::Reported(Reported { own, items, owned, more, mean })
    }

    /// Decides what one worker has said.
    fn take(
        &mut self,
        decider: &mut Decider<R>,
        tasks: &mut TaskDecisions<R>,
        node: OwnerToken,
        item: &ReportItem,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let ReportItem { task, lease, worker, said } = item;
        let (task, lease) = (*task, *lease);
        // What a lease ended with may be said again; who owned it does not matter then.
        if decider.state.leased(lease).is_some() {
            decider.state.check_owner(node, lease).map_err(|refusal| counted(decider, refusal))?;
        }
        let worker = worker.clone();
        let command = match said.clone() {
            Said::Running { progress, note } => {
                let held = HeldLease { lease, worker: worker.clone() };
                self.start(decider, tasks, vec![held], now);
                TaskCommand::Note { task, lease, worker, progress, note }
            }
            Said::Completed { result } => TaskCommand::Complete { task, lease, worker: Some(worker), result },
            Said::Failed { error, retry } => {
                TaskCommand::Fail { task, lease, worker: Some(worker), error, retry }
            }
            Said::Released => TaskCommand::Release { task, lease, worker: Some(worker) },
        };
        let is_bare = matches!(&command, TaskCommand::Note { progress: None, note: None, .. });
        let command = Command::Task(command);
        command.validate().map_err(|refusal| counted(decider, refusal))?;
        match decider.state.decide(&command, now) {
            Ok(Decision::Event(event)) if !is_bare => drop(tasks.commit(decider, event, now)),
            Ok(Decision::Event(_) | Decision::Already(_) | Decision::Nothing) => {}
            Err(refusal) => return Err(counted(decider, refusal)),
        }
        Ok(())
    }
}

/// Decides each claim, and commits those that are granted as one event.
fn own<R: Recipient>(
    decider: &mut Decider<R>,
    node: OwnerToken,
    asked: &[Claim],
    now: Timestamp,
) -> Vec<Result<u32, Refusal>> {
    let decided: Vec<_> = asked.iter().map(|claim| decider.state.claim(node, *claim)).collect();
    let free = asked.iter().zip(&decided).filter(|(_, decided)| matches!(decided, Ok(Claimed::Free)));
    let claims: Vec<Claim> = free.map(|(claim, _)| *claim).collect();
    if !claims.is_empty()
        && let Err(refusal) = commit(decider, OwnershipCommand::Own { node, claims }, now)
    {
        return decided.into_iter().map(|_| Err(refusal.clone())).collect();
    }
    let attempt_of =
        |claim: &Claim| owned_lease(&decider.state, claim.lease).map_or(1, |owned| owned.attempt);
    asked.iter().zip(decided).map(|(claim, decided)| decided.map(|_| attempt_of(claim))).collect()
}

pub(super) fn commit<R: Recipient>(
    decider: &mut Decider<R>,
    command: OwnershipCommand,
    now: Timestamp,
) -> Result<(), Refusal> {
    let command = Command::from(command);
    command.validate()?;
    if let Decision::Event(event) = decider.state.decide(&command, now)? {
        decider.commit(event, now);
    }
    Ok(())
}

fn counted<R: Recipient>(decider: &Decider<R>, refusal: Refusal) -> Refusal {
    drop(decider.refuse(refusal.clone()));
    refusal
}

fn owned_lease(state: &State, lease: LeaseId) -> Option<OwnedLease> {
    let task = state.leased(lease)?;
    Some(OwnedLease { task: task.id, lease, attempt: task.lease.as_deref()?.attempt })
}

/// How many leases the other nodes own on the average, if there are others that take some. The leader takes none beside others.
fn mean_of_others(state: &State, leader: &str, node: OwnerToken) -> u64 {
    let others = state.nodes().filter(|other| other.token != node && !other.draining && other.name != leader);
    let (nodes, owned) = others.fold((0_u64, 0_u64), |(n, owned), other| (n + 1, owned + other.owned as u64));
    owned.checked_div(nodes).unwrap_or(u64::MAX)
}
