//! Who is present, who stands, and how a cold start goes: the rules of the roster, without any I/O.
//!
//! Presence is a cell per candidate that changes with every heartbeat. Whoever has not seen it change for
//! the candidate's own `worker_timeout`, which stands in the cell, takes the candidate for gone. The lowest id of those present stands; whether it
//! gets the office is for the register to say.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use orchestrix_engine::{Cell, Version};

use crate::election::{Candidate, Peer};
use crate::event::{LeadershipEvent, Phase};
use crate::options::Roster;

/// A candidate that was not seen to change for so long, and for so many times as long as anybody is waited for, is long
/// gone: its cell is removed. If it comes back, it writes a new one with its next heartbeat.
const GONE_AFTER: Duration = Duration::from_secs(3600);
const GONE_TIMEOUTS: u32 = 100;
/// Cells removed with one listing. Bounds how late the listing is.
const GONE_AT_ONCE: usize = 20;

/// What one candidate knows of the others.
#[derive(Clone, Debug)]
pub struct Presence {
    me: String,
    options: Roster,
    seen: BTreeMap<String, Seen>,
    phase: Phase,
    /// When the phase began.
    since: Option<Duration>,
}

#[derive(Clone, Debug)]
struct Seen {
    version: Version,
    /// When it was first seen so.
    at: Duration,
    /// How long it counts, by the setting of the candidate itself.
    timeout: Duration,
    present: bool,
    peer: Option<Peer>,
}

impl Seen {
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

    /// Takes in what was listed: each candidate by its id, and whether it has left.
    pub fn update(&mut self, now: Duration, cells: Vec<(String, Cell)>) {
        // Listings may be stale: who is present stays until its time is over.
        let listed: BTreeSet<&String> = cells.iter().map(|(id, _)| id).collect();
        self.seen.retain(|id, seen| listed.contains(id) || now < seen.at + seen.timeout);
        for (id, cell) in cells {
            let known = self.seen.get(&id).filter(|seen| seen.version == cell.version);
            let at = known.map_or(now, |seen| seen.at);
            let peer = serde_json::from_slice(&cell.claim.value).ok();
            let timeout = match cell.claim.ttl_ms {
                0 => self.options.worker_timeout,
                said => Duration::from_millis(said),
            };
            let (version, present) = (cell.version, cell.claim.held);
            self.seen.insert(id, Seen { version, at, timeout, present, peer });
        }
    }

    /// The ids of those who are present, lowest first; this one always is.
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

    /// Who has the lowest id of those present, if it was seen.
    #[must_use]
    pub fn lowest(&self, now: Duration) -> Option<Candidate> {
        self.candidate(self.present(now).first()?, now)
    }

    /// Somebody who is present.
    #[must_use]
    pub fn candidate(&self, id: &str, now: Duration) -> Option<Candidate> {
        let seen = self.seen.get(id).filter(|seen| seen.is_present(now))?;
        seen.peer.as_ref().map(|peer| peer.candidate.clone())
    }

    /// Some of those that are long gone, with the last that was seen of each.
    #[must_use]
    pub fn long_gone(&self, now: Duration) -> Vec<(String, Version)> {
        let after = GONE_AFTER.max(self.options.worker_timeout.saturating_mul(GONE_TIMEOUTS));
        let gone = self.seen.iter().filter(|(id, seen)| **id != self.me && now >= seen.at + after);
        gone.take(GONE_AT_ONCE).map(|(id, seen)| (id.clone(), seen.version.clone())).collect()
    }

    /// Everybody who was seen and is not long gone, by id.
    #[must_use]
    pub fn peers(&self, now: Duration) -> Vec<Peer> {
        let peer = |seen: &Seen| {
            let present = seen.is_present(now);
            seen.peer.clone().map(|peer| Peer { present, seen: seen.at, ..peer })
        };
        self.seen.values().filter_map(peer).collect()
    }

    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether this one should stand: the cold start is over, and nobody present has a lower id.
    #[must_use]
    pub fn stands(&self, now: Duration) -> bool {
        self.phase != Phase::Observing && self.present(now).first() == Some(&self.me)
    }

    /// Whether this one, once elected, may act.
    #[must_use]
    pub fn acts(&self) -> bool {
        matches!(self.phase, Phase::Ready)
    }

    /// Goes through the phases of the cold start; `leads` is whether this one was elected, `led` whether anybody was.
    pub fn advance(&mut self, now: Duration, leads: bool, led: bool) -> Vec<LeadershipEvent> {
        let mut news = Vec::new();
        loop {
            let since = *self.since.get_or_insert(now);
            let passed = now.saturating_sub(since);
            let next = match self.phase {
                Phase::Observing if passed >= self.options.cold_start_observation_window => Phase::Election,
                Phase::Election if leads => Phase::Preparation,
                // Somebody else was elected: there is nothing to prepare.
                Phase::Election if led => Phase::Ready,
                Phase::Preparation if passed >= self.options.cold_start_preparation_delay || !leads => {
                    Phase::Ready
                }
                Phase::Observing | Phase::Election | Phase::Preparation | Phase::Ready => return news,
            };
            let duration = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
            news.push(LeadershipEvent::ColdStartPhaseChanged { phase: next, duration });
            (self.phase, self.since) = (next, Some(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use orchestrix_engine::Claim;

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
        let news = b.advance(16 * SECOND, false, false);
        assert_eq!(
            news,
            [LeadershipEvent::ColdStartPhaseChanged { phase: Phase::Election, duration: 15_000 }]
        );
        assert!(!b.stands(16 * SECOND), "a is present");
        // a shows nothing any more.
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
        assert!(!a.stands(14 * SECOND), "nobody stands while it observes");
        a.advance(15 * SECOND, false, false);
        assert!(a.stands(15 * SECOND) && !a.acts());
        let news = a.advance(16 * SECOND, true, true);
        assert_eq!(
            news,
            [LeadershipEvent::ColdStartPhaseChanged { phase: Phase::Preparation, duration: 1_000 }]
        );
        assert!(a.advance(20 * SECOND, true, true).is_empty() && !a.acts());
        let news = a.advance(21 * SECOND, true, true);
        assert_eq!(news, [LeadershipEvent::ColdStartPhaseChanged { phase: Phase::Ready, duration: 5_000 }]);
        assert!(a.acts());
    }

    #[test]
    fn who_was_not_elected_is_ready_at_once_and_a_skipped_start_has_no_phases() {
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
            "not itself, and not who lives"
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
