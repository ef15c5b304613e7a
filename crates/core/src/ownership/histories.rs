//! Random histories of nodes, owners and leases of the bus: they replay to the same state, from every prefix and through every
//! snapshot, the indexes always say what the entries say, and a model that knows only who was given what agrees.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::Index;

use super::state::{NOBODY, Ownership};
use super::{Claim, NodeLeftReason, OwnershipCommand, OwnershipEvent};
use crate::wire::Submit;
use crate::{
    Command, Decision, Event, FormatRaised, HeldLease, Json, LeaseId, Name, Offer, OwnerToken, Records,
    Refusal, SnapshotLoader, State, TaskCommand, TaskEvent, TaskId, TermCommand, Timestamp, encode_record,
};

/// One step of a history; leases and nodes are drawn from those that have been.
#[derive(Clone, Debug)]
enum Step {
    Offer,
    Start(Vec<(Index, u8)>),
    Complete(Index, Option<u8>),
    Release(Index, u8),
    Abandon(Index),
    Cancel(Index),
    Join(u8, u8),
    Leave(Index),
    Drain(Index),
    Own(Index, Vec<(Index, Option<Index>)>),
    Disown(Index, Vec<Index>),
    Resume(u64),
    Term,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<Index>;
    let starts = prop::collection::vec((index(), 0_u8..3), 1..4);
    let claims = prop::collection::vec((index(), prop::option::weighted(0.6, index())), 1..4);
    let leases = prop::collection::vec(index(), 1..4);
    prop_oneof![
        10 => Just(Step::Offer),
        5 => starts.prop_map(Step::Start),
        3 => (index(), prop::option::weighted(0.8, 0_u8..3)).prop_map(|(lease, by)| Step::Complete(lease, by)),
        1 => (index(), 0_u8..3).prop_map(|(lease, by)| Step::Release(lease, by)),
        1 => index().prop_map(Step::Abandon),
        1 => index().prop_map(Step::Cancel),
        3 => (0_u8..3, 0_u8..3).prop_map(|(node, life)| Step::Join(node, life)),
        1 => index().prop_map(Step::Leave),
        1 => index().prop_map(Step::Drain),
        10 => (index(), claims).prop_map(|(node, claims)| Step::Own(node, claims)),
        3 => (index(), leases).prop_map(|(node, leases)| Step::Disown(node, leases)),
        1 => (0_u64..9_000).prop_map(Step::Resume),
        1 => Just(Step::Term),
        4 => prop_oneof![4 => 1_u64..3_000, 1 => 3_000_u64..70_000].prop_map(Step::Wait),
    ]
}

struct History {
    state: State,
    now: Timestamp,
    records: Vec<u8>,
    /// The fingerprint after every event.
    fingerprints: Vec<[u8; 16]>,
    leases: Vec<(TaskId, LeaseId)>,
    nodes: Vec<OwnerToken>,
    /// Who was given which lease, and the nodes that are there: all that ownership is.
    given: BTreeMap<LeaseId, OwnerToken>,
    there: BTreeMap<OwnerToken, (String, bool)>,
}

impl History {
    /// In the format with the bus.
    fn new() -> Self {
        let mut history = Self {
            state: State::new(),
            now: Timestamp(1_000_000),
            records: vec![],
            fingerprints: vec![],
            leases: vec![],
            nodes: vec![],
            given: BTreeMap::new(),
            there: BTreeMap::new(),
        };
        history.apply(FormatRaised { format: 2 }.into());
        history
    }

    fn run(&mut self, step: &Step) {
        if let Step::Wait(millis) = step {
            return self.wait(*millis);
        }
        if let Step::Offer = step {
            let task = Submit::new(name("queue", 0), Json::null());
            self.decide(&Command::submit(task));
        }
        if let Some(command) = self.command(step) {
            self.decide(&command);
        }
    }

    fn wait(&mut self, millis: u64) {
        self.now = self.now.plus(millis);
        self.state.advance(self.now, |_| {});
        let mut most = 0..400;
        while let Some(task) = self.state.next_end(self.now) {
            assert!(most.next().is_some(), "task {task} is over, and does not end");
            self.decide(&Command::Task(TaskCommand::Expire { task }));
        }
    }

    fn decide(&mut self, command: &Command) {
        command.validate().unwrap();
        let before = self.state.fingerprint();
        let decided = self.state.decide(command, self.now);
        assert_eq!(self.state.fingerprint(), before, "to decide changes nothing");
        assert_ne!(decided, Err(Refusal::Internal), "{command:?} met a bug");
        if let Command::Ownership(command) = command {
            assert_eq!(matches!(decided, Ok(Decision::Event(_))), self.expected(command), "{command:?}");
        }
        if let Ok(Decision::Event(event)) = decided {
            self.apply(event);
        }
    }

