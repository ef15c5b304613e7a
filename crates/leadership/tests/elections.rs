//! Many candidates, one register, and faults between them: late, lost and unknown answers, clocks of different speed,
//! freezes, crashes. Time is simulated; a seed identifies a run.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::time::Duration;

use orchestrix_engine::memory::MemoryRegister;
use orchestrix_engine::{Register, Set};
use orchestrix_leadership::{Candidate, Change, Elector, Stands, Step, Timing};

const KEY: &str = "leader";
const MS: u64 = 1_000;

/// A small generator: the same seed, the same elections.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// An answer on its way.
enum Answer {
    Cell(Option<orchestrix_engine::Cell>),
    NotRead,
    Set(Option<Set>),
}

struct Node {
    elector: Elector,
    /// Parts per million that its clock is fast.
    drift: i64,
    /// A request on its way to the register, and when it gets there.
    asked: Option<(u64, Step)>,
    answer: Option<(u64, Answer)>,
    frozen_until: u64,
    lives: u64,
}

impl Node {
    fn clock(&self, now: u64) -> Duration {
        let own = i128::from(now) + i128::from(now) * i128::from(self.drift) / 1_000_000;
        Duration::from_micros(u64::try_from(own).unwrap())
    }
}

/// The times during which each node may have acted, in time of the world.
struct Leading {
    node: usize,
    epoch: u64,
    from: u64,
    to: u64,
}

struct World {
    random: Random,
    register: MemoryRegister,
    nodes: Vec<Node>,
    leading: Vec<Leading>,
    epochs: BTreeMap<u64, usize>,
    ttl: Duration,
    faults: u64,
    elections: u64,
    unknown: u64,
}

fn timing(ttl: Duration) -> Timing {
    Timing { ttl, renew: ttl / 3, poll_interval: Duration::from_millis(50), needs_proof: false }
}

fn candidate(node: usize, life: u64) -> Candidate {
    Candidate { name: format!("n{node}"), incarnation: format!("{node}-{life}"), address: String::new() }
}

impl World {
    fn new(seed: u64, faults: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let ttl = Duration::from_millis(200 + random.below(2_000));
        let count = 2 + random.below(4);
        let nodes = (0..count)
            .map(|n| Node {
                elector: Elector::new(candidate(usize::try_from(n).unwrap(), 0), timing(ttl)),
                drift: i64::try_from(random.below(10_000)).unwrap() - 5_000,
                asked: None,
                answer: None,
                frozen_until: 0,
                lives: 0,
            })
            .collect();
        let register = MemoryRegister::default();
        let (leading, epochs) = (Vec::new(), BTreeMap::new());
        Self { random, register, nodes, leading, epochs, ttl, faults, elections: 0, unknown: 0 }
    }

    /// Runs for so long, half a millisecond at a time.
    fn run(&mut self, from: u64, to: u64) {
        let mut now = from;
        while now < to {
            for n in 0..self.nodes.len() {
                self.step(n, now);
            }
            now += 500;
        }
    }

    fn step(&mut self, n: usize, now: u64) {
        if now < self.nodes[n].frozen_until {
            // A frozen node may act at the moment of waking: then the token protects. Whether it leads is checked
            // when it is awake.
            self.serve(n, now);
            return;
        }
        if self.random.below(20_000) < self.faults {
            if self.random.chance(30) {
                self.crash(n);
            } else {
                self.nodes[n].frozen_until =
                    now + self.random.below(3 * u64::try_from(self.ttl.as_micros()).unwrap());
                return;
            }
        }
        self.serve(n, now);
        self.hear(n, now);
        let clock = self.nodes[n].clock(now);
        if self.nodes[n].asked.is_none() && self.nodes[n].answer.is_none() {
            let step = self.nodes[n].elector.next(clock);
            if !matches!(step, Step::Wait(_)) {
                let takes = self.delay();
                self.nodes[n].asked = Some((now + takes, step));
            }
        } else {
            self.nodes[n].elector.tick(clock);
        }
        self.note(n, now);
    }

    fn crash(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        node.lives += 1;
        node.elector = Elector::new(candidate(n, node.lives), timing(self.ttl));
        // A request on its way still arrives; its answer is dropped.
        node.answer = None;
    }

    fn delay(&mut self) -> u64 {
        let slow = self.faults > 0 && self.random.chance(3);
        if slow {
            self.random.below(u64::try_from(2 * self.ttl.as_micros()).unwrap())
        } else {
            self.random.below(2 * MS)
        }
    }

