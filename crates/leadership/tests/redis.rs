//! Elections on a real Redis server that is killed in between.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[expect(dead_code, unreachable_pub, reason = "it serves the tests of several engines")]
#[path = "../../engine/tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use orchestrix_engine::redis::RedisPlace;
use orchestrix_engine::{Register, Shared};
use orchestrix_leadership::{Candidate, Change, Elector, Stands, Step, Timing};
use support::{Server, eventually};

const CANDIDATES: usize = 50;
const TTL: Duration = Duration::from_secs(2);

/// What all of them did.
struct World {
    began: Instant,
    ended: AtomicBool,
    /// Who won each epoch.
    elected: Mutex<BTreeMap<u64, usize>>,
    /// When the leader of each epoch trusted itself first and last.
    trusted: Mutex<BTreeMap<u64, (Duration, Duration)>>,
    /// The one who is to die, or to resign, by number; `CANDIDATES` for nobody.
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
            Timing { ttl: TTL, renew: TTL / 3, look_every: register.look_every(), needs_proof: false };
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
                    std::thread::sleep(left.min(register.look_every()));
                }
                Step::Read => match register.read("leader") {
                    Ok(cell) => elector.heard_cell(self.now(), cell),
                    Err(error) => {
                        assert!(error.retryable, "{error}");
                        elector.heard_nothing(self.now());
                    }
                },
                Step::Set { seen, claim } => {
                    let set = register.compare_and_set("leader", seen.as_ref(), &claim);
                    elector.heard_set(self.now(), set.ok());
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

    /// Notes whether it may act at this moment.
    fn look(&self, elector: &Elector) {
        let now = self.now();
        if let Some(epoch) = elector.leads(now) {
            let mut trusted = self.trusted.lock().unwrap();
            trusted.entry(epoch).and_modify(|(_, last)| *last = now).or_insert((now, now));
        }
    }

    fn newest(&self) -> Option<(u64, usize)> {
        self.elected.lock().unwrap().last_key_value().map(|(epoch, number)| (*epoch, *number))
    }
}

fn redis() -> Server {
    let command = |folder: &std::path::Path, port: u16| {
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--appendfsync", "always"]);
        command.arg("--dir").arg(folder).arg("--port").arg(port.to_string());
        command
    };
    Server::start(tempfile::tempdir().unwrap(), command, |port| {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
            && RedisPlace::connect(&format!("redis://127.0.0.1:{port}"), TTL).is_ok()
    })
}

#[test]
fn of_fifty_candidates_one_leads_and_another_follows_it() {
    let mut server = redis();
    let url = format!("redis://127.0.0.1:{}", server.port());
    let registers: Vec<_> =
        (0..CANDIDATES).map(|_| RedisPlace::connect(&url, TTL).unwrap().register()).collect();
    let world = World {
        began: Instant::now(),
        ended: AtomicBool::new(false),
        elected: Mutex::default(),
        trusted: Mutex::default(),
        dies: AtomicUsize::new(CANDIDATES),
        resigns: AtomicUsize::new(CANDIDATES),
    };
    std::thread::scope(|scope| {
        for (number, register) in registers.iter().enumerate() {
            let world = &world;
            scope.spawn(move || world.live(number, &**register));
        }
        let after = |epoch: u64| {
            eventually("somebody is elected", || world.newest().filter(|(newest, _)| *newest > epoch))
        };
        let (epoch, leader) = after(0);
        let asked = world.now();
        world.resigns.store(leader, SeqCst);
        let (epoch, leader) = after(epoch);
        println!("after a resignation somebody else led within {:?}", world.now() - asked);
        assert!(world.now() - asked < TTL, "an office that was given back is taken at once");
        let died = world.now();
        world.dies.store(leader, SeqCst);
        let (epoch, leader) = after(epoch);
        println!("after a death somebody else led within {:?}", world.now() - died);
        // The server dies and comes back; the office goes on or is won anew, with a higher epoch.
        server.kill();
        server.launch();
        world.dies.store(leader, SeqCst);
        let (epoch, _) = after(epoch);
        eventually("the last one leads", || world.trusted.lock().unwrap().contains_key(&epoch).then_some(()));
        world.ended.store(true, SeqCst);
    });
    let trusted: Vec<_> = world.trusted.lock().unwrap().values().copied().collect();
    assert!(trusted.len() > 3, "{trusted:?}");
    assert!(trusted.windows(2).all(|pair| pair[0].1 < pair[1].0), "two led at once: {trusted:?}");
    println!("{} epochs, each won once by one of {CANDIDATES}", world.elected.lock().unwrap().len());
}
