//! Which candidates are present, which one stands, and the phases of a cold start: the rules of the roster, without any I/O.
//!
//! Each candidate has a presence cell that changes with every heartbeat. A candidate is gone when its cell has not changed
//! for its own `worker_timeout`, which is stored in the cell. The lowest id present stands; the register decides whether it
//! gets the leader lease.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use orchestrix_engine::{Cell, Claim, Version};

use crate::election::{Candidate, Peer};
use crate::event::{LeadershipEvent, Phase};
use crate::options::Roster;

/// A cell that has not changed for so long, and for so many times `worker_timeout`, is removed. A candidate that comes back
/// writes a new one with its next heartbeat.
const GONE_AFTER: Duration = Duration::from_secs(3600);
const GONE_TIMEOUTS: u32 = 100;
/// Cells removed with one listing. Bounds the delay of the listing.
const GONE_AT_ONCE: usize = 20;

/// What a candidate knows about the others.
#[derive(Clone, Debug)]
pub struct Presence {
    me: String,
    options: Roster,
    seen: BTreeMap<String, Observed>,
    phase: Phase,
    /// When the phase began.
    since: Option<Duration>,
}

#[derive(Clone, Debug)]
struct Observed {
    version: Version,
    /// When this version was first seen.
    at: Duration,
    /// How long it is valid, by the candidate's own setting.
    timeout: Duration,
    present: bool,
    peer: Option<Peer>,
}

impl Observed {
    fn is_present(&self, now: Duration) -> bool {
        self.present && now < self.at + self.timeout
    }
}

impl Presence {
    #[must_use]
    pub fn new(me: String, options: Roster) -> Self {
        let phase = if options.skip_cold_start { Phase::Ready } else { Phase::Observing };
        Self { me, options, seen: BTreeMap::new(), phase, since: None }
    }

    /// Takes in a listing: the cell of each candidate by its id.
    pub fn update(&mut self, now: Duration, cells: Vec<(String, Cell)>) {
        // A listing may be stale: a candidate stays present until its timeout.
        let listed: BTreeSet<&String> = cells.iter().map(|(id, _)| id).collect();
        self.seen.retain(|id, seen| listed.contains(id) || now < seen.at + seen.timeout);
        for (id, cell) in cells {
            let known = self.seen.get(&id).filter(|seen| seen.version == cell.version);
            let at = known.map_or(now, |seen| seen.at);
            let peer = serde_json::from_slice(&cell.claim.value).ok();
            let timeout = match cell.claim.ttl_ms {
                0 => self.options.worker_timeout,
                own => Duration::from_millis(own),
            };
            let (version, present) = (cell.version, cell.claim.held);
            self.seen.insert(id, Observed { version, at, timeout, present, peer });
        }
    }

    /// The ids of the candidates present, lowest first. This one always is.
    #[must_use]
    pub fn present(&self, now: Duration) -> Vec<String> {
        let others = self.seen.iter().filter(|(_, seen)| seen.is_present(now));
        let mut present: Vec<String> = others.map(|(id, _)| id.clone()).collect();
        if !present.contains(&self.me) {
            present.push(self.me.clone());
        }
        present.sort();
        present
    }

    /// The candidate with the lowest id present, if its cell was seen.
    #[must_use]
    pub fn lowest(&self, now: Duration) -> Option<Candidate> {
        self.candidate(self.present(now).first()?, now)
    }

    /// A candidate that is present.
    #[must_use]
    pub fn candidate(&self, id: &str, now: Duration) -> Option<Candidate> {
        let seen = self.seen.get(id).filter(|seen| seen.is_present(now))?;
        seen.peer.as_ref().map(|peer| peer.candidate.clone())
    }

    /// Some of the candidates that are long gone, each with the last version seen.
    #[must_use]
    pub fn long_gone(&self, now: Duration) -> Vec<(String, Version)> {
        let after = GONE_AFTER.max(self.options.worker_timeout.saturating_mul(GONE_TIMEOUTS));
        let gone = self.seen.iter().filter(|(id, seen)| **id != self.me && now >= seen.at + after);
        gone.take(GONE_AT_ONCE).map(|(id, seen)| (id.clone(), seen.version.clone())).collect()
    }

    /// All candidates that were seen and are not long gone, by id.
    #[must_use]
    pub fn peers(&self, now: Duration) -> Vec<Peer> {
        let peer = |seen: &Observed| {
            let present = seen.is_present(now);
            seen.peer.clone().map(|peer| Peer { present, seen: seen.at, ..peer })
        };
        self.seen.values().filter_map(peer).collect()
    }

    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether this candidate should stand: it has finished observing, and no candidate present has a lower id.
    #[must_use]
    pub fn stands(&self, now: Duration) -> bool {
        self.phase != Phase::Observing && self.present(now).first() == Some(&self.me)
    }

    /// Whether this candidate may act once it is elected.
    #[must_use]
    pub fn acts(&self) -> bool {
        matches!(self.phase, Phase::Ready)
    }

    /// Advances the cold start. `leads`: this candidate is leader. `led`: there is a leader.
    pub fn advance(&mut self, now: Duration, leads: bool, led: bool) -> Vec<LeadershipEvent> {
        let mut events = Vec::new();
        loop {
            let since = *self.since.get_or_insert(now);
            let passed = now.saturating_sub(since);
            let next = match self.phase {
                Phase::Observing if passed >= self.options.cold_start_observation_window => Phase::Election,
                Phase::Election if leads => Phase::Preparation,
                // Another candidate was elected: there is nothing to prepare.
                Phase::Election if led => Phase::Ready,
                Phase::Preparation if passed >= self.options.cold_start_preparation_delay || !leads => {
                    Phase::Ready
                }
                Phase::Observing | Phase::Election | Phase::Preparation | Phase::Ready => return events,
            };
            let duration = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
            events.push(LeadershipEvent::ColdStartPhaseChanged { phase: next, duration });
            (self.phase, self.since) = (next, Some(now));
        }
    }
}

