//! The rules of the bus, each with short histories that keep it and that break it, and random histories of the real rules.

mod histories;

use orchestrix_core::{
    BusResumed, Event, ExpiryReason, Extension, FormatRaised, LeaseExpired, LeaseExtended, LeaseId,
    LeaseOffered, LeaseReleased, LeasesStarted, Next, NodeDraining, NodeJoined, NodeLeft, NodeLeftReason,
    OwnerToken, OwnersAssigned, OwnersReleased, Position, Start, TaskCancelled, TaskCompleted, TaskFailed,
    TaskId, Timestamp,
};

use super::{KEPT, LEASE, NOW, Story, name};
use crate::check::model::walk;
use crate::coverage::Coverage;

/// How long an offer is kept.
const OFFERED: u64 = 15_151;
/// The offer that [`Story::with_bus`] ends with.
const OFFER: LeaseId = LeaseId(4);

impl Story {
    /// A journal in the format of the bus, with one offered task.
    fn with_bus() -> Self {
        let mut story = Self::new();
        story.add(NOW, FormatRaised { format: 2 });
        assert_eq!(story.offer(NOW, 2, 1), OFFER);
        story
    }

    fn offer(&mut self, at: u64, task: u64, attempt: u32) -> LeaseId {
        LeaseId(self.add(at, offered(at, task, attempt)).0)
    }

    fn start(&mut self, at: u64, lease: LeaseId) {
        self.add(at, LeasesStarted { started: vec![started(at, lease)] });
    }

    fn join(&mut self, node: &str, incarnation: &str) -> OwnerToken {
        OwnerToken(self.add(NOW, joined(node, incarnation)).0)
    }

    /// The first rule that the journal breaks.
    fn broken(&self) -> Option<&'static str> {
        walk(&self.0, &mut Coverage::default()).err().map(|violation| violation.invariant)
    }

    /// The same with one more event.
    fn broken_by(mut self, at: u64, event: impl Into<Event>) -> Option<&'static str> {
        assert_eq!(self.broken(), None, "what comes before is as it should be");
        self.add(at, event);
        self.broken()
    }
}

fn offered(at: u64, task: u64, attempt: u32) -> LeaseOffered {
    LeaseOffered { task: TaskId(task), attempt, length_ms: LEASE, expires_at: Timestamp(at + OFFERED) }
}

fn started(at: u64, lease: LeaseId) -> Start {
    Start { lease, worker: name("w"), expires_at: Timestamp(at + KEPT) }
}

fn joined(node: &str, incarnation: &str) -> NodeJoined {
    NodeJoined { node: node.to_owned(), incarnation: incarnation.to_owned(), address: String::new() }
}

fn assigned(node: OwnerToken, leases: &[LeaseId]) -> OwnersAssigned {
    OwnersAssigned { node, leases: leases.to_vec() }
}

fn given_away(node: OwnerToken, leases: &[LeaseId]) -> OwnersReleased {
    OwnersReleased { node, leases: leases.to_vec() }
}

/// An offer of a task goes back into line.
fn undelivered(at: u64, lease: LeaseId) -> LeaseReleased {
    LeaseReleased {
        task: TaskId(2),
        lease,
        charged: false,
        next: Next::Waiting { not_before: Timestamp(at) },
        undelivered: Some(true),
        worker: None,
    }
}

fn completed(lease: LeaseId, worker: Option<&str>) -> TaskCompleted {
    TaskCompleted { task: TaskId(2), lease, result: None, worker: worker.map(name) }
}

fn extended(lease: LeaseId, until: u64) -> LeaseExtended {
    let extended = vec![Extension { lease, expires_at: Timestamp(until) }];
    LeaseExtended { extended, progress: None, note: None }
}

fn silent(at: u64, lease: LeaseId) -> LeaseExpired {
    let next = Next::Waiting { not_before: Timestamp(at) };
    LeaseExpired { task: TaskId(2), lease, reason: ExpiryReason::Silent, next }
}

