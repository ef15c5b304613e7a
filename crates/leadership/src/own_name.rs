//! Whether another live node has the same name: the rules of a node's own presence cell, without any I/O.
//!
//! A node that starts takes over the cell of its name from an earlier process, which may have ended or may still run. One
//! that still runs takes the cell back with its next heartbeat. The later process sees this and gives up. So a node never
//! waits until the cell of an earlier process expires, and the clocks of two machines are never compared.
//!
//! **Invariant:** of two live nodes with one name exactly one gives up: the later one; or the earlier, if it was
//! silent for so long that its name was free.

use std::time::Duration;

use orchestrix_engine::{Cell, Version};

use crate::election::{Candidate, Peer};

/// What a candidate knows about the cell of its name.
#[derive(Debug)]
pub(crate) struct OwnName {
    me: Candidate,
    /// How long a cell that does not change keeps its name.
    timeout: Duration,
    /// The last known version of the cell.
    version: Option<Version>,
    /// When the last successful write was requested.
    written_at: Option<Duration>,
    /// The process whose cell was taken over.
    before: Option<Before>,
}

#[derive(Debug)]
struct Before {
    incarnation: String,
    /// What it had written. A listing may be old: only another write shows that it is alive.
    version: Version,
    /// It has written again by then, or has lost its name.
    until: Duration,
}

impl OwnName {
    pub(crate) fn new(me: Candidate, timeout: Duration) -> Self {
        Self { me, timeout, version: None, written_at: None, before: None }
    }

    /// The version that a write must replace.
    pub(crate) fn version(&self) -> Option<&Version> {
        self.version.as_ref()
    }

    /// A write that was requested at `asked` has succeeded.
    pub(crate) fn written(&mut self, asked: Duration, version: Version) {
        (self.version, self.written_at) = (Some(version), Some(asked));
    }

    /// A write at `now` met this cell. Returns who has the name, if this node must give up; otherwise the cell may be
    /// taken over.
    pub(crate) fn met(&mut self, now: Duration, cell: Option<Cell>) -> Option<Candidate> {
        self.version = cell.as_ref().map(|cell| cell.version.clone());
        let cell = cell?;
        let other = self.other(&cell)?;
        match self.written_at {
            None => {
                // Longer than a cell keeps its name, by the longer of both settings: a live process has written
                // again by then.
                let until = now + 2 * self.timeout.max(Duration::from_millis(cell.claim.ttl_ms));
                self.before = Some(Before { incarnation: other.incarnation, version: cell.version, until });
                None
            }
            Some(written) if now >= written + self.timeout => Some(other),
            Some(_) => self.seen(now, &cell),
        }
    }

    /// The cell was seen in a listing. Returns who has the name, if this node must give up.
    pub(crate) fn seen(&self, now: Duration, cell: &Cell) -> Option<Candidate> {
        let before = self.before.as_ref().filter(|before| self.written_at.is_some() && now < before.until)?;
        let is_alive =
            |other: &Candidate| other.incarnation == before.incarnation && cell.version != before.version;
        self.other(cell).filter(is_alive)
    }

    /// Whether a cell was written by another process of this name.
    pub(crate) fn is_of_another(&self, cell: Option<&Cell>) -> bool {
        cell.is_some_and(|cell| self.other(cell).is_some())
    }

    fn other(&self, cell: &Cell) -> Option<Candidate> {
        let peer: Peer = serde_json::from_slice(&cell.claim.value).ok().filter(|_| cell.claim.held)?;
        Some(peer.candidate).filter(|other| other.incarnation != self.me.incarnation)
    }
}

#[cfg(test)]
mod tests {
    use orchestrix_engine::Claim;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const TIMEOUT: Duration = Duration::from_secs(30);

    fn candidate(incarnation: &str) -> Candidate {
        Candidate { name: "a".into(), incarnation: incarnation.into(), address: "http://a".into() }
    }

