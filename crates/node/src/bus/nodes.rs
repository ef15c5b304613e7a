//! What the leader decides about nodes: which are dead, who gets leases that nobody owns, and who gives some away.
//!
//! Seed 000 calls its parts `CoordinatorHealthMonitor` and `OrphanJobDetector`.
//!
//! **Invariant:** a handoff is a hint. Whoever wins it asks for the lease, and the journal says who owns it; so a node that is taken for
//! dead too early, or a handoff that comes twice, costs a message.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use orchestrix_core::limits::OWNED_LEASES_MAX;
use orchestrix_core::wire::bus::{Handoff, HandoffReason};
use orchestrix_core::{
    Claim, JoinedNode, LeaseId, Name, NodeLeftReason, OwnerToken, OwnershipCommand, Position, State,
    Timestamp, is_planted,
};

use super::BusOptions;
use super::reports::commit;
use crate::decider::Decider;
use crate::request::Recipient;

/// Between two looks at nodes, while nothing happens.
const LOOK_MS: u64 = 250;
/// A new leader gives every node so long to report, whatever it knows of it.
const GRACE_MS: u64 = 1_000;
/// A lease that nobody owns for so long, though a message asks for it, is given to a node by the leader.
const ASSIGN_AFTER_MS: u64 = 10_000;
/// Nodes are balanced if they are closer than this, or one has less than so many times as much as the other.
const APART_MIN: usize = 10;
const TIMES_MIN: usize = 2;
/// After leases were moved, nothing is moved for so long.
const COOLDOWN_MS: u64 = 30_000;

#[derive(Debug)]
pub(super) struct NodeDecisions {
    dead_ms: u64,
    check_ms: u64,
    began: Timestamp,
    /// When each node reported last.
    heard: BTreeMap<OwnerToken, Timestamp>,
    /// Also of nodes that are gone.
    names: BTreeMap<OwnerToken, Name>,
    /// Leases without an owner, with the time when that was published.
    handed: BTreeMap<LeaseId, Timestamp>,
    handoffs: Vec<Handoff>,
    /// Orphans may be there that were not looked at.
    is_disturbed: bool,
    next_look: Timestamp,
    next_check: Timestamp,
    next_move: Timestamp,
}