/// A bus with a node that owns the offer.
fn owned() -> (Story, OwnerToken) {
    let mut story = Story::with_bus();
    let node = story.join("a", "1");
    story.add(NOW, assigned(node, &[OFFER]));
    (story, node)
}

#[test]
fn a_life_over_the_bus_breaks_nothing() {
    let (mut story, a) = owned();
    let b = story.join("b", "1");
    story.start(NOW + 10, OFFER);
    story.add(NOW + 20, extended(OFFER, NOW + 20 + KEPT));
    story.add(NOW + 30, extended(OFFER, NOW + 20 + KEPT));
    story.add(NOW + 40, NodeDraining { node: a });
    story.add(NOW + 40, assigned(b, &[OFFER]));
    story.add(NOW + 50, NodeLeft { node: a, reason: NodeLeftReason::Stopped });
    story.add(NOW + 60, given_away(b, &[OFFER]));
    story.add(NOW + 70, BusResumed { silent_since: Timestamp(NOW + 60) });
    story.add(NOW + 80, completed(OFFER, None));
    assert_eq!(story.broken(), None);
}

#[test]
fn w15_an_event_of_the_bus_in_the_first_format() {
    let events: [fn() -> Event; 3] = [
        || offered(NOW, 2, 1).into(),
        || joined("a", "1").into(),
        || BusResumed { silent_since: Timestamp(NOW) }.into(),
    ];
    for event in events {
        assert_eq!(Story::new().broken_by(NOW, event()), Some("W15"));
        let mut raised = Story::new();
        raised.add(NOW, FormatRaised { format: 2 });
        assert_eq!(raised.broken_by(NOW, event()), None);
    }
}

#[test]
fn w15_a_report_that_starts_a_lease_in_the_first_format() {
    let mut story = Story::new();
    let lease = story.grant(NOW, 2, 1);
    assert_eq!(story.broken_by(NOW, completed(lease, Some("w"))), Some("W15"));
}

#[test]
fn w15_a_format_that_is_not_raised() {
    for format in [0, 1] {
        assert_eq!(Story::new().broken_by(NOW, FormatRaised { format }), Some("W15"));
    }
    for (format, broken) in [(1, Some("W15")), (2, Some("W15")), (3, None)] {
        assert_eq!(Story::with_bus().broken_by(NOW, FormatRaised { format }), broken);
    }
}

#[test]
fn o1_a_node_that_takes_what_it_owns() {
    let (mut story, a) = owned();
    let b = story.join("b", "1");
    assert_eq!(story.broken_by(NOW, assigned(a, &[OFFER])), Some("O1"));
    let (mut story, _) = owned();
    assert_eq!(story.join("b", "1"), b);
    assert_eq!(story.broken_by(NOW, assigned(b, &[OFFER])), None, "on behalf of the one before");
}

#[test]
fn o1_an_event_that_names_a_lease_twice_or_too_many_or_none() {
    let leases = |leases: &[LeaseId]| {
        let mut story = Story::with_bus();
        let node = story.join("a", "1");
        story.broken_by(NOW, assigned(node, leases))
    };
    assert_eq!(leases(&[OFFER]), None);
    assert_eq!(leases(&[OFFER, OFFER]), Some("O1"));
    assert_eq!(leases(&[]), Some("O1"));
    assert_eq!(leases(&(1..=501).map(LeaseId).collect::<Vec<_>>()), Some("O1"));
}

#[test]
fn o2_a_node_that_gives_away_what_is_not_its_own() {
    let (story, a) = owned();
    assert_eq!(story.broken_by(NOW, given_away(a, &[OFFER])), None);
    let (mut story, _) = owned();
    let b = story.join("b", "1");
    assert_eq!(story.broken_by(NOW, given_away(b, &[OFFER])), Some("O2"));
    let (mut story, a) = owned();
    story.add(NOW, given_away(a, &[OFFER]));
    assert_eq!(story.broken_by(NOW, given_away(a, &[OFFER])), Some("O2"));
}

