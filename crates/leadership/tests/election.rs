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

/// Counts what it is told to do, and which tokens it was given.
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
async fn one_of_three_leads_and_another_takes_over_at_once_when_it_stops() {
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
        eventually("somebody leads", || leaders() == 1).await;
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
                "{:?}, and the time of an office is {TTL:?}",
                stopped.elapsed()
            );
        }
        eventually("the duty heard of it", || duties[leader].deposed.load(SeqCst) == 1).await;
        // A tick that was under way when it stopped has ended before the duty hears of it.
        ended.push((leader, duties[leader].ticks.load(SeqCst)));
    }
    for (leader, ticks) in ended {
        assert_eq!(duties[leader].ticks.load(SeqCst), ticks, "it does nothing after its term");
    }
    assert!(duties.iter().all(|duty| duty.elected.load(SeqCst) == 1));
}

/// A register that stops answering, without a word.
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
async fn a_leader_that_hears_nothing_stops_by_itself_before_another_may_begin() {
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
    eventually("its duty was told", || duty.deposed.load(SeqCst) == 1).await;
    assert!(second.is_leader());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_silence_of_a_leader_is_known_before_its_time_is_over() {
    let stuck = Stuck::default();
    let options = |stands| Options { enable_coordinator: stands, ..Options::first_come(5 * TTL) };
    let begin = |register: Arc<dyn Register>, name: &str, stands: bool| {
        Leadership::start(register, "leader", candidate(name), options(stands), Vec::new()).unwrap()
    };
    let leader = begin(Arc::new(stuck.clone()), "a", true);
    eventually("it leads", || leader.is_leader()).await;
    assert_eq!(leader.leader_age(), Some(Duration::ZERO), "nobody is late for itself");
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
async fn a_duty_that_panics_goes_on_and_harms_no_other() {
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
async fn by_the_roster_the_lowest_id_leads_after_a_cold_start_and_gets_the_office_at_the_end_of_a_mandate() {
    let register = MemoryRegister::default();
    let start = |name: &str| {
        let register: Arc<dyn Register> = Arc::new(register.clone());
        Leadership::start(register, "leader", candidate(name), Options::roster(quick()), Vec::new()).unwrap()
    };
    let b = start("b");
    let mut news = b.events();
    let c = start("c");
    eventually("b leads, the lowest of those there", || b.is_leader()).await;
    assert!(!c.is_leader());
    assert_eq!(b.ensure_coordinator(false, Some("x")).await, Err(EnsureError::Absent("x".to_owned())));
    assert_eq!(c.ensure_coordinator(true, Some("c")).await, Err(EnsureError::NotLeader("b".to_owned())));
    let a = start("a");
    eventually("a gets the office, and not before the mandate of b is over", || a.is_leader()).await;
    assert!(!b.is_leader());
    let mut names = Vec::new();
    while let Ok(one) = news.try_recv() {
        names.push(one);
    }
    let phases: Vec<Phase> = names
        .iter()
        .filter_map(|news| match news {
            LeadershipEvent::ColdStartPhaseChanged { phase, .. } => Some(*phase),
            LeadershipEvent::WorkerHeartbeat { .. }
            | LeadershipEvent::CoordinatorElected { .. }
            | LeadershipEvent::CoordinatorPromoted { .. }
            | LeadershipEvent::CoordinatorDemoted { .. }
            | LeadershipEvent::CoordinatorEpochRenewed { .. } => None,
        })
        .collect();
    assert_eq!(phases, [Phase::Election, Phase::Preparation, Phase::Ready]);
    let has = |name: &str| names.iter().any(|news| news.name() == name);
    for name in [
        "coord:worker-heartbeat",
        "coord:coordinator-elected",
        "coord:coordinator-promoted",
        "coord:coordinator-demoted",
    ] {
        assert!(has(name), "{name} is not in {names:?}");
    }
    // One that is asked to pass its office on does so when its mandate is old enough, or when it must.
    assert_eq!(a.ensure_coordinator(false, Some("c")).await, Err(EnsureError::Mandate));
    a.ensure_coordinator(true, Some("c")).await.unwrap();
    eventually("c leads, because somebody wanted it", || c.is_leader()).await;
    for one in [a, b, c] {
        one.stop().await;
    }
}

#[tokio::test]
async fn nobody_leads_where_nobody_may_stand_and_it_says_why() {
    let register: Arc<dyn Register> = Arc::new(MemoryRegister::default());
    let options = Options { enable_coordinator: false, ..Options::first_come(TTL) };
    let one = Leadership::start(register, "leader", candidate("a"), options, Vec::new()).unwrap();
    eventually("it is present", || one.status().present == ["a"]).await;
    assert_eq!(one.why(), ["no leader: this one does not stand: enable_coordinator is false"]);
    one.stop().await;
}

#[test]
fn an_id_has_the_form_that_was_agreed() {
    let clock = orchestrix_engine::SystemClock;
    let (first, second) = (worker_id(&clock), worker_id(&clock));
    assert_ne!(first, second);
    let parts: Vec<&str> = first.split('-').collect();
    assert_eq!((parts.len(), parts[0], parts[2].len()), (3, "worker", 7), "{first}");
    assert!(parts[1].parse::<u64>().unwrap() > 1_700_000_000_000);
    assert!(parts[2].bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase()));
}

/// A register that looks whether whoever gives an office back still takes itself for the leader.
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
async fn nobody_trusts_itself_any_more_when_it_gives_an_office_back() {
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
        eventually("it gives the office back", || register.given_back.load(SeqCst) == times).await;
    }
    eventually("it leads", || one.is_leader()).await;
    one.let_go(one.token().unwrap());
    eventually("it lets go", || register.given_back.load(SeqCst) == 4).await;
    one.stop().await;
    assert!(!register.trusted.load(SeqCst), "it was still the leader when others could have been");
}

/// A register that answers nothing any more.
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
        // Whoever wrote before it fell silent does not know what became of it.
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

/// A clock of this machine that counts how often it is looked at.
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
async fn a_stop_waits_neither_for_ever_nor_in_a_hurry_for_a_register_that_does_not_answer() {
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
    assert!(looked < 1_000, "it looked at its clock {looked} times while it waited");
    eventually("its thread has ended, too", || Arc::strong_count(&register) == 1).await;
}

/// Starts one that counts how often it looks at its clock.
fn counted(register: &MemoryRegister, options: Options) -> (Leadership, Arc<Counted>) {
    let (register, clock): (Arc<dyn Register>, _) =
        (Arc::new(register.clone()), Arc::new(Counted::default()));
    let me = candidate("a");
    let one = Leadership::start_with(register, "leader", me, options, Vec::new(), clock.clone()).unwrap();
    (one, clock)
}

async fn heartbeats(of: &Leadership, count: u32) {
    let (mut news, mut heard) = (of.events(), 0);
    while heard < count {
        heard += u32::from(matches!(news.recv().await.unwrap(), LeadershipEvent::WorkerHeartbeat { .. }));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_waits_between_what_is_due_however_long_it_has_led() {
    for options in [Options::first_come(TTL), Options::roster(quick())] {
        let (one, clock) = counted(&MemoryRegister::default(), options);
        eventually("it leads", || one.is_leader()).await;
        // Past all times that began with its election, and then some more.
        heartbeats(&one, 8).await;
        let looked = clock.0.load(SeqCst);
        heartbeats(&one, 4).await;
        let looked = clock.0.load(SeqCst) - looked;
        assert!(looked < 1_000, "it looked at its clock {looked} times");
        eventually("it leads still, or again", || one.is_leader()).await;
        one.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_nobody_has_a_handle_of_gives_back_its_office_and_ends() {
    let register = MemoryRegister::default();
    let (one, clock) = counted(&register, Options::first_come(TTL));
    eventually("it leads", || one.is_leader()).await;
    drop(one);
    eventually("it has left", || !register.read("nodes/a").unwrap().unwrap().claim.held).await;
    let other = start(&register, "b", Vec::new());
    eventually("the other leads", || other.is_leader()).await;
    let looked = clock.0.load(SeqCst);
    heartbeats(&other, 4).await;
    assert_eq!(clock.0.load(SeqCst), looked, "it looks at its clock no more");
    other.stop().await;
}

fn named(register: &MemoryRegister, incarnation: &str) -> Leadership {
    let me = Candidate { incarnation: incarnation.to_owned(), ..candidate("a") };
    let register: Arc<dyn Register> = Arc::new(register.clone());
    Leadership::start(register, "leader", me, Options::first_come(TTL), Vec::new()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_that_are_alive_with_one_name_the_later_gives_up() {
    let register = MemoryRegister::default();
    let first = named(&register, "1");
    eventually("the first leads", || first.is_leader()).await;
    let second = named(&register, "2");
    let other = tokio::time::timeout(Duration::from_secs(20), second.namesake()).await.unwrap();
    assert_eq!((other.incarnation.as_str(), other.address.as_str()), ("1", "http://a"));
    assert!(second.why()[0].contains("another named a is alive, at http://a"), "{:?}", second.why());
    first.stop().await;
    // It has given up for good, and what it leaves in the register is not its own.
    second.stop().await;
    assert!(!second.is_leader());
    assert!(!register.read("nodes/a").unwrap().unwrap().claim.held, "the first has left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_was_killed_and_starts_again_at_once_keeps_its_name() {
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
    eventually("three times of an office pass", || {
        assert_eq!(one.token(), token, "it leads all the while");
        began.elapsed() > 3 * TTL
    })
    .await;
    assert_eq!(register.listings.load(SeqCst), 1, "one at a time");
    register.ended.store(true, SeqCst);
    one.stop().await;
}