/// What the presence cell of a candidate says with a heartbeat that counts for so long, or without one when it leaves.
///
/// # Panics
/// Never: a candidate is plain JSON.
#[must_use]
pub fn presence_claim(me: &Candidate, note: &str, timeout: Option<Duration>) -> Claim {
    let (candidate, note) = (me.clone(), note.to_owned());
    let held = timeout.is_some();
    let peer = Peer { candidate, note, present: held, seen: Duration::ZERO };
    Claim {
        owner: me.name.clone(),
        epoch: 0,
        ttl_ms: u64::try_from(timeout.unwrap_or_default().as_millis()).unwrap_or(u64::MAX),
        held,
        value: serde_json::to_vec(&peer).expect("a candidate is plain JSON"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn cell(version: u64, held: bool) -> Cell {
        Cell { version: Version(version.to_string()), claim: Claim { held, ..Claim::default() } }
    }

    fn presence(me: &str) -> Presence {
        Presence::new(me.to_owned(), Roster::default())
    }

    #[test]
    fn the_lowest_id_present_stands_after_the_observation() {
        let mut b = presence("b");
        b.update(SECOND, vec![("a".into(), cell(1, true)), ("b".into(), cell(1, true))]);
        assert!(b.advance(SECOND, false, false).is_empty());
        assert!(b.advance(15 * SECOND, false, false).is_empty(), "it began to observe at 1 s");
        let events = b.advance(16 * SECOND, false, false);
        assert_eq!(
            events,
            [LeadershipEvent::ColdStartPhaseChanged { phase: Phase::Election, duration: 15_000 }]
        );
        assert!(!b.stands(16 * SECOND), "a is present");
        // a sends no heartbeats any more.
        b.update(80 * SECOND, vec![("a".into(), cell(1, true))]);
        assert!(!b.stands(90 * SECOND));
        assert!(b.stands(91 * SECOND), "a was last seen to change 90 s ago");
        b.update(92 * SECOND, vec![("a".into(), cell(2, true))]);
        assert!(!b.stands(92 * SECOND), "a is back");
        b.update(93 * SECOND, vec![("a".into(), cell(3, false))]);
        assert!(b.stands(93 * SECOND), "a has left");
    }

    #[test]
    fn a_candidate_is_present_for_its_own_time() {
        for own in [45, 180] {
            let mut b = presence("b");
            let mut seen = cell(1, true);
            seen.claim.ttl_ms = own * 1_000;
            b.update(SECOND, vec![("a".into(), seen)]);
            let until = Duration::from_secs(1 + own);
            assert_eq!(b.present(until - SECOND), ["a", "b"], "{own} s");
            assert_eq!(b.present(until), ["b"], "{own} s");
        }
    }

    #[test]
    fn a_cold_start_goes_through_all_phases() {
        let mut a = presence("a");
        a.advance(Duration::ZERO, false, false);
        assert!(!a.stands(14 * SECOND), "it does not stand while it observes");
        a.advance(15 * SECOND, false, false);
        assert!(a.stands(15 * SECOND) && !a.acts());
        let events = a.advance(16 * SECOND, true, true);
        assert_eq!(
            events,
            [LeadershipEvent::ColdStartPhaseChanged { phase: Phase::Preparation, duration: 1_000 }]
        );
        assert!(a.advance(20 * SECOND, true, true).is_empty() && !a.acts());
        let events = a.advance(21 * SECOND, true, true);
        assert_eq!(events, [LeadershipEvent::ColdStartPhaseChanged { phase: Phase::Ready, duration: 5_000 }]);
        assert!(a.acts());
    }

    #[test]
    fn a_candidate_that_is_not_elected_is_ready_at_once() {
        let mut b = presence("b");
        b.advance(Duration::ZERO, false, false);
        let phases: Vec<LeadershipEvent> = b.advance(15 * SECOND, false, true);
        assert_eq!(phases.len(), 2, "{phases:?}");
        assert!(b.acts());
        let mut hasty = Presence::new("a".into(), Roster { skip_cold_start: true, ..Roster::default() });
        assert!(hasty.stands(Duration::ZERO) && hasty.acts());
        assert!(hasty.advance(Duration::ZERO, true, true).is_empty());
    }

    #[test]
    fn a_cell_that_did_not_change_for_an_hour_is_long_gone() {
        let mut a = presence("a");
        let gone = GONE_AFTER.max(Roster::default().worker_timeout * GONE_TIMEOUTS);
        let cells = |alive: u64| {
            vec![("a".into(), cell(1, true)), ("b".into(), cell(alive, true)), ("c".into(), cell(7, true))]
        };
        a.update(SECOND, cells(1));
        a.update(gone, cells(2));
        assert_eq!(a.long_gone(gone), [], "one second is missing");
        let after = gone + SECOND;
        assert_eq!(
            a.long_gone(after),
            [("c".to_owned(), Version("7".to_owned()))],
            "neither itself nor a live one"
        );
        a.update(after, vec![("b".into(), cell(3, true))]);
        assert!(
            a.long_gone(2 * after).iter().all(|(id, _)| id == "b"),
            "what was removed is not removed again"
        );
        let many = (0..1_000).map(|n| (format!("d{n}"), cell(1, true))).collect();
        a.update(after, many);
        assert_eq!(a.long_gone(3 * after).len(), GONE_AT_ONCE);
    }
}