#[test]
fn o2_what_a_process_owned_is_not_its_successors() {
    let (mut story, _) = owned();
    let again = story.join("a", "2");
    assert_eq!(story.broken_by(NOW, given_away(again, &[OFFER])), Some("O2"));
    let (mut story, _) = owned();
    let again = story.join("a", "2");
    assert_eq!(story.broken_by(NOW, assigned(again, &[OFFER])), None);
}

#[test]
fn o3_an_owner_of_what_is_no_lease_of_the_bus() {
    let node = |story: &mut Story| story.join("a", "1");
    let mut over = Story::with_bus();
    over.add(NOW, undelivered(NOW, OFFER));
    let of_over = node(&mut over);
    assert_eq!(over.broken_by(NOW, assigned(of_over, &[OFFER])), Some("O3"));
    let mut http = Story::new();
    http.add(NOW, FormatRaised { format: 2 });
    let lease = http.grant(NOW, 2, 1);
    let of_http = node(&mut http);
    assert_eq!(http.broken_by(NOW, assigned(of_http, &[lease])), Some("O3"));
    let (mut given, a) = owned();
    given.add(NOW, undelivered(NOW, OFFER));
    assert_eq!(given.broken_by(NOW, given_away(a, &[OFFER])), Some("O3"));
}

#[test]
fn o6_a_node_that_drains_takes_nothing_and_drains_once() {
    let drains = || {
        let (mut story, a) = owned();
        let b = story.join("b", "1");
        story.add(NOW, NodeDraining { node: b });
        (story, a, b)
    };
    let (story, _, b) = drains();
    assert_eq!(story.broken_by(NOW, assigned(b, &[OFFER])), Some("O6"));
    let (story, _, b) = drains();
    assert_eq!(story.broken_by(NOW, NodeDraining { node: b }), Some("O6"));
    let (story, a, _) = drains();
    assert_eq!(story.broken_by(NOW, given_away(a, &[OFFER])), None);
    let (mut story, ..) = drains();
    let again = story.join("b", "2");
    assert_eq!(story.broken_by(NOW, assigned(again, &[OFFER])), None, "its next process does not drain");
}

#[test]
fn o7_an_event_about_a_node_that_is_gone() {
    let events: [fn(OwnerToken) -> Event; 4] = [
        |node| NodeLeft { node, reason: NodeLeftReason::Silent }.into(),
        |node| NodeDraining { node }.into(),
        |node| assigned(node, &[OFFER]).into(),
        |node| given_away(node, &[OFFER]).into(),
    ];
    for event in events {
        let mut left = Story::with_bus();
        let node = left.join("a", "1");
        left.add(NOW, NodeLeft { node, reason: NodeLeftReason::Silent });
        assert_eq!(left.broken_by(NOW, event(node)), Some("O7"));
        let mut replaced = Story::with_bus();
        let node = replaced.join("a", "1");
        replaced.join("a", "2");
        assert_eq!(replaced.broken_by(NOW, event(node)), Some("O7"));
        assert_eq!(Story::with_bus().broken_by(NOW, event(OwnerToken(1))), Some("O7"), "it never was there");
    }
    let (story, node) = owned();
    assert_eq!(story.broken_by(NOW, NodeLeft { node, reason: NodeLeftReason::Stopped }), None);
}

#[test]
fn o7_a_process_that_is_there_and_joins_again() {
    let (story, _) = owned();
    assert_eq!(story.broken_by(NOW, joined("a", "1")), Some("O7"), "what it owns would be taken from it");
    let (story, _) = owned();
    let moved = NodeJoined { address: "elsewhere".to_owned(), ..joined("a", "1") };
    assert_eq!(story.broken_by(NOW, moved), None);
}