    /// What the model says of a command: whether it makes an event.
    fn expected(&self, command: &OwnershipCommand) -> bool {
        let owner =
            |lease: &LeaseId| self.given.get(lease).copied().filter(|owner| self.there.contains_key(owner));
        let of_bus = |lease: &LeaseId| {
            self.state.leased(*lease).is_some_and(|task| task.lease.as_ref().unwrap().is_of_bus())
        };
        match command {
            // The one that is there has come in some life: only the state knows which.
            OwnershipCommand::Join { node, incarnation, .. } => {
                self.state.node_named(node).is_none_or(|there| there.incarnation != incarnation)
            }
            OwnershipCommand::Leave { node, .. } => self.there.contains_key(node),
            OwnershipCommand::Drain { node } => self.there.get(node).is_some_and(|(_, drains)| !drains),
            OwnershipCommand::Own { node, claims } => {
                let drains = self.there.get(node).is_none_or(|(_, drains)| *drains);
                let may = |claim: &Claim| {
                    let owner = owner(&claim.lease);
                    let free = !drains && (owner.is_none() || owner == claim.previous);
                    of_bus(&claim.lease) && self.there.contains_key(node) && (owner == Some(*node) || free)
                };
                claims.iter().all(may) && claims.iter().any(|claim| owner(&claim.lease) != Some(*node))
            }
            OwnershipCommand::Release { node, leases } => {
                let mut live = leases.iter().filter(|lease| of_bus(lease)).filter_map(&owner).peekable();
                live.peek().is_some() && live.all(|owner| owner == *node)
            }
        }
    }

    fn apply(&mut self, event: Event) {
        encode_record(self.state.format_of(&event), self.now, &event, &mut self.records);
        let next = OwnerToken(self.state.position().0 + 1);
        match &event {
            Event::Task(TaskEvent::LeaseOffered(offered)) => {
                self.leases.push((offered.task, LeaseId(next.0)));
            }
            Event::Ownership(OwnershipEvent::NodeJoined(event)) => {
                self.there.retain(|_, (name, _)| *name != event.node);
                self.there.insert(next, (event.node.clone(), false));
                self.nodes.push(next);
            }
            Event::Ownership(OwnershipEvent::NodeLeft(event)) => drop(self.there.remove(&event.node)),
            Event::Ownership(OwnershipEvent::NodeDraining(event)) => {
                self.there.get_mut(&event.node).unwrap().1 = true;
            }
            Event::Ownership(OwnershipEvent::OwnersAssigned(event)) => {
                self.given.extend(event.leases.iter().map(|lease| (*lease, event.node)));
            }
            Event::Ownership(OwnershipEvent::OwnersReleased(event)) => {
                self.given.retain(|lease, _| !event.leases.contains(lease));
            }
            Event::Task(_) | Event::Term(_) | Event::Shard(_) | Event::Note(_) => {}
        }
        self.state.apply(self.now, event);
        self.fingerprints.push(self.state.fingerprint());
        check(&self.state);
        self.compare();
    }

    /// Who owns what is as the model has it.
    fn compare(&self) {
        let of_bus = |lease: &LeaseId| self.state.leased(*lease).is_some();
        let leases = self.leases.iter().map(|(_, lease)| *lease).filter(of_bus);
        let mut orphans = 0;
        for lease in leases {
            let owner = self.given.get(&lease).filter(|owner| self.there.contains_key(owner));
            assert_eq!(self.state.owner_of(lease).map(|node| node.token).as_ref(), owner);
            orphans += usize::from(owner.is_none());
            for node in &self.nodes {
                assert_eq!(self.state.check_owner(*node, lease).is_ok(), owner == Some(node));
            }
        }
        assert_eq!(self.state.orphan_count(), orphans);
        assert_eq!(self.state.orphans(None, 500).len(), orphans);
        assert!(self.state.nodes().map(|node| node.token).eq(self.there.keys().copied()));
    }

