//! Electors on a real register: one of them acts at a time, and another takes over.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use orchestrix_engine::Shared;
use orchestrix_leadership::{Candidate, Elector, Step, Timing};

use super::Database;
use orchestrix_testbed::eventually;

const TTL: Duration = Duration::from_millis(1500);

/// When somebody trusted itself, and under which epoch.
struct Trust {
    epoch: u64,
    from: Duration,
    to: Duration,
}

struct Leadership {
    began: Instant,
    trust: Mutex<Vec<Trust>>,
    /// Who leads now, plus one.
    leader: AtomicUsize,
    /// Who is dead, plus one.
    dead: AtomicUsize,
    stop: AtomicBool,
}

fn stand(database: &Database, n: usize, leadership: &Leadership) {
    let register = database.connect().register();
    let me = Candidate { name: format!("n{n}"), incarnation: format!("{n}-0"), address: String::new() };
    let timing =
        Timing { ttl: TTL, renew: TTL / 3, poll_interval: register.poll_interval(), needs_proof: false };
    let mut elector = Elector::new(me, timing);
    let now = || leadership.began.elapsed();
    while !leadership.stop.load(SeqCst) && leadership.dead.load(SeqCst) != n + 1 {
        match elector.next(now()) {
            Step::Wait(until) => {
                // Not to the end: whether to stop is asked meanwhile.
                std::thread::sleep(until.saturating_sub(now()).min(Duration::from_millis(20)));
            }
            Step::Read => match register.read("leader") {
                Ok(cell) => elector.on_read(now(), cell),
                Err(_) => elector.on_read_failed(now()),
            },
            Step::Set { seen, claim } => {
                let set = register.compare_and_set("leader", seen.as_ref(), &claim).ok();
                elector.on_set(now(), set);
            }
        }
        let at = now();
        if let (Some(epoch), Some(to)) = (elector.leads(at), elector.trusted_until()) {
            leadership.trust.lock().unwrap().push(Trust { epoch, from: at, to });
            leadership.leader.store(n + 1, SeqCst);
        }
    }
}

pub(crate) fn one_candidate_leads_at_a_time_and_another_takes_over(database: &Database) {
    let leadership = Leadership {
        began: Instant::now(),
        trust: Mutex::default(),
        leader: AtomicUsize::new(0),
        dead: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
    };
    let leader = || Some(leadership.leader.load(SeqCst)).filter(|leader| *leader > 0);
    let passed = std::thread::scope(|scope| {
        for n in 0..3 {
            let leadership = &leadership;
            scope.spawn(move || stand(database, n, leadership));
        }
        let first = eventually("somebody leads", leader);
        leadership.dead.store(first, SeqCst);
        let died = Instant::now();
        eventually("another leads", || leader().filter(|leader| *leader != first));
        let passed = died.elapsed();
        leadership.stop.store(true, SeqCst);
        passed
    });
    let trust = leadership.trust.into_inner().unwrap();
    for one in &trust {
        for other in &trust {
            let apart = one.epoch == other.epoch || one.to <= other.from || other.to <= one.from;
            assert!(apart, "epochs {} and {} were trusted at once", one.epoch, other.epoch);
        }
    }
    println!("another led {passed:?} after the leader died, with a time of {TTL:?}");
}