#[test]
fn t9_an_offer_that_counts() {
    for (attempt, broken) in [(0, Some("T9")), (1, None), (2, Some("T9"))] {
        let mut story = Story::new();
        story.add(NOW, FormatRaised { format: 2 });
        assert_eq!(story.broken_by(NOW, offered(NOW, 2, attempt)), broken);
    }
    let over = NOW + OFFERED;
    assert_eq!(Story::with_bus().broken_by(over, undelivered(over, OFFER)), None);
    let charged = LeaseReleased { charged: true, ..undelivered(over, OFFER) };
    assert_eq!(Story::with_bus().broken_by(over, charged), Some("T9"));
    let delivered = LeaseReleased { undelivered: None, ..undelivered(NOW, OFFER) };
    assert_eq!(Story::with_bus().broken_by(NOW, delivered.clone()), Some("T9"));
    let by_worker = LeaseReleased { worker: Some(name("w")), ..delivered };
    assert_eq!(Story::with_bus().broken_by(NOW, by_worker), None);
    assert_eq!(Story::with_bus().broken_by(over, silent(over, OFFER)), Some("T9"));
    assert_eq!(Story::with_bus().broken_by(NOW, completed(OFFER, None)), Some("T9"));
    assert_eq!(Story::with_bus().broken_by(NOW, completed(OFFER, Some("w"))), None);
}

#[test]
fn t9_an_attempt_after_an_offer_that_nobody_started() {
    for (attempt, broken) in [(1, None), (2, Some("T9"))] {
        let mut story = Story::with_bus();
        story.add(NOW, undelivered(NOW, OFFER));
        assert_eq!(story.broken_by(NOW, offered(NOW, 2, attempt)), broken);
    }
    for (attempt, broken) in [(1, Some("T9")), (2, None)] {
        let mut story = Story::with_bus();
        story.start(NOW, OFFER);
        story.add(NOW + KEPT, silent(NOW + KEPT, OFFER));
        assert_eq!(story.broken_by(NOW + KEPT, offered(NOW + KEPT, 2, attempt)), broken);
    }
}

#[test]
fn l1_a_second_holder_of_a_lease() {
    let start = || LeasesStarted { started: vec![started(NOW, OFFER)] };
    assert_eq!(Story::with_bus().broken_by(NOW, start()), None);
    let twice = || {
        let mut story = Story::with_bus();
        story.start(NOW, OFFER);
        story
    };
    assert_eq!(twice().broken_by(NOW, start()), Some("L1"));
    assert_eq!(twice().broken_by(NOW, completed(OFFER, Some("other"))), Some("L1"));
    assert_eq!(twice().broken_by(NOW, completed(OFFER, None)), None);
    let both = LeasesStarted { started: vec![started(NOW, OFFER), started(NOW, OFFER)] };
    assert_eq!(Story::with_bus().broken_by(NOW, both), Some("L1"));
    let mut http = Story::new();
    http.add(NOW, FormatRaised { format: 2 });
    let lease = http.grant(NOW, 2, 1);
    let start = LeasesStarted { started: vec![started(NOW, lease)] };
    assert_eq!(http.broken_by(NOW, start), Some("L1"));
}

#[test]
fn l1_an_offer_of_a_task_that_is_leased() {
    assert_eq!(Story::with_bus().broken_by(NOW, offered(NOW, 2, 1)), Some("L1"));
    let mut story = Story::new();
    story.add(NOW, FormatRaised { format: 2 });
    story.grant(NOW, 2, 1);
    assert_eq!(story.broken_by(NOW, offered(NOW, 2, 1)), Some("L1"));
    let mut story = Story::with_bus();
    story.grant(NOW, 2, 1);
    assert_eq!(story.broken(), Some("L1"));
}

#[test]
fn l3_an_offer_that_is_kept_too_short() {
    for (less, broken) in [(0, None), (1, Some("L3"))] {
        let mut story = Story::new();
        story.add(NOW, FormatRaised { format: 2 });
        let mut offer = offered(NOW, 2, 1);
        offer.expires_at.0 -= less;
        assert_eq!(story.broken_by(NOW, offer), broken);
    }
}

#[test]
fn l3_a_lease_that_is_kept_too_short_from_its_start() {
    for (less, broken) in [(0, None), (1, Some("L3"))] {
        let mut start = started(NOW + 5, OFFER);
        start.expires_at.0 -= less;
        assert_eq!(Story::with_bus().broken_by(NOW + 5, LeasesStarted { started: vec![start] }), broken);
    }
    for (less, broken) in [(0, None), (1, Some("L3"))] {
        let mut story = Story::with_bus();
        story.start(NOW + 5, OFFER);
        let at = NOW + 5 + KEPT - less;
        assert_eq!(story.broken_by(at, silent(at, OFFER)), broken);
    }
}