    fn command(&self, step: &Step) -> Option<Command> {
        let lease = |index: &Index| (!self.leases.is_empty()).then(|| *index.get(&self.leases));
        let node = |index: &Index| (!self.nodes.is_empty()).then(|| *index.get(&self.nodes));
        let leases = |indexes: &[Index]| -> Vec<LeaseId> {
            indexes.iter().filter_map(|index| Some(lease(index)?.1)).collect()
        };
        Some(match step {
            Step::Offer => {
                Command::Task(TaskCommand::Offer(Offer { queues: vec![name("queue", 0)], lease_ms: 20_000 }))
            }
            Step::Start(starts) => {
                let held = |(index, by): &(Index, u8)| {
                    Some(HeldLease { lease: lease(index)?.1, worker: name("worker", *by) })
                };
                Command::Task(TaskCommand::Start(starts.iter().filter_map(held).collect()))
            }
            Step::Complete(index, by) => {
                let (task, lease) = lease(index)?;
                let worker = by.map(|by| name("worker", by));
                Command::Task(TaskCommand::Complete { task, lease, worker, result: None })
            }
            Step::Release(index, by) => {
                let (task, lease) = lease(index)?;
                Command::Task(TaskCommand::Release { task, lease, worker: Some(name("worker", *by)) })
            }
            Step::Abandon(index) => {
                let (task, lease) = lease(index)?;
                Command::Task(TaskCommand::Abandon { task, lease })
            }
            Step::Cancel(index) => Command::Task(TaskCommand::Cancel { task: lease(index)?.0, actor: None }),
            Step::Join(n, life) => {
                let (node, incarnation) = (format!("node-{n}"), life.to_string());
                OwnershipCommand::Join { node, incarnation, address: String::new() }.into()
            }
            Step::Leave(index) => {
                OwnershipCommand::Leave { node: node(index)?, reason: NodeLeftReason::Silent }.into()
            }
            Step::Drain(index) => OwnershipCommand::Drain { node: node(index)? }.into(),
            Step::Own(index, claims) => {
                let claim = |(index, from): &(Index, Option<Index>)| {
                    let previous = from.as_ref().and_then(&node);
                    Some(Claim { lease: lease(index)?.1, previous })
                };
                let claims = claims.iter().filter_map(claim).collect();
                OwnershipCommand::Own { node: node(index)?, claims }.into()
            }
            Step::Disown(index, given) => {
                OwnershipCommand::Release { node: node(index)?, leases: leases(given) }.into()
            }
            Step::Resume(millis) => {
                let silent_since = Timestamp(self.now.0 - millis);
                Command::Task(TaskCommand::ResumeBus { silent_since })
            }
            Step::Term => Command::Term(TermCommand::Start {
                epoch: 0,
                node: "node".to_owned(),
                actor: None,
                shard_lease_ms: None,
            }),
            Step::Wait(_) => return None,
        })
    }
}

fn name(kind: &str, n: u8) -> Name {
    Name::new(&format!("{kind}-{n}")).unwrap()
}

/// Makes every index anew and compares.
fn check(state: &State) {
    state.tasks.check(state.at);
    let Ownership { nodes, names, leases, shares, unowned, .. } = &state.ownership;
    assert!(state.ownership.has_just(state.tasks.leases_of_bus()));
    assert_eq!(leases.len(), state.bus_lease_count());
    assert!(names.values().all(|token| nodes.contains_key(token)) && names.len() == nodes.len());
    for entry in leases.after(None) {
        let share = shares.get(&entry.owner).map(|share| share.leases.get(entry.lease).is_some());
        let alone = unowned.get((entry.since, entry.lease)).is_some();
        assert_eq!((share, alone), if entry.owner == NOBODY { (None, true) } else { (Some(true), false) });
    }
    let shared: usize = shares.values().map(|share| share.leases.len()).sum();
    assert_eq!(shared + unowned.len(), leases.len());
    for (token, share) in shares {
        assert_eq!(nodes.contains_key(token), share.gone_at.is_none());
        assert!(share.gone_at.is_none() || share.leases.len() > 0, "a node that is gone owns something");
    }
}

/// A snapshot taken while the history goes on.
struct Taken {
    at: usize,
    chunks: Vec<Vec<u8>>,
}

impl Taken {
    fn step(&mut self, state: &mut State, items: usize) -> bool {
        let mut chunk = Vec::new();
        let more = state.step_capture(items, 90, &mut chunk);
        self.chunks.push(chunk);
        more
    }

    fn load(&self) -> State {
        let mut loader = SnapshotLoader::new();
        self.chunks.iter().for_each(|chunk| loader.load(chunk).unwrap());
        loader.finish().unwrap()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_history_of_owners_replays_from_every_prefix_and_snapshot(
        steps in prop::collection::vec(step(), 1..160),
        begins in 0_usize..100,
        pace in 1_usize..4,
    ) {
        let mut history = History::new();
        let (mut taken, mut under_way): (Vec<Taken>, Option<Taken>) = (Vec::new(), None);
        for (n, step) in steps.iter().enumerate() {
            history.run(step);
            match under_way.as_mut().map(|taken| taken.step(&mut history.state, pace)) {
                Some(true) => {}
                Some(false) => taken.extend(under_way.take()),
                None if n % 20 == begins % 20 => {
                    let chunks = vec![history.state.begin_capture()];
                    under_way = Some(Taken { at: history.fingerprints.len(), chunks });
                }
                None => {}
            }
        }
        if let Some(mut last) = under_way {
            while last.step(&mut history.state, pace) {}
            taken.push(last);
        }
        let records: Vec<_> = Records::new(&history.records).map(Result::unwrap).collect();
        let mut replayed = State::new();
        for ((at, event), fingerprint) in records.iter().zip(&history.fingerprints) {
            replayed.apply(*at, event.clone());
            prop_assert_eq!(replayed.fingerprint(), *fingerprint);
        }
        for taken in &taken {
            let mut loaded = taken.load();
            prop_assert_eq!(loaded.fingerprint(), history.fingerprints[taken.at - 1]);
            check(&loaded);
            for (at, event) in &records[taken.at..] {
                loaded.apply(*at, event.clone());
            }
            prop_assert_eq!(loaded.fingerprint(), history.state.fingerprint());
            check(&loaded);
        }
    }
}