    /// A request arrives at the register.
    fn serve(&mut self, n: usize, now: u64) {
        let due = self.nodes[n].asked.as_ref().is_some_and(|(at, _)| *at <= now);
        let Some((_, step)) = self.nodes[n].asked.take_if(|_| due) else { return };
        let lost = self.faults > 0 && self.random.chance(2);
        let unknown = self.faults > 0 && self.random.chance(3);
        let answer = match step {
            Step::Wait(_) => return,
            Step::Read if lost => Answer::NotRead,
            Step::Read => Answer::Cell(self.register.read(KEY).unwrap()),
            Step::Set { .. } if lost => Answer::Set(None),
            Step::Set { seen, claim } => {
                // An unknown outcome was written or it was not.
                if unknown && self.random.chance(50) {
                    self.unknown += 1;
                    Answer::Set(Some(Set::Unknown))
                } else {
                    let set = self.register.compare_and_set(KEY, seen.as_ref(), &claim).unwrap();
                    self.unknown += u64::from(unknown);
                    Answer::Set(Some(if unknown { Set::Unknown } else { set }))
                }
            }
        };
        let takes = self.delay();
        self.nodes[n].answer = Some((now + takes, answer));
    }

    fn hear(&mut self, n: usize, now: u64) {
        let clock = self.nodes[n].clock(now);
        let node = &mut self.nodes[n];
        let due = node.answer.as_ref().is_some_and(|(at, _)| *at <= now);
        match node.answer.take_if(|_| due) {
            Some((_, Answer::Cell(cell))) => node.elector.on_read(clock, cell),
            Some((_, Answer::NotRead)) => node.elector.on_read_failed(clock),
            Some((_, Answer::Set(set))) => node.elector.on_set(clock, set),
            None => {}
        }
    }

    /// Records whether a node leads, and checks its changes.
    fn note(&mut self, n: usize, now: u64) {
        let clock = self.nodes[n].clock(now);
        for change in self.nodes[n].elector.take_changes() {
            if let Change::Elected { epoch } = change {
                self.elections += 1;
                let highest = self.epochs.keys().next_back().copied().unwrap_or(0);
                let first = self.epochs.insert(epoch, n).is_none();
                assert!(first, "E1: epoch {epoch} was granted twice");
                // A grant may be heard late, after a higher one: then nothing was done under it.
                assert!(
                    epoch > highest || self.nodes[n].elector.leads(clock).is_none(),
                    "E2: {epoch} after {highest}"
                );
            }
        }
        if let Some(epoch) = self.nodes[n].elector.leads(clock) {
            match self.leading.iter_mut().rev().find(|leading| leading.node == n) {
                Some(leading) if leading.epoch == epoch => leading.to = now,
                _ => self.leading.push(Leading { node: n, epoch, from: now, to: now }),
            }
        }
    }

    /// E5: no two ever led at once.
    fn check(&mut self) {
        self.leading.sort_by_key(|leading| leading.from);
        for pair in self.leading.windows(2) {
            let (a, b) = (&pair[0], &pair[1]);
            assert!(
                a.to < b.from,
                "E5: {} in {} until {}, {} in {} from {}",
                a.node,
                a.epoch,
                a.to,
                b.node,
                b.epoch,
                b.from
            );
            assert!(a.epoch < b.epoch, "E7: epoch {} after {}", b.epoch, a.epoch);
        }
    }
}

#[test]
fn there_is_one_leader_at_a_time_despite_faults() {
    let (mut elections, mut unknown) = (0, 0);
    for seed in 0..100 {
        let mut world = World::new(seed, 1 + seed % 40);
        world.run(0, 20_000 * MS);
        // EL3: when nothing goes wrong any more, there is a leader soon, and it stays.
        world.faults = 0;
        world.nodes.iter_mut().for_each(|node| node.frozen_until = 0);
        let ttl = u64::try_from(world.ttl.as_micros()).unwrap();
        let settled = 20_000 * MS + 5 * ttl;
        world.run(20_000 * MS, settled);
        let before = world.elections;
        world.run(settled, settled + 10 * ttl);
        assert_eq!(world.elections, before, "seed {seed}: EL3: a leader changed where nothing goes wrong");
        let last = settled + 10 * ttl - 500;
        let leads = |node: &Node| node.elector.leads(node.clock(last)).is_some();
        assert_eq!(world.nodes.iter().filter(|node| leads(node)).count(), 1, "seed {seed}: EL1");
        world.check();
        (elections, unknown) = (elections + world.elections, unknown + world.unknown);
    }
    println!("{elections} elections, {unknown} unknown outcomes");
    assert!(elections > 300 && unknown > 100, "{elections} elections, {unknown} unknown outcomes");
}

