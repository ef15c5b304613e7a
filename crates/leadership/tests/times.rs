//! Candidates with different TTLs: the holder's TTL counts.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use orchestrix_engine::memory::MemoryRegister;
use orchestrix_engine::{Clock, Register, Set, SystemClock};
use orchestrix_leadership::{Candidate, Change, Elector, Leadership, Options, Roster, Stands, Step, Timing};

const SECOND: Duration = Duration::from_secs(1);

fn elector(name: &str, ttl: Duration) -> Elector {
    Elector::new(
        candidate(name),
        Timing { ttl, renew: ttl / 3, poll_interval: SECOND / 20, needs_proof: false },
    )
}

/// Does every step that an elector wants at `now`.
fn drive(elector: &mut Elector, register: &MemoryRegister, now: Duration) {
    loop {
        match elector.next(now) {
            Step::Wait(_) => return,
            Step::Read => elector.on_read(now, register.read("leader").unwrap()),
            Step::Set { seen, claim } => {
                let set = register.compare_and_set("leader", seen.as_ref(), &claim).unwrap();
                elector.on_set(now, Some(set));
            }
        }
    }
}

#[test]
fn a_candidate_waits_for_the_ttl_of_the_holder() {
    let register = MemoryRegister::default();
    let (mut holder, mut candidate) = (elector("holder", 30 * SECOND), elector("candidate", SECOND));
    drive(&mut holder, &register, Duration::ZERO);
    assert_eq!(holder.leads(Duration::ZERO), Some(1));
    // The holder is frozen. Its lease is not free before thirty seconds are over.
    for tenths in 0..=300 {
        let now = SECOND / 10 * tenths;
        drive(&mut candidate, &register, now);
        assert_eq!(candidate.leads(now), None, "at {now:?}");
    }
    let over = 31 * SECOND;
    assert_eq!(holder.leads(over), None, "it has stopped trusting itself");
    drive(&mut candidate, &register, over);
    assert_eq!(candidate.leads(over), Some(2));
}

#[test]
fn different_ttls_do_not_depose_a_healthy_leader() {
    for (leader_ttl, other_ttl) in [(3 * SECOND, 60 * SECOND), (60 * SECOND, 3 * SECOND)] {
        let register = MemoryRegister::default();
        let (mut leader, mut other) = (elector("leader", leader_ttl), elector("other", other_ttl));
        for tenths in 0..2_000 {
            let now = SECOND / 10 * tenths;
            drive(&mut leader, &register, now);
            drive(&mut other, &register, now);
            assert_eq!(leader.leads(now), Some(1), "at {now:?}");
        }
    }
}

#[test]
fn a_failed_acquisition_is_retried_after_a_pause() {
    let mut candidate = elector("candidate", SECOND);
    assert_eq!(candidate.next(SECOND), Step::Read);
    candidate.on_read(SECOND, None);
    assert!(matches!(candidate.next(SECOND), Step::Set { .. }));
    candidate.on_set(SECOND, None);
    let Step::Wait(until) = candidate.next(SECOND) else { panic!("it tries again without a pause") };
    assert!(until > SECOND);
    assert!(matches!(candidate.next(until), Step::Set { .. } | Step::Read));
}

#[test]
fn an_acquisition_after_resigning_is_released() {
    let register = MemoryRegister::default();
    let mut candidate = elector("candidate", SECOND);
    candidate.on_read(SECOND, None);
    let Step::Set { seen, claim } = candidate.next(SECOND) else { panic!("it is free") };
    register.compare_and_set("leader", seen.as_ref(), &claim).unwrap();
    candidate.on_set(SECOND, Some(Set::Unknown));
    candidate.set_stands(Stands::No);
    candidate.resign(SECOND);
    let Step::Wait(again) = candidate.next(SECOND) else { panic!("it asks again after a pause") };
    drive(&mut candidate, &register, again);
    assert!(candidate.is_settled() && candidate.leads(again).is_none());
    assert!(!register.read("leader").unwrap().unwrap().claim.held, "it is free");
    assert!(!candidate.take_changes().iter().any(|change| matches!(change, Change::Elected { .. })));
}

