//! Elections on a real Redis server that is killed in between.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use orchestrix_engine::redis::RedisPlace;
use orchestrix_engine::{Register, Shared};
use orchestrix_leadership::{
    Candidate, Change, Duty, Elector, Leadership, Options, Stands, Step, Term, Timing, Work,
};
use orchestrix_testbed::{SYNCED, Server, eventually};

const CANDIDATES: usize = 50;
const TTL: Duration = Duration::from_secs(2);

/// What all of them did.
struct World {
    began: Instant,
    ended: AtomicBool,
    /// Who won each epoch.
    elected: Mutex<BTreeMap<u64, usize>>,
    /// When the leader of each epoch first and last led.
    leading: Mutex<BTreeMap<u64, (Duration, Duration)>>,
    /// The candidate that is to die, or to resign, by number; `CANDIDATES` for none.
    dies: AtomicUsize,
    resigns: AtomicUsize,
}

impl World {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// One candidate until it dies or all is over.
    fn live(&self, number: usize, register: &dyn Register) {
        let me =
            Candidate { name: format!("n{number}"), incarnation: number.to_string(), address: String::new() };
        let timing =
            Timing { ttl: TTL, renew: TTL / 3, poll_interval: register.poll_interval(), needs_proof: false };
        let mut elector = Elector::new(me, timing);
        while !self.ended.load(SeqCst) && self.dies.load(SeqCst) != number {
            if self.resigns.load(SeqCst) == number {
                elector.resign(self.now());
                elector.set_stands(Stands::No);
                self.resigns.store(CANDIDATES, SeqCst);
            }
            self.look(&elector);
            match elector.next(self.now()) {
                Step::Wait(until) => {
                    let left = until.saturating_sub(self.now());
                    std::thread::sleep(left.min(register.poll_interval()));
                }
                Step::Read => match register.read("leader") {
                    Ok(cell) => elector.on_read(self.now(), cell),
                    Err(error) => {
                        assert!(error.retryable, "{error}");
                        elector.on_read_failed(self.now());
                    }
                },
                Step::Set { seen, claim } => {
                    let set = register.compare_and_set("leader", seen.as_ref(), &claim);
                    elector.on_set(self.now(), set.ok());
                }
            }
            for change in elector.take_changes() {
                if let Change::Elected { epoch } = change {
                    let other = self.elected.lock().unwrap().insert(epoch, number);
                    assert_eq!(other, None, "epoch {epoch} was won twice");
                }
            }
        }
    }

    /// Records whether it leads at this moment.
    fn look(&self, elector: &Elector) {
        let now = self.now();
        if let Some(epoch) = elector.leads(now) {
            let mut leading = self.leading.lock().unwrap();
            leading.entry(epoch).and_modify(|(_, last)| *last = now).or_insert((now, now));
        }
    }

    fn newest(&self) -> Option<(u64, usize)> {
        self.elected.lock().unwrap().last_key_value().map(|(epoch, number)| (*epoch, *number))
    }
}

fn url(port: u16) -> String {
    format!("redis://orchestrix:secret@127.0.0.1:{port}")
}

/// A server with the user that the page for operators has.
fn redis() -> Server {
    let page = include_str!("../../../docs/engines/redis.md");
    let user =
        page.lines().find_map(|line| line.strip_prefix("ACL SETUSER ")).expect("the page has the user");
    let user = user.replace("PASSWORD", "secret");
    let recipe = orchestrix_testbed::redis(&SYNCED).set(&["--user"]);
    Server::start(recipe.set(&user.split(' ').collect::<Vec<_>>())).unwrap()
}

