//! Plain workers that ignore assignments. In a service with only such workers, a withdrawn shard is taken from them;
//! it may go on serving it beside the next worker.
//!
//! **Invariant:** nothing is taken before the worker was answered after the withdrawal, and nothing where a worker echoes
//! generations or was not heard of in this term: those can be asked, or may turn out to be.

use std::collections::BTreeSet;

use orchestrix_core::shards::ShardCommand;
use orchestrix_core::{Name, Position, Timestamp, is_planted};

use super::ShardDecisions;
use crate::decider::Decider;
use crate::request::{Error, Recipient};

/// Milliseconds before a registration must be answered in which workers that were answered once are overruled: time for a
/// rebalance, and for the answer.
pub(super) const PRESSING_MS: u64 = 1_000;

impl<R: Recipient> ShardDecisions<R> {
    /// The shards that a plain worker names, although an earlier answer withdrew them.
    pub(super) fn ignored_by(
        &mut self,
        decider: &mut Decider<R>,
        service: &Name,
        worker: &Name,
        serves: &[u32],
        (generation, seq): (Option<Position>, Option<u64>),
    ) -> BTreeSet<u32> {
        let (Some(there), Some(soft)) = (decider.state.service(service), self.services.get_mut(service))
        else {
            return BTreeSet::new();
        };
        let Some(known) = soft.workers.get_mut(worker) else { return BTreeSet::new() };
        // A worker without shards has no generation to return; with a `seq` it knows more than the plain protocol.
        let is_plain = generation.is_none() && !known.echoes && (seq.is_none() || !serves.is_empty());
        known.plain = is_plain || (known.plain && !known.echoes);
        if !is_plain {
            (known.is_deaf, known.beyond) = (false, 0);
            return BTreeSet::new();
        }
        let serves: BTreeSet<u32> = serves.iter().copied().collect();
        let own: BTreeSet<u32> = there.tokens_of(worker).map(|(shard, _)| shard).collect();
        let answered = known.answered;
        let ignored: BTreeSet<u32> = there
            .withdrawn_from(worker)
            .filter(|(shard, since)| *since <= answered && serves.contains(shard))
            .map(|(shard, _)| shard)
            .collect();
        let unheard =
            there.held_by(worker).any(|(shard, token)| token <= answered && !serves.contains(&shard));
        known.beyond = serves.difference(&own).count() as u64;
        known.is_deaf = !ignored.is_empty() || unheard || (known.beyond > 0 && answered > Position(0));
        ignored
    }

    /// Takes shards from a plain worker, if no other worker of its service can release more.
    pub(super) fn overrule(
        &mut self,
        decider: &mut Decider<R>,
        service: &Name,
        worker: &Name,
        shards: BTreeSet<u32>,
        now: Timestamp,
    ) -> Result<(), Error> {
        if shards.is_empty() || !self.is_all_plain(decider, service) {
            return Ok(());
        }
        let command = ShardCommand::Overrule { service: service.clone(), worker: worker.clone(), shards };
        if self.shard_command(decider, command, now)?.is_some() {
            self.want_rebalance(service, 0, now);
        }
        Ok(())
    }

    /// When a waiting registration must be answered soon, workers that were answered since are not waited for.
    pub(super) fn overrule_for_waiting(
        &mut self,
        decider: &mut Decider<R>,
        service: &Name,
        now: Timestamp,
    ) -> Result<(), Error> {
        let (Some(there), Some(soft)) = (decider.state.service(service), self.services.get(service)) else {
            return Ok(());
        };
        if !soft.waiting.iter().any(|waiting| waiting.is_pressing) {
            return Ok(());
        }
        let withdrawn = soft.workers.iter().filter(|(_, known)| !known.replaced).map(|(worker, known)| {
            let withdrawn = there.withdrawn_from(worker).filter(|(_, since)| *since <= known.answered);
            (worker.clone(), withdrawn.map(|(shard, _)| shard).collect())
        });
        let withdrawn: Vec<(Name, BTreeSet<u32>)> = withdrawn.collect();
        withdrawn
            .into_iter()
            .try_for_each(|(worker, shards)| self.overrule(decider, service, &worker, shards, now))
    }

    /// Notes whose patience is nearly over, and does something about it.
    pub(super) fn press(&mut self, decider: &mut Decider<R>, service: &Name, now: Timestamp) {
        let Some(soft) = self.services.get_mut(service) else { return };
        let mut pressing = false;
        for waiting in soft.waiting.iter_mut().filter(|waiting| !waiting.is_pressing) {
            waiting.is_pressing = waiting.until <= now.plus(PRESSING_MS);
            pressing |= waiting.is_pressing;
        }
        if pressing {
            let overruled = self.overrule_for_waiting(decider, service, now);
            debug_assert!(overruled.is_ok(), "what was withdrawn can always be taken");
        }
    }

    fn is_all_plain(&self, decider: &Decider<R>, service: &Name) -> bool {
        let (Some(there), Some(soft)) = (decider.state.service(service), self.services.get(service)) else {
            return false;
        };
        let is_plain = |worker: &Name| soft.workers.get(worker).is_some_and(|known| known.plain);
        there.workers.keys().all(is_plain) || is_planted("aware-overruled")
    }
}