impl NodeDecisions {
    pub(super) fn new(options: &BusOptions) -> Self {
        let millis = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            dead_ms: millis(options.dead_node_timeout),
            check_ms: millis(options.orphan_check_interval),
            began: Timestamp(0),
            heard: BTreeMap::new(),
            names: BTreeMap::new(),
            handed: BTreeMap::new(),
            handoffs: Vec::new(),
            is_disturbed: true,
            next_look: Timestamp(0),
            next_check: Timestamp(0),
            next_move: Timestamp(0),
        }
    }

    pub(super) fn begin_term(&mut self, state: &State, now: Timestamp) {
        self.began = now;
        self.heard = state.nodes().map(|node| (node.token, now)).collect();
        self.is_disturbed = true;
    }

    /// What this node knew of others before it led.
    pub(super) fn were_heard(&mut self, state: &State, ages: &[(Name, u64)], now: Timestamp) {
        for (name, age_ms) in ages {
            if let Some(node) = state.node_named(name.as_str()) {
                let heard = Timestamp(now.0.saturating_sub(*age_ms));
                // One that reported since then was heard later.
                if self.heard.get(&node.token).is_none_or(|at| *at <= self.began) {
                    self.heard.insert(node.token, heard);
                }
            }
        }
        self.next_look = now;
    }

    /// A node has reported.
    pub(super) fn hear(&mut self, node: OwnerToken, now: Timestamp) {
        self.heard.insert(node, now);
    }

    /// A node left or gave leases away: somebody else is needed.
    pub(super) fn is_disturbed(&mut self) {
        self.is_disturbed = true;
    }

    pub(super) fn has_handoffs(&self) -> bool {
        !self.handoffs.is_empty()
    }

    pub(super) fn take_handoffs(&mut self) -> Vec<Handoff> {
        mem::take(&mut self.handoffs)
    }

    pub(super) fn next_due(&self) -> Option<Timestamp> {
        (!self.heard.is_empty()).then_some(self.next_look)
    }

    pub(super) fn tick<R: Recipient>(&mut self, decider: &mut Decider<R>, now: Timestamp) {
        if now < self.next_look && !self.is_disturbed {
            return;
        }
        self.next_look = now.plus(LOOK_MS);
        self.bury(decider, now);
        if self.is_disturbed || now >= self.next_check || !self.handed.is_empty() {
            self.is_disturbed = false;
            self.next_check = now.plus(self.check_ms.min(ASSIGN_AFTER_MS));
            self.adopt(decider, now);
        }
        self.balance(decider, now);
    }

    /// Nodes of which nothing was heard are dead.
    fn bury<R: Recipient>(&mut self, decider: &mut Decider<R>, now: Timestamp) {
        let mut dead = Vec::new();
        for node in decider.state.nodes() {
            if !self.names.contains_key(&node.token)
                && let Ok(name) = Name::new(node.name)
            {
                self.names.insert(node.token, name);
            }
            let heard = *self.heard.entry(node.token).or_insert(now);
            if now.since(heard) > self.dead_ms && now.since(self.began) >= GRACE_MS {
                dead.push((node.token, node.name.to_owned(), node.owned));
            }
        }
        for (node, name, owned) in dead {
            decider.stats.bus.nodes_lost.add(1);
            tracing::warn!(
                node = name,
                owned,
                "nothing was heard of this node for too long: it is dead, and others get what it owned"
            );
            let leave = OwnershipCommand::Leave { node, reason: NodeLeftReason::Silent };
            if let Err(refusal) = commit(decider, leave, now) {
                tracing::warn!(node = name, %refusal, "it stays");
            }
            self.is_disturbed = true;
        }
        let state = &decider.state;
        self.heard.retain(|node, _| state.node(*node).is_some());
        if self.names.len() > 2 * self.heard.len() + 100 {
            self.names.retain(|node, _| state.node(*node).is_some());
        }
    }

    /// Finds owners for leases that have none: by a message, and if that does not help, by itself.
    fn adopt<R: Recipient>(&mut self, decider: &mut Decider<R>, now: Timestamp) {
        let (mut after, mut alone) = (None, Vec::new());
        let mut still = BTreeMap::new();
        loop {
            let orphans = decider.state.orphans(after, OWNED_LEASES_MAX);
            let Some(last) = orphans.last() else { break };
            after = Some(*last);
            for (since, lease) in orphans {
                let Some(task) = decider.state.leased(lease) else { continue };
                let left_by = decider.state.left_by(lease);
                // One that is fresh was offered to owners with its dispatch.
                let offered = task.lease.as_deref().map_or(since, |lease| lease.granted_at);
                let asked = match self.handed.get(&lease) {
                    Some(at) => *at,
                    None if left_by.is_none() && since <= offered => since,
                    None => {
                        let (job_id, owner) = (task.id, left_by.map_or(Position(0), |node| Position(node.0)));
                        let name = left_by.and_then(|node| self.names.get(&node)).cloned();
                        let node_id = name.unwrap_or_else(nobody);
                        let reason = HandoffReason::NodeCrash;
                        self.handoffs.push(Handoff { job_id, history_id: lease, node_id, owner, reason });
                        still.insert(lease, now);
                        continue;
                    }
                };
                if self.handed.contains_key(&lease) {
                    still.insert(lease, asked);
                }
                if now.since(asked) >= ASSIGN_AFTER_MS {
                    alone.push(lease);
                }
            }
        }
        self.handed = still;
        for (node, leases) in shared_out(&takers(&decider.state, &decider.options.node), &alone) {
            decider.stats.bus.assigned.add(leases.len() as u64);
            tracing::info!(%node, leases = leases.len(), "nobody took these leases: this node owns them now");
            for leases in leases.chunks(OWNED_LEASES_MAX) {
                let claims = leases.iter().map(|lease| Claim { lease: *lease, previous: None }).collect();
                if let Err(refusal) = commit(decider, OwnershipCommand::Own { node, claims }, now) {
                    tracing::warn!(%node, %refusal, "it cannot own them");
                }
            }
        }
    }

    /// Moves half of the gap from the node that owns most to the others.
    fn balance<R: Recipient>(&mut self, decider: &Decider<R>, now: Timestamp) {
        if now < self.next_move {
            return;
        }
        let takers = takers(&decider.state, &decider.options.node);
        let (Some(most), Some(least)) =
            (takers.iter().max_by_key(|(owned, _)| *owned), takers.iter().min_by_key(|(owned, _)| *owned))
        else {
            return;
        };
        let apart = most.0 - least.0;
        let is_close = apart < APART_MIN && !is_planted("rebalance-by-ratio-only");
        if apart == 0 || is_close || most.0 < TIMES_MIN * least.0 {
            return;
        }
        self.next_move = now.plus(COOLDOWN_MS);
        let (node, mut move_now, mut after) = (most.1, apart / 2, None);
        let Some(node_id) = self.names.get(&node).cloned() else { return };
        tracing::info!(from = %node_id, leases = move_now, "this node owns much more than another: it gives some away");
        decider.stats.bus.moved.add(move_now as u64);
        while move_now > 0 {
            let leases = decider.state.owned_by(node, after, move_now);
            let Some(last) = leases.last() else { return };
            after = Some(*last);
            move_now -= leases.len();
            for lease in leases {
                let Some(task) = decider.state.leased(lease) else { continue };
                let (job_id, owner, reason) = (task.id, Position(node.0), HandoffReason::Rebalance);
                let node_id = node_id.clone();
                self.handoffs.push(Handoff { job_id, history_id: lease, node_id, owner, reason });
            }
        }
    }
}

fn nobody() -> Name {
    Name::new("nobody").expect("it is a name")
}

/// Nodes that take leases, with what they own. The leader does so only if it is alone.
fn takers(state: &State, leader: &str) -> Vec<(usize, OwnerToken)> {
    let pair = |node: JoinedNode<'_>| (node.owned, node.token);
    let others: Vec<_> =
        state.nodes().filter(|node| !node.draining && node.name != leader).map(pair).collect();
    if others.is_empty() {
        return state.nodes().filter(|node| !node.draining).map(pair).collect();
    }
    others
}

/// Gives leases to those who own least.
fn shared_out(takers: &[(usize, OwnerToken)], leases: &[LeaseId]) -> BTreeMap<OwnerToken, Vec<LeaseId>> {
    let mut by_load: BTreeSet<(usize, OwnerToken)> = takers.iter().copied().collect();
    let mut shares: BTreeMap<OwnerToken, Vec<LeaseId>> = BTreeMap::new();
    for lease in leases {
        let Some((owned, node)) = by_load.pop_first() else { break };
        by_load.insert((owned + 1, node));
        shares.entry(node).or_default().push(*lease);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_go_to_those_who_own_least() {
        let (one, two) = (OwnerToken(1), OwnerToken(2));
        let leases: Vec<LeaseId> = (1..=4).map(LeaseId).collect();
        let shares = shared_out(&[(3, one), (1, two)], &leases);
        assert_eq!(shares[&two].len(), 3);
        assert_eq!(shares[&one].len(), 1);
        assert!(shared_out(&[], &leases).is_empty());
    }
}