#[test]
fn a_dead_leader_is_replaced_within_ttl_plus_100_ms() {
    for seed in 0..40 {
        let mut world = World::new(seed, 0);
        let ttl = u64::try_from(world.ttl.as_micros()).unwrap();
        let killed = 3 * ttl + world.random.below(ttl);
        world.run(0, killed);
        let leader = (0..world.nodes.len()).find(|n| {
            let node = &world.nodes[*n];
            node.elector.leads(node.clock(killed)).is_some()
        });
        let leader = leader.expect("there is a leader");
        world.nodes[leader].frozen_until = u64::MAX;
        let bound = killed + ttl + 100 * MS;
        world.run(killed, bound);
        let next = world.leading.iter().find(|leading| leading.node != leader && leading.from > killed);
        assert!(next.is_some(), "seed {seed}: no leader {} ms after the kill", (bound - killed) / MS);
    }
}

#[test]
fn a_leader_that_resigns_or_transfers_is_replaced_at_once() {
    for seed in 0..40 {
        let mut world = World::new(seed, 0);
        let ttl = u64::try_from(world.ttl.as_micros()).unwrap();
        let end = 3 * ttl + world.random.below(ttl);
        world.run(0, end);
        let leads = |world: &World, now: u64| {
            world.nodes.iter().position(|node| node.elector.leads(node.clock(now)).is_some())
        };
        let first = leads(&world, end).expect("there is a leader");
        let clock = world.nodes[first].clock(end);
        if seed % 2 == 0 {
            world.nodes[first].elector.set_stands(Stands::No);
            world.nodes[first].elector.resign(clock);
            assert_eq!(world.nodes[first].elector.leads(clock), None, "it does not lead any more");
            world.run(end, end + 100 * MS);
            let next = leads(&world, end + 100 * MS - 500).expect("a leader after 100 ms");
            assert_ne!(next, first);
        } else {
            let chosen = world.nodes.len() - 1 - usize::from(first == world.nodes.len() - 1);
            world.nodes[first].elector.pass(clock, candidate(chosen, 0));
            world.run(end, end + 100 * MS);
            assert_eq!(leads(&world, end + 100 * MS - 500), Some(chosen), "seed {seed}");
        }
        world.check();
    }
}

#[test]
fn a_leader_without_progress_releases_its_lease() {
    let ttl = Duration::from_secs(3);
    let mut elector = Elector::new(candidate(0, 0), Timing { needs_proof: true, ..timing(ttl) });
    let register = MemoryRegister::default();
    let mut now = Duration::ZERO;
    let mut drive = |elector: &mut Elector, until: Duration, proves: bool| {
        while now < until {
            match elector.next(now) {
                Step::Wait(_) => now += Duration::from_millis(10),
                Step::Read => elector.on_read(now, register.read(KEY).unwrap()),
                Step::Set { seen, claim } => {
                    let set = register.compare_and_set(KEY, seen.as_ref(), &claim).unwrap();
                    elector.on_set(now, Some(set));
                }
            }
            if proves {
                elector.prove(now);
            }
        }
    };
    drive(&mut elector, Duration::from_secs(10), true);
    assert_eq!(elector.leads(Duration::from_secs(10)), Some(1));
    drive(&mut elector, Duration::from_secs(12), false);
    assert_eq!(
        elector.leads(Duration::from_secs(12)),
        None,
        "it proved nothing for more than half of its time"
    );
    assert!(!register.read(KEY).unwrap().unwrap().claim.held, "it was given back");
}

#[test]
fn a_conflict_by_the_engines_clock_is_retried_later() {
    let ttl = Duration::from_secs(1);
    let mut elector = Elector::new(candidate(0, 0), timing(ttl));
    let register = MemoryRegister::default();
    let mut other = Elector::new(candidate(1, 0), timing(ttl));
    let Step::Read = other.next(Duration::ZERO) else { panic!("it looks first") };
    other.on_read(Duration::ZERO, None);
    let Step::Set { seen, claim } = other.next(Duration::ZERO) else { panic!("it is free") };
    register.compare_and_set(KEY, seen.as_ref(), &claim).unwrap();

    elector.on_read(Duration::ZERO, register.read(KEY).unwrap());
    let mut now = 2 * ttl;
    for _ in 0..20 {
        let Step::Set { .. } = elector.next(now) else { panic!("its time is over on this clock") };
        // Not on the engine's.
        elector.on_set(now, Some(Set::Conflict(register.read(KEY).unwrap())));
        let Step::Wait(until) = elector.next(now) else { panic!("the engine gets no rest") };
        assert!(until >= now + Duration::from_millis(10) && until <= now + ttl, "{until:?} at {now:?}");
        now = until;
    }
}
