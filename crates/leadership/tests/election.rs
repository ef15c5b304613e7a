//! Candidates with threads and clocks of this machine, on a register in memory.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use orchestrix_engine::memory::MemoryRegister;
use orchestrix_engine::{Cell, Claim, Clock, Error, Register, Set, SystemClock, Version};
use orchestrix_leadership::{
    Candidate, Duty, EnsureError, Leadership, LeadershipEvent, Options, Phase, Reason, Roster, Term, Work,
    worker_id,
};

const TTL: Duration = Duration::from_millis(600);

fn candidate(name: &str) -> Candidate {
    Candidate { name: name.to_owned(), incarnation: "1".to_owned(), address: format!("http://{name}") }
}

fn start(register: &MemoryRegister, name: &str, duties: Vec<Arc<dyn Duty>>) -> Leadership {
    let register: Arc<dyn Register> = Arc::new(register.clone());
    Leadership::start(register, "leader", candidate(name), Options::first_come(TTL), duties).unwrap()
}

async fn eventually(what: &str, mut look: impl FnMut() -> bool) {
    let began = Instant::now();
    while !look() {
        assert!(began.elapsed() < Duration::from_secs(20), "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Counts its calls, and keeps the last token.
#[derive(Default)]
struct Counting {
    elected: AtomicU64,
    ticks: AtomicU64,
    deposed: AtomicU64,
    epoch: AtomicU64,
    panics: bool,
}

impl Duty for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }

    fn tick_every(&self) -> Duration {
        Duration::from_millis(5)
    }

    fn on_elected<'a>(&'a self, term: &'a Term) -> Work<'a> {
        self.elected.fetch_add(1, SeqCst);
        self.epoch.store(term.epoch, SeqCst);
        Box::pin(std::future::ready(()))
    }

    fn tick<'a>(&'a self, term: &'a Term) -> Work<'a> {
        assert!(!term.over.is_cancelled(), "nothing is begun after the end of a term");
        let count = self.ticks.fetch_add(1, SeqCst);
        Box::pin(
            async move { assert!(!(self.panics && count.is_multiple_of(2)), "every second tick goes wrong") },
        )
    }

    fn on_deposed(&self, _: Reason) -> Work<'_> {
        self.deposed.fetch_add(1, SeqCst);
        Box::pin(std::future::ready(()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_candidate_takes_over_when_the_leader_stops() {
    let register = MemoryRegister::default();
    let duties: Vec<Arc<Counting>> = (0..3).map(|_| Arc::default()).collect();
    let all: Vec<Leadership> = ["a", "b", "c"]
        .into_iter()
        .zip(&duties)
        .map(|(name, duty)| start(&register, name, vec![Arc::<Counting>::clone(duty)]))
        .collect();
    let mut last = 0;
    let mut ended = Vec::new();
    for left in (1..=3).rev() {
        let leaders = || all.iter().filter(|one| one.is_leader()).count();
        eventually("one leads", || leaders() == 1).await;
        let leader = all.iter().position(Leadership::is_leader).unwrap();
        let token = all[leader].token().unwrap();
        assert!(token > last, "tokens grow");
        last = token;
        eventually("its duty ticks", || duties[leader].ticks.load(SeqCst) > 3).await;
        assert_eq!(duties[leader].epoch.load(SeqCst), token);
        eventually("the others know", || {
            all.iter().filter(|one| one.leader().is_some_and(|(_, seen)| seen == token)).count() >= left
        })
        .await;
        all[leader].stop().await;
        let stopped = Instant::now();
        assert!(!all[leader].is_leader());
        if left > 1 {
            eventually("another leads", || leaders() == 1).await;
            assert!(
                stopped.elapsed() < Duration::from_millis(500),
                "{:?}, and the leader lease lasts {TTL:?}",
                stopped.elapsed()
            );
        }
        eventually("the duty heard of it", || duties[leader].deposed.load(SeqCst) == 1).await;
        // A tick that was under way has ended before the duty is told.
        ended.push((leader, duties[leader].ticks.load(SeqCst)));
    }
    for (leader, ticks) in ended {
        assert_eq!(duties[leader].ticks.load(SeqCst), ticks, "it does nothing after its term");
    }
    assert!(duties.iter().all(|duty| duty.elected.load(SeqCst) == 1));
}

/// A register whose calls block while `is_stuck` is set.
#[derive(Clone, Default)]
struct Stuck {
    register: MemoryRegister,
    is_stuck: Arc<AtomicBool>,
}

impl Stuck {
    fn wait(&self) {
        while self.is_stuck.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Register for Stuck {
    fn read(&self, key: &str) -> Result<Option<Cell>, Error> {
        self.wait();
        self.register.read(key)
    }

    fn compare_and_set(&self, key: &str, seen: Option<&Version>, claim: &Claim) -> Result<Set, Error> {
        self.wait();
        self.register.compare_and_set(key, seen, claim)
    }

    fn remove(&self, key: &str, seen: &Version) -> Result<(), Error> {
        self.wait();
        self.register.remove(key, seen)
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, Cell)>, Error> {
        self.wait();
        self.register.list(prefix)
    }

    fn poll_interval(&self) -> Duration {
        self.register.poll_interval()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_off_leader_stops_before_another_begins() {
    let stuck = Stuck::default();
    let duty = Arc::new(Counting::default());
    let first = Leadership::start(
        Arc::new(stuck.clone()),
        "leader",
        candidate("a"),
        Options::first_come(TTL),
        vec![Arc::<Counting>::clone(&duty)],
    )
    .unwrap();
    eventually("it leads", || first.is_leader()).await;
    let second = start(&stuck.register, "b", Vec::new());
    stuck.is_stuck.store(true, SeqCst);
    // At no time do both lead.
    eventually("the second leads", || {
        let second = second.is_leader();
        assert!(!(second && first.is_leader()), "two lead at once");
        second
    })
    .await;
    let ticks = duty.ticks.load(SeqCst);
    assert!(second.token() > Some(1));
    eventually("the duty is over", || duty.ticks.load(SeqCst) == ticks).await;
    stuck.is_stuck.store(false, SeqCst);
    eventually("the first has heard of it", || first.leader().is_some_and(|(leader, _)| leader.name == "b"))
        .await;
    eventually("its duty was deposed", || duty.deposed.load(SeqCst) == 1).await;
    assert!(second.is_leader());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_leader_is_reported_before_its_lease_expires() {
    let stuck = Stuck::default();
    let options = |stands| Options { enable_coordinator: stands, ..Options::first_come(5 * TTL) };
    let begin = |register: Arc<dyn Register>, name: &str, stands: bool| {
        Leadership::start(register, "leader", candidate(name), options(stands), Vec::new()).unwrap()
    };
    let leader = begin(Arc::new(stuck.clone()), "a", true);
    eventually("it leads", || leader.is_leader()).await;
    assert_eq!(leader.leader_age(), Some(Duration::ZERO), "a leader is never late for itself");
    let watcher = begin(Arc::new(stuck.register.clone()), "b", false);
    eventually("the other sees it", || watcher.leader_age().is_some()).await;
    let (mut before, mut renewals) = (Duration::ZERO, 0);
    eventually("it renews", || {
        let age = watcher.leader_age().unwrap();
        assert_eq!(watcher.why(), [""; 0], "its last sign is {age:?} old");
        renewals += u32::from(age < before);
        before = age;
        renewals == 2
    })
    .await;
    stuck.is_stuck.store(true, SeqCst);
    eventually("its silence is known", || {
        let why = watcher.why();
        let is_known = why.iter().any(|why| why.starts_with("the last sign of the leader a is "));
        assert!(is_known || watcher.leader().is_some(), "its time was over before anybody knew: {why:?}");
        is_known
    })
    .await;
    assert!(watcher.leader_age().unwrap() > options(true).leader_renew, "it is late");
    stuck.is_stuck.store(false, SeqCst);
    eventually("it is heard of again", || watcher.why().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duty_that_panics_goes_on_and_stops_no_other() {
    let register = MemoryRegister::default();
    let (bad, good) =
        (Arc::new(Counting { panics: true, ..Counting::default() }), Arc::new(Counting::default()));
    let one = start(&register, "a", vec![Arc::<Counting>::clone(&bad), Arc::<Counting>::clone(&good)]);
    eventually("both tick", || bad.ticks.load(SeqCst) > 4 && good.ticks.load(SeqCst) > 4).await;
    assert!(one.is_leader());
    one.stop().await;
}

fn quick() -> Roster {
    Roster {
        heartbeat_interval: Duration::from_millis(100),
        worker_timeout: Duration::from_millis(400),
        min_epoch_duration: Duration::from_millis(200),
        max_epoch_duration: Duration::from_millis(600),
        cold_start_observation_window: Duration::from_millis(300),
        cold_start_preparation_delay: Duration::from_millis(100),
        skip_cold_start: false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_roster_the_lowest_id_leads_after_each_mandate() {
    let register = MemoryRegister::default();
    let start = |name: &str| {
        let register: Arc<dyn Register> = Arc::new(register.clone());
        Leadership::start(register, "leader", candidate(name), Options::roster(quick()), Vec::new()).unwrap()
    };
    let b = start("b");
    let mut events = b.events();
    let c = start("c");
    eventually("b leads, the lowest of those there", || b.is_leader()).await;
    assert!(!c.is_leader());
    assert_eq!(b.ensure_coordinator(false, Some("x")).await, Err(EnsureError::Absent("x".to_owned())));
    assert_eq!(c.ensure_coordinator(true, Some("c")).await, Err(EnsureError::NotLeader("b".to_owned())));
    let a = start("a");
    eventually("a leads after the mandate of b", || a.is_leader()).await;
    assert!(!b.is_leader());
    let mut names = Vec::new();
    while let Ok(one) = events.try_recv() {
        names.push(one);
    }
    let phases: Vec<Phase> = names
        .iter()
        .filter_map(|event| match event {
            LeadershipEvent::ColdStartPhaseChanged { phase, .. } => Some(*phase),
            LeadershipEvent::WorkerHeartbeat { .. }
            | LeadershipEvent::CoordinatorElected { .. }
            | LeadershipEvent::CoordinatorPromoted { .. }
            | LeadershipEvent::CoordinatorDemoted { .. }
            | LeadershipEvent::CoordinatorEpochRenewed { .. } => None,
        })
        .collect();
    assert_eq!(phases, [Phase::Election, Phase::Preparation, Phase::Ready]);
    let has = |name: &str| names.iter().any(|event| event.name() == name);
    for name in [
        "coord:worker-heartbeat",
        "coord:coordinator-elected",
        "coord:coordinator-promoted",
        "coord:coordinator-demoted",
    ] {
        assert!(has(name), "{name} is not in {names:?}");
    }
    // A transfer is refused while the mandate is young, unless forced.
    assert_eq!(a.ensure_coordinator(false, Some("c")).await, Err(EnsureError::Mandate));
    a.ensure_coordinator(true, Some("c")).await.unwrap();
    eventually("c leads, as requested", || c.is_leader()).await;
    for one in [a, b, c] {
        one.stop().await;
    }
}

#[tokio::test]
async fn why_names_a_candidate_that_may_not_stand() {
    let register: Arc<dyn Register> = Arc::new(MemoryRegister::default());
    let options = Options { enable_coordinator: false, ..Options::first_come(TTL) };
    let one = Leadership::start(register, "leader", candidate("a"), options, Vec::new()).unwrap();
    eventually("it is present", || one.status().present == ["a"]).await;
    assert_eq!(one.why(), ["no leader: this node does not stand: enable_coordinator is false"]);
    one.stop().await;
}

#[test]
fn a_worker_id_has_the_documented_form() {
    let clock = orchestrix_engine::SystemClock;
    let (first, second) = (worker_id(&clock), worker_id(&clock));
    assert_ne!(first, second);
    let parts: Vec<&str> = first.split('-').collect();
    assert_eq!((parts.len(), parts[0], parts[2].len()), (3, "worker", 7), "{first}");
    assert!(parts[1].parse::<u64>().unwrap() > 1_700_000_000_000);
    assert!(parts[2].bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase()));
}

/// A register that checks whether a candidate still counts itself as leader when it releases the lease.
struct Watching {
    inner: MemoryRegister,
    candidate: std::sync::OnceLock<Leadership>,
    given_back: AtomicU64,
    trusted: AtomicBool,
}

impl Register for Watching {
    fn read(&self, key: &str) -> Result<Option<Cell>, Error> {
        self.inner.read(key)
    }

    fn compare_and_set(&self, key: &str, seen: Option<&Version>, claim: &Claim) -> Result<Set, Error> {
        let others = key == "leader" && (!claim.held || claim.owner != "a");
        if let Some(candidate) = self.candidate.get().filter(|_| others) {
            self.given_back.fetch_add(1, SeqCst);
            self.trusted.fetch_or(candidate.is_leader(), SeqCst);
        }
        self.inner.compare_and_set(key, seen, claim)
    }

    fn remove(&self, key: &str, seen: &Version) -> Result<(), Error> {
        self.inner.remove(key, seen)
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, Cell)>, Error> {
        self.inner.list(prefix)
    }

    fn poll_interval(&self) -> Duration {
        self.inner.poll_interval()
    }
}

#[tokio::test]
async fn a_leader_has_stopped_when_it_releases_the_lease() {
    let register = Arc::new(Watching {
        inner: MemoryRegister::default(),
        candidate: std::sync::OnceLock::new(),
        given_back: AtomicU64::new(0),
        trusted: AtomicBool::new(false),
    });
    let shared: Arc<dyn Register> = register.clone();
    let one =
        Leadership::start(shared, "leader", candidate("a"), Options::first_come(TTL), Vec::new()).unwrap();
    register.candidate.set(one.clone()).unwrap();
    for times in 1..=3 {
        eventually("it leads", || one.is_leader()).await;
        one.ensure_coordinator(true, None).await.unwrap();
        eventually("it releases the lease", || register.given_back.load(SeqCst) == times).await;
    }
    eventually("it leads", || one.is_leader()).await;
    one.let_go(one.token().unwrap());
    eventually("it lets go", || register.given_back.load(SeqCst) == 4).await;
    one.stop().await;
    assert!(!register.trusted.load(SeqCst), "it was still the leader when others could have been");
}

/// A register that stops answering.
struct Silent {
    inner: MemoryRegister,
    silent: AtomicBool,
}

impl Silent {
    fn answer<T>(&self, answer: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        if !self.silent.load(SeqCst) {
            return answer();
        }
        let source = orchestrix_engine::Cause::Remote { place: "nowhere".into(), what: "no answer".into() };
        Err(Error { operation: "ask".into(), retryable: true, source })
    }
}

impl Register for Silent {
    fn read(&self, key: &str) -> Result<Option<Cell>, Error> {
        self.answer(|| self.inner.read(key))
    }

    fn compare_and_set(&self, key: &str, seen: Option<&Version>, claim: &Claim) -> Result<Set, Error> {
        let set = self.answer(|| self.inner.compare_and_set(key, seen, claim));
        // The outcome of a write is unknown when no answer comes.
        set.or(Ok(Set::Unknown))
    }

    fn remove(&self, key: &str, seen: &Version) -> Result<(), Error> {
        self.answer(|| self.inner.remove(key, seen))
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, Cell)>, Error> {
        self.answer(|| self.inner.list(prefix))
    }

    fn poll_interval(&self) -> Duration {
        self.inner.poll_interval()
    }
}

/// The system clock, which counts how often it is read.
#[derive(Debug, Default)]
struct Counted(AtomicU64);

impl Clock for Counted {
    fn boot(&self) -> Duration {
        self.0.fetch_add(1, SeqCst);
        SystemClock.boot()
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

#[tokio::test]
async fn a_stop_does_not_wait_for_a_silent_register() {
    let register = Arc::new(Silent { inner: MemoryRegister::default(), silent: AtomicBool::new(false) });
    let (shared, clock): (Arc<dyn Register>, _) = (register.clone(), Arc::new(Counted::default()));
    let options = Options::first_come(TTL);
    let one =
        Leadership::start_with(shared, "leader", candidate("a"), options, Vec::new(), clock.clone()).unwrap();
    eventually("it leads", || one.is_leader()).await;
    register.silent.store(true, SeqCst);
    let looked = clock.0.load(SeqCst);
    let stopped = tokio::time::timeout(Duration::from_secs(20), one.stop()).await;
    assert!(stopped.is_ok(), "it should have stopped waiting");
    assert!(!one.is_leader());
    let looked = clock.0.load(SeqCst) - looked;
    assert!(looked < 1_000, "it read its clock {looked} times while it waited");
    eventually("its thread has ended, too", || Arc::strong_count(&register) == 1).await;
}

/// Starts a candidate that counts how often it reads its clock.
fn counted(register: &MemoryRegister, options: Options) -> (Leadership, Arc<Counted>) {
    let (register, clock): (Arc<dyn Register>, _) =
        (Arc::new(register.clone()), Arc::new(Counted::default()));
    let me = candidate("a");
    let one = Leadership::start_with(register, "leader", me, options, Vec::new(), clock.clone()).unwrap();
    (one, clock)
}

async fn heartbeats(of: &Leadership, count: u32) {
    let (mut events, mut heard) = (of.events(), 0);
    while heard < count {
        heard += u32::from(matches!(events.recv().await.unwrap(), LeadershipEvent::WorkerHeartbeat { .. }));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_leader_still_waits_between_its_steps() {
    for options in [Options::first_come(TTL), Options::roster(quick())] {
        let (one, clock) = counted(&MemoryRegister::default(), options);
        eventually("it leads", || one.is_leader()).await;
        // Past all times that began with its election, and more.
        heartbeats(&one, 8).await;
        let looked = clock.0.load(SeqCst);
        heartbeats(&one, 4).await;
        let looked = clock.0.load(SeqCst) - looked;
        assert!(looked < 1_000, "it read its clock {looked} times");
        eventually("it leads still, or again", || one.is_leader()).await;
        one.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_candidate_without_handles_releases_and_ends() {
    let register = MemoryRegister::default();
    let (one, clock) = counted(&register, Options::first_come(TTL));
    eventually("it leads", || one.is_leader()).await;
    drop(one);
    eventually("it has left", || !register.read("nodes/a").unwrap().unwrap().claim.held).await;
    let other = start(&register, "b", Vec::new());
    eventually("the other leads", || other.is_leader()).await;
    let looked = clock.0.load(SeqCst);
    heartbeats(&other, 4).await;
    assert_eq!(clock.0.load(SeqCst), looked, "it reads its clock no more");
    other.stop().await;
}

fn named(register: &MemoryRegister, incarnation: &str) -> Leadership {
    let me = Candidate { incarnation: incarnation.to_owned(), ..candidate("a") };
    let register: Arc<dyn Register> = Arc::new(register.clone());
    Leadership::start(register, "leader", me, Options::first_come(TTL), Vec::new()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_live_nodes_with_one_name_the_later_gives_up() {
    let register = MemoryRegister::default();
    let first = named(&register, "1");
    eventually("the first leads", || first.is_leader()).await;
    let second = named(&register, "2");
    let other = tokio::time::timeout(Duration::from_secs(20), second.namesake()).await.unwrap();
    assert_eq!((other.incarnation.as_str(), other.address.as_str()), ("1", "http://a"));
    assert!(second.why()[0].contains("node name a is in use at http://a"), "{:?}", second.why());
    first.stop().await;
    // It has given up for good, and the cell is not its own.
    second.stop().await;
    assert!(!second.is_leader());
    assert!(!register.read("nodes/a").unwrap().unwrap().claim.held, "the first has left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_that_restarts_keeps_its_name() {
    let register = MemoryRegister::default();
    let killed = named(&register, "1");
    eventually("it shows itself", || register.read("nodes/a").unwrap().is_some()).await;
    let cell = register.read("nodes/a").unwrap().unwrap();
    killed.stop().await;
    let left = register.read("nodes/a").unwrap().unwrap();
    register.compare_and_set("nodes/a", Some(&left.version), &cell.claim).unwrap();
    let again = named(&register, "2");
    heartbeats(&again, 8).await;
    assert!(again.is_leader() && again.why().is_empty(), "{:?}", again.why());
    again.stop().await;
}

/// A register whose listings take for ever.
struct Endless {
    inner: MemoryRegister,
    ended: AtomicBool,
    listings: AtomicU64,
}

impl Register for Endless {
    fn read(&self, key: &str) -> Result<Option<Cell>, Error> {
        self.inner.read(key)
    }

    fn compare_and_set(&self, key: &str, seen: Option<&Version>, claim: &Claim) -> Result<Set, Error> {
        self.inner.compare_and_set(key, seen, claim)
    }

    fn remove(&self, key: &str, seen: &Version) -> Result<(), Error> {
        self.inner.remove(key, seen)
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, Cell)>, Error> {
        self.listings.fetch_add(1, SeqCst);
        while !self.ended.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.inner.list(prefix)
    }

    fn poll_interval(&self) -> Duration {
        self.inner.poll_interval()
    }
}

#[tokio::test]
async fn a_listing_that_takes_for_ever_delays_no_renewal() {
    let register = Arc::new(Endless {
        inner: MemoryRegister::default(),
        ended: AtomicBool::new(false),
        listings: AtomicU64::new(0),
    });
    let shared: Arc<dyn Register> = register.clone();
    let one =
        Leadership::start(shared, "leader", candidate("a"), Options::first_come(TTL), Vec::new()).unwrap();
    eventually("it leads", || one.is_leader()).await;
    eventually("it lists", || register.listings.load(SeqCst) == 1).await;
    let (began, token) = (Instant::now(), one.token());
    eventually("three lease times pass", || {
        assert_eq!(one.token(), token, "it leads all the while");
        began.elapsed() > 3 * TTL
    })
    .await;
    assert_eq!(register.listings.load(SeqCst), 1, "one at a time");
    register.ended.store(true, SeqCst);
    one.stop().await;
}