/// The system clock, which can be set ahead.
#[derive(Debug, Default)]
struct Ahead(AtomicU64);

impl Clock for Ahead {
    fn boot(&self) -> Duration {
        SystemClock.boot() + Duration::from_secs(self.0.load(SeqCst))
    }

    fn busy(&self) -> Duration {
        SystemClock.busy()
    }

    fn wall(&self) -> Duration {
        SystemClock.wall()
    }

    fn pause(&self, time: Duration) {
        SystemClock.pause(time);
    }
}

fn candidate(name: &str) -> Candidate {
    Candidate { name: name.into(), incarnation: name.into(), address: String::new() }
}

#[tokio::test]
async fn why_reports_a_long_cold_start() {
    let clock = Arc::new(Ahead::default());
    let roster = Roster { cold_start_observation_window: 60 * SECOND, ..Roster::default() };
    let register = Arc::new(MemoryRegister::default());
    let options = Options::roster(roster);
    let me = candidate("a");
    let own: Arc<dyn Clock> = clock.clone();
    let one = Leadership::start_with(register, "leader", me, options, Vec::new(), own).unwrap();
    assert_eq!(one.why(), ["no leader: the cold start is not over: still observing other nodes"]);
    clock.0.store(21, SeqCst);
    let why = one.why();
    assert!(why.iter().any(|line| line.contains("the cold start takes long")), "{why:?}");
    one.stop().await;
}

#[tokio::test]
async fn why_reports_frequent_leader_changes() {
    let register = Arc::new(MemoryRegister::default());
    let start = |name: &str, stands: bool| {
        let options = Options { enable_coordinator: stands, ..Options::first_come(10 * SECOND) };
        let register: Arc<dyn Register> = register.clone();
        Leadership::start(register, "leader", candidate(name), options, Vec::new()).unwrap()
    };
    let watcher = start("watcher", false);
    for n in 1..=6 {
        assert_eq!(watcher.why().len(), usize::from(n == 1), "five changes are still fine");
        let name = format!("n{n}");
        let one = start(&name, true);
        let mut events = watcher.events();
        while watcher.leader().is_none_or(|(leader, _)| leader.name != name) {
            // Any event is a reason to check again.
            let _ = tokio::time::timeout(SECOND / 100, events.recv()).await;
        }
        one.stop().await;
        if n == 6 {
            let why = watcher.why();
            assert!(why.iter().any(|line| line.contains("changed 6 times")), "{why:?}");
        }
    }
    watcher.stop().await;
}

#[tokio::test]
async fn why_reports_a_silent_leader_in_round_times() {
    let register = Arc::new(MemoryRegister::default());
    let clock = Arc::new(Ahead::default());
    let start = |name: &str, clock: Arc<dyn Clock>| {
        let options = Options { enable_coordinator: name == "a", ..Options::first_come(10 * SECOND) };
        let register: Arc<dyn Register> = register.clone();
        Leadership::start_with(register, "leader", candidate(name), options, Vec::new(), clock).unwrap()
    };
    let (watcher, leader) = (start("watcher", clock.clone()), start("a", Arc::new(SystemClock)));
    let mut events = watcher.events();
    while watcher.leader_age().is_none() {
        // Any event is a reason to check again.
        let _ = tokio::time::timeout(SECOND / 100, events.recv()).await;
    }
    assert!(watcher.why().is_empty(), "{:?}", watcher.why());
    clock.0.store(6, SeqCst);
    let why = watcher.why().join("");
    let expected =
        "s old, and it should renew every 3.3s: it may be gone, and is replaced when its 10s are over";
    assert!(why.starts_with("the last sign of the leader a is 6") && why.ends_with(expected), "{why}");
    leader.stop().await;
    watcher.stop().await;
}