#[test]
fn l3_a_silence_of_the_bus_that_counts_or_has_not_begun() {
    let resumed = |since| BusResumed { silent_since: Timestamp(since) };
    assert_eq!(Story::with_bus().broken_by(NOW, resumed(NOW + 1)), Some("L3"));
    assert_eq!(Story::with_bus().broken_by(NOW, resumed(NOW)), None);
    for (less, broken) in [(0, None), (1, Some("L3"))] {
        let mut story = Story::with_bus();
        story.start(NOW, OFFER);
        story.add(NOW + 900, resumed(NOW + 100));
        let at = NOW + 900 + KEPT - less;
        assert_eq!(story.broken_by(at, silent(at, OFFER)), broken, "a lease lasts its length once more");
    }
    for (less, broken) in [(0, None), (1, Some("L3"))] {
        let mut story = Story::with_bus();
        story.start(NOW, OFFER);
        story.add(NOW + 900, resumed(NOW + 100));
        story.add(NOW + 1_500, resumed(NOW + 1_300));
        let at = NOW + 900 + KEPT + 200 - less;
        assert_eq!(story.broken_by(at, silent(at, OFFER)), broken, "and after that what was silent");
    }
}

#[test]
fn l4_a_report_or_a_start_under_what_is_over() {
    let over = NOW + OFFERED;
    let start = |at| LeasesStarted { started: vec![started(at, OFFER)] };
    assert_eq!(Story::with_bus().broken_by(over - 1, start(over - 1)), None);
    assert_eq!(Story::with_bus().broken_by(over, start(over)), Some("L4"));
    assert_eq!(Story::with_bus().broken_by(over, completed(OFFER, Some("w"))), Some("L4"));
    let released =
        |at| LeaseReleased { undelivered: None, worker: Some(name("w")), ..undelivered(at, OFFER) };
    assert_eq!(Story::with_bus().broken_by(over - 1, released(over - 1)), None);
    assert_eq!(Story::with_bus().broken_by(over, released(over)), Some("L4"));
}

#[test]
fn l6_an_offer_that_is_extended() {
    let until = NOW + OFFERED;
    assert_eq!(Story::with_bus().broken_by(NOW, extended(OFFER, until)), Some("L6"));
    let mut story = Story::with_bus();
    story.start(NOW, OFFER);
    assert_eq!(story.broken_by(NOW, extended(OFFER, NOW + KEPT)), None);
}

#[test]
fn tl1_an_offer_that_ends_long_after_its_time() {
    let at = NOW + OFFERED + 9_000;
    let mut story = Story::with_bus();
    story.add(at, undelivered(at, OFFER));
    assert_eq!(story.broken(), None);
    story.0.healed = Some(Position(1));
    assert_eq!(story.broken(), Some("TL1"));
}

#[test]
fn t3_a_cancelled_offer_ends_at_once_and_a_started_one_does_not() {
    let cancelled =
        || TaskCancelled { task: TaskId(2), reason: orchestrix_core::CancelReason::Requested, actor: None };
    assert_eq!(Story::with_bus().broken_by(NOW, cancelled()), None);
    let mut story = Story::with_bus();
    story.start(NOW, OFFER);
    assert_eq!(story.broken_by(NOW, cancelled()), Some("T3"));
}

#[test]
fn t10_a_failure_that_starts_its_lease_waits_as_agreed() {
    for (waits, broken) in [(0, Some("T10")), (1_000, None)] {
        let next = Next::Waiting { not_before: Timestamp(NOW + waits) };
        let worker = Some(name("w"));
        let failed = TaskFailed { task: TaskId(2), lease: OFFER, error: String::new(), next, worker };
        assert_eq!(Story::with_bus().broken_by(NOW, failed), broken);
    }
}