#[test]
fn of_fifty_candidates_one_leads_and_another_follows_it() {
    let mut server = redis();
    let url = url(server.port());
    let registers: Vec<_> =
        (0..CANDIDATES).map(|_| RedisPlace::connect(&url, TTL).unwrap().register()).collect();
    let world = World {
        began: Instant::now(),
        ended: AtomicBool::new(false),
        elected: Mutex::default(),
        leading: Mutex::default(),
        dies: AtomicUsize::new(CANDIDATES),
        resigns: AtomicUsize::new(CANDIDATES),
    };
    std::thread::scope(|scope| {
        for (number, register) in registers.iter().enumerate() {
            let world = &world;
            scope.spawn(move || world.live(number, &**register));
        }
        let after = |epoch: u64| {
            eventually("one is elected", || world.newest().filter(|(newest, _)| *newest > epoch))
        };
        let (epoch, leader) = after(0);
        let asked = world.now();
        world.resigns.store(leader, SeqCst);
        let (epoch, leader) = after(epoch);
        println!("after a resignation another led within {:?}", world.now() - asked);
        assert!(world.now() - asked < TTL, "a released lease is taken at once");
        let died = world.now();
        world.dies.store(leader, SeqCst);
        let (epoch, leader) = after(epoch);
        println!("after a death another led within {:?}", world.now() - died);
        // The server dies and comes back; the lease continues or is taken anew, with a higher epoch.
        server.kill();
        server.launch().unwrap();
        world.dies.store(leader, SeqCst);
        let (epoch, _) = after(epoch);
        eventually("the last one leads", || world.leading.lock().unwrap().contains_key(&epoch).then_some(()));
        world.ended.store(true, SeqCst);
    });
    let leading: Vec<_> = world.leading.lock().unwrap().values().copied().collect();
    assert!(leading.len() > 3, "{leading:?}");
    assert!(leading.windows(2).all(|pair| pair[0].1 < pair[1].0), "two led at once: {leading:?}");
    println!("{} epochs, each won once by one of {CANDIDATES}", world.elected.lock().unwrap().len());
}

/// Counts its ticks in every term, in a list that all candidates share.
struct Ticks {
    candidate: usize,
    /// Term, candidate, and the number of the tick in its term.
    list: std::sync::Arc<Mutex<Vec<(u64, usize, u64)>>>,
}

impl Duty for Ticks {
    fn name(&self) -> &str {
        "ticks"
    }

    fn tick_every(&self) -> Duration {
        Duration::from_millis(10)
    }

    fn tick<'a>(&'a self, term: &'a Term) -> Work<'a> {
        let mut list = self.list.lock().unwrap();
        let before = list.iter().filter(|(epoch, ..)| *epoch == term.epoch).count() as u64;
        list.push((term.epoch, self.candidate, before + 1));
        Box::pin(std::future::ready(()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duty_that_counts_ticks_shows_each_tick_once_per_term() {
    let mut server = redis();
    let url = url(server.port());
    let list = std::sync::Arc::new(Mutex::default());
    let start = |candidate: usize| {
        let register = RedisPlace::connect(&url, TTL / 4).unwrap().register();
        let me = Candidate {
            name: format!("n{candidate}"),
            incarnation: candidate.to_string(),
            address: String::new(),
        };
        let duty = std::sync::Arc::new(Ticks { candidate, list: std::sync::Arc::clone(&list) });
        Leadership::start(register, "leader", me, Options::first_come(TTL), vec![duty]).unwrap()
    };
    let mut candidates: Vec<Leadership> = (0..3).map(start).collect();
    let ticked = |epoch: u64| {
        let list = list.lock().unwrap();
        let ticks = list.iter().filter(|(of, ..)| *of >= epoch);
        (ticks.clone().count() >= 10).then(|| ticks.map(|(of, candidate, _)| (*of, *candidate)).max())
    };
    for round in 0..4 {
        let (epoch, leader) = eventually("a leader ticks", || ticked(round + 1).flatten());
        if round % 2 == 0 {
            candidates[leader].stop().await;
            candidates[leader] = start(leader);
        } else {
            // No candidate can renew, so the leader stops by itself; then the server is back, and one takes over.
            server.kill();
            eventually("the leader has stopped", || (!candidates[leader].is_leader()).then_some(()));
            server.launch().unwrap();
        }
        eventually("another term ticks", || ticked(epoch + 1).flatten());
    }
    for candidate in &candidates {
        candidate.stop().await;
    }
    let list = list.lock().unwrap();
    assert!(list.windows(2).all(|pair| pair[0].0 <= pair[1].0), "an old term ticked after a new one");
    let mut holders = BTreeMap::new();
    for (epoch, candidate, tick) in list.iter() {
        let (holder, ticks) = holders.entry(*epoch).or_insert((*candidate, 0));
        assert_eq!(holder, candidate, "two candidates ticked in term {epoch}");
        *ticks += 1;
        assert_eq!(ticks, tick, "a tick of term {epoch} came twice");
    }
    println!("{} ticks in {} terms, each once", list.len(), holders.len());
    assert!(holders.len() > 4);
}
