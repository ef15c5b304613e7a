//! Which process represents a worker, and which shards its heartbeats release.
//!
//! **Invariant:** a heartbeat releases a shard only if its worker knew of the withdrawal when it was sent.

use std::collections::{BTreeMap, BTreeSet};

use orchestrix_core::shards::is_named;
use orchestrix_core::wire::ShardHeartbeat;
use orchestrix_core::{Name, Position, Timestamp, is_planted};

use super::ShardDecisions;
use crate::decider::Decider;
use crate::request::Recipient;

impl<R: Recipient> ShardDecisions<R> {
    /// Whether a worker has heard of what never was: this coordinator began anew, and the worker must, too.
    pub(super) fn is_of_another_journal(&self, decider: &Decider<R>, body: &ShardHeartbeat) -> bool {
        body.generation.is_some_and(|generation| generation > decider.state.position())
    }

    /// Whether a process without shards registers anew: no process of its name is there, or another one is whose place it
    /// may take without registering.
    pub(super) fn is_new(&self, decider: &Decider<R>, service: &Name, worker: &Name, session: &Name) -> bool {
        let there = decider.state.service(service).filter(|known| known.workers.contains_key(worker));
        let known = self.services.get(service).and_then(|soft| soft.workers.get(worker));
        let (Some(there), Some(known)) = (there, known) else { return true };
        match &known.session {
            _ if known.replaced => false,
            // After a change of leader it has stopped: it gets other tokens, and what is slow in it is refused.
            Some(speaks) if speaks == session => known.is_unheard && there.tokens_of(worker).next().is_some(),
            // Two processes of one name would take turns for ever: only a registration replaces one that lives.
            Some(speaks) => {
                !is_named(speaks) && !is_named(session) && !self.ended.contains(service, worker, session)
            }
            // After a change of leader no process is known for it.
            None => there.tokens_of(worker).next().is_some(),
        }
    }

    /// Whether what a session says counts for a worker. Where sessions are named, only that of the process that joined
    /// does. A connection that is not known, after a change of leader or a reconnect, is believed if it has heard of every
    /// grant that it serves by, and of one at least. One that was ended is believed when it comes anew, and what it sent
    /// before that is not.
    pub(super) fn speaks_for(
        &mut self,
        decider: &mut Decider<R>,
        service: &Name,
        worker: &Name,
        session: &Name,
        (serves, generation): (&[u32], Option<Position>),
        now: Timestamp,
    ) -> bool {
        let Some(there) = decider.state.service(service) else { return false };
        let Some(joined) = there.workers.get(worker).map(|worker| worker.joined) else { return false };
        let Self { services, ended, .. } = self;
        let Some(known) = services.get_mut(service).and_then(|soft| soft.workers.get_mut(worker)) else {
            return false;
        };
        if is_planted("any-session-believed") {
            return true;
        }
        if known.until <= now || known.replaced {
            return false;
        }
        if known.session.as_ref() == Some(session) {
            let is_of_this_life = generation.is_none_or(|generation| generation >= joined);
            let speaks = serves.is_empty() || is_of_this_life || is_planted("former-life-believed");
            known.is_unheard &= !speaks;
            return speaks;
        }
        let is_another = |speaks: &Name| is_named(speaks) || is_named(session);
        if known.session.as_ref().is_some_and(is_another) || (known.echoes && generation.is_none()) {
            return false;
        }
        let tokens: BTreeMap<u32, Position> = there.tokens_of(worker).collect();
        let serves_its_own = match generation {
            Some(generation) => {
                let heard = |token: &Position| generation >= *token;
                serves.iter().all(|shard| tokens.get(shard).is_some_and(heard))
            }
            None if is_named(session) => serves.iter().all(|shard| tokens.contains_key(shard)),
            // It cannot be asked for more, and may name what was taken from it, too.
            None => serves.is_empty() || serves.iter().any(|shard| tokens.contains_key(shard)),
        };
        if !serves_its_own || (serves.is_empty() && !tokens.is_empty()) {
            return false;
        }
        if ended.contains(service, worker, session) && !is_planted("ended-process-believed") {
            return false;
        }
        if let Some(before) = known.session.replace(session.clone()) {
            ended.add(service, worker, &before);
        }
        (known.echoes, known.plain, known.answered) = (false, false, Position(0));
        true
    }

    /// The withdrawn shards that a worker does not serve any more.
    pub(super) fn let_go_of(
        &mut self,
        decider: &mut Decider<R>,
        service: &Name,
        worker: &Name,
        serves: &[u32],
        generation: Option<Position>,
        now: Timestamp,
    ) -> Vec<u32> {
        let (Some(there), Some(soft)) = (decider.state.service(service), self.services.get_mut(service))
        else {
            return Vec::new();
        };
        let Some(known) = soft.workers.get_mut(worker) else { return Vec::new() };
        let serves: BTreeSet<u32> = serves.iter().copied().collect();
        let mut gone: Vec<(u32, Position)> =
            there.withdrawn_from(worker).filter(|(shard, _)| !serves.contains(shard)).collect();
        if is_planted("unheard-is-let-go") {
            gone = there.tokens_of(worker).filter(|(shard, _)| !serves.contains(shard)).collect();
        }
        if let Some(generation) = generation {
            known.missing.clear();
            known.echoes = true;
            return gone
                .into_iter()
                .filter(|(_, since)| *since <= generation || is_planted("old-generation-lets-go"))
                .map(|(shard, _)| shard)
                .collect();
        }
        if known.echoes {
            return Vec::new();
        }
        // It may not have heard of it yet, and say so only by chance: twice, some time apart, is believed.
        known.missing.retain(|shard, _| gone.iter().any(|(missing, _)| missing == shard));
        let check_ms = decider.options.shards.check_ms;
        let mut believed = Vec::new();
        for (shard, _) in gone {
            let since = *known.missing.entry(shard).or_insert(now);
            if now.since(since) >= check_ms {
                known.missing.remove(&shard);
                believed.push(shard);
            }
        }
        believed
    }
}