    fn cell(incarnation: &str, held: bool, version: u64) -> Option<Cell> {
        let (candidate, note, seen) = (candidate(incarnation), String::new(), Duration::ZERO);
        let peer = Peer { candidate, note, present: held, seen };
        let value = serde_json::to_vec(&peer).unwrap();
        Some(Cell { version: version_of(version), claim: Claim { held, value, ..Claim::default() } })
    }

    fn version_of(number: u64) -> Version {
        Version(number.to_string())
    }

    fn name(incarnation: &str) -> OwnName {
        OwnName::new(candidate(incarnation), TIMEOUT)
    }

    #[test]
    fn of_two_with_one_name_the_later_gives_up() {
        let (mut early, mut late) = (name("1"), name("2"));
        early.written(SECOND, version_of(1));
        assert_eq!(late.met(5 * SECOND, cell("1", true, 1)), None, "its process may have ended");
        late.written(5 * SECOND, version_of(2));
        assert_eq!(late.seen(6 * SECOND, &cell("2", true, 2).unwrap()), None);
        assert_eq!(
            late.seen(6 * SECOND, &cell("1", true, 1).unwrap()),
            None,
            "an old listing proves nothing"
        );
        assert_eq!(early.met(11 * SECOND, cell("2", true, 2)), None);
        assert_eq!(early.version(), Some(&version_of(2)), "which it replaces");
        early.written(11 * SECOND, version_of(3));
        let back = cell("1", true, 3);
        assert_eq!(late.seen(12 * SECOND, back.as_ref().unwrap()), Some(candidate("1")));
        assert_eq!(late.met(15 * SECOND, back), Some(candidate("1")));
    }

    #[test]
    fn the_cell_of_an_ended_process_is_taken_over() {
        let mut next = name("2");
        assert_eq!(next.met(SECOND, cell("1", true, 1)), None);
        next.written(SECOND, version_of(2));
        // Its own write, whose answer was lost.
        assert_eq!(next.met(11 * SECOND, cell("2", true, 3)), None);
        assert_eq!(next.version(), Some(&version_of(3)));
        assert_eq!(name("2").met(SECOND, cell("1", false, 1)), None);
        assert_eq!(name("2").met(SECOND, None), None);
    }

    #[test]
    fn a_node_silent_for_its_timeout_loses_its_name() {
        for (silent, given_up) in [(TIMEOUT - SECOND, None), (TIMEOUT, Some(candidate("2")))] {
            let mut early = name("1");
            early.written(SECOND, version_of(1));
            assert_eq!(early.met(SECOND + silent, cell("2", true, 2)), given_up);
        }
        let mut late = name("2");
        late.met(SECOND, cell("1", true, 1));
        late.written(SECOND, version_of(2));
        let back = cell("1", true, 3).unwrap();
        assert!(late.seen(SECOND + 2 * TIMEOUT - SECOND, &back).is_some());
        assert_eq!(late.seen(SECOND + 2 * TIMEOUT, &back), None, "that one gives up by itself");
    }

    #[test]
    fn a_node_with_a_longer_timeout_keeps_its_name() {
        let mut quick = OwnName::new(candidate("2"), 2 * SECOND);
        let mut slow = cell("1", true, 1).unwrap();
        slow.claim.ttl_ms = 30_000;
        assert_eq!(quick.met(SECOND, Some(slow)), None);
        quick.written(SECOND, version_of(2));
        assert_eq!(quick.seen(11 * SECOND, &cell("1", true, 3).unwrap()), Some(candidate("1")));
    }

    #[test]
    fn of_two_that_start_at_once_the_first_to_write_stays() {
        let (mut one, mut two) = (name("1"), name("2"));
        assert_eq!(one.met(SECOND, cell("0", true, 1)), None);
        assert_eq!(two.met(SECOND, cell("0", true, 1)), None);
        one.written(SECOND, version_of(2));
        assert_eq!(two.met(SECOND, cell("1", true, 2)), None);
        two.written(SECOND, version_of(3));
        assert_eq!(one.met(11 * SECOND, cell("2", true, 3)), None);
        one.written(11 * SECOND, version_of(4));
        assert_eq!(two.met(11 * SECOND, cell("1", true, 4)), Some(candidate("1")));
    }
}
