//! A worker of a service, honest as the protocol asks: it counts its time from sending, stops by itself, ignores lower
//! generations, and says that it stopped only when it has. It also dies, freezes, leaves, and comes again.

mod hearing;

use std::collections::BTreeMap;

use orchestrix_core::shards::CONNECTION_SESSION;
use orchestrix_core::wire::{ShardDeregister, ShardHeartbeat, ShardRegister};
use orchestrix_core::{Name, Position};
use orchestrix_node::ShardAsk;

use crate::actors::{Ground, Heard};
use crate::history::Question;
use crate::rng::Rng;
use crate::shards::coverage::ShardCovered;
use crate::shards::plan::{ShardPlan, beat_ms};
use crate::shards::record::{Kind, Message, Process, SentMessage, Served};
use crate::world::{MS, SECOND};

pub(crate) struct ShardWorker {
    service: Name,
    name: Name,
    rng: Rng,
    /// A second process of the same name, which runs only now and then.
    is_twin: bool,
    /// Never in trouble.
    is_steady: bool,
    process: Process,
    /// The number of the process that runs.
    number: usize,
    standing: Standing,
    /// Processes so far, and connections of all of them.
    processes: u64,
    connections: u64,
    /// Earlier questions do not count any more: it was stopped since.
    since: u64,
    frozen_until: u64,
    /// What came while it was frozen.
    inbox: Vec<(usize, Heard)>,
    generation: Position,
    /// It may serve until then, in the time of the world.
    trusted_until: u64,
    serves: BTreeMap<u32, Serving>,
    next_beat: u64,
    /// How long it may serve after a heartbeat, in milliseconds, by its last answer.
    promised_ms: Option<u64>,
    count: u32,
    capacity: Option<u32>,
    seq: u64,
    /// It was answered once.
    heard: bool,
    /// When the operator of its service sets a shard count.
    orders_at: Option<u64>,
    /// Restarted after the faults, as an operator would who sees that it ignores assignments.
    restarted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// No process until then.
    Down(u64),
    /// It wants to come.
    Out,
    Coming {
        op: usize,
    },
    In,
}

#[derive(Clone, Copy, Debug)]
struct Serving {
    token: Position,
    from: u64,
    /// It must stop, and that takes until then.
    stops_at: Option<u64>,
}

/// Everyone that a plan asks for. The last of each service may have a twin.
pub(crate) fn workers(plan: &ShardPlan, rng: &mut Rng) -> Vec<ShardWorker> {
    let mut all = Vec::new();
    for (number, workers) in plan.services.iter().enumerate() {
        let service = name(&format!("s{number}"));
        for worker in 0..*workers {
            // Processes of one name are of one kind: what a name is promised depends on it.
            let mut kind = if rng.chance(plan.plain) { Kind::Plain } else { Kind::Aware };
            if plan.deaf.contains(&number) || (worker == 0 && plan.one_deaf.contains(&number)) {
                kind = Kind::Deaf;
            }
            let anytime = rng.range(0, 2 * SECOND);
            let mut comes = plan.apart_ms.map_or(anytime, |apart| apart * MS * worker as u64);
            if worker > 0 && worker + 1 == *workers {
                comes += plan.last_ms * MS;
            }
            let place = (name(&format!("w{worker}")), kind, comes);
            let is_steady = plan.calm && worker == 0;
            let mut coming = ShardWorker::new(&service, &place, (plan, is_steady), false, rng.fork());
            coming.orders_at = plan.ordered_ms.filter(|_| worker == 0).map(|after| after * MS);
            all.push(coming);
            if plan.twins > 0 && worker + 1 == *workers {
                all.push(ShardWorker::new(&service, &place, (plan, false), true, rng.fork()));
            }
        }
    }
    all
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a plain name")
}

impl ShardWorker {
    fn new(
        service: &Name,
        (name, kind, comes): &(Name, Kind, u64),
        (plan, is_steady): (&ShardPlan, bool),
        is_twin: bool,
        mut rng: Rng,
    ) -> Self {
        let widest = u64::try_from(10_000 - plan.slowest_ppm).unwrap_or(0);
        // The slowest that is allowed, often: that is where promises are tight.
        let fast = if rng.chance(500_000) { 0 } else { rng.range(0, widest) };
        let drift_ppm = plan.slowest_ppm + i64::try_from(fast).unwrap_or(0);
        let process = Process { service: service.clone(), worker: name.clone(), kind: *kind, drift_ppm };
        let first = if is_twin { u64::MAX } else { *comes };
        let limited = !is_steady && rng.chance(plan.limited);
        Self {
            service: service.clone(),
            name: name.clone(),
            is_twin,
            is_steady,
            process,
            number: usize::MAX,
            standing: Standing::Down(first),
            processes: 0,
            connections: 0,
            since: 0,
            frozen_until: 0,
            inbox: Vec::new(),
            generation: Position(0),
            trusted_until: 0,
            serves: BTreeMap::new(),
            next_beat: 0,
            promised_ms: None,
            count: plan.count,
            capacity: limited.then(|| u32::try_from(rng.range(0, 6)).unwrap_or(0)),
            seq: 0,
            heard: false,
            orders_at: None,
            restarted: false,
            rng,
        }
    }

    /// What a node should believe that it serves when all is well; nothing while it is on its way.
    pub(crate) fn settled(&self) -> Option<Vec<(u32, Position)>> {
        let serves = self.serves.iter().filter(|(_, serving)| serving.stops_at.is_none());
        (self.standing == Standing::In).then(|| serves.map(|(shard, it)| (*shard, it.token)).collect())
    }

    pub(crate) fn is_deaf(&self) -> bool {
        self.process.kind == Kind::Deaf
    }

    pub(crate) fn is_in(&self) -> bool {
        self.standing == Standing::In
    }

    pub(crate) fn kind(&self) -> Kind {
        self.process.kind
    }

    pub(crate) fn is_twin(&self) -> bool {
        self.is_twin
    }

    /// Of which service it is, and its name there.
    pub(crate) fn names(&self) -> (&Name, &Name) {
        (&self.service, &self.name)
    }

    pub(crate) fn whereabouts(&self) -> String {
        format!("{:?}", self.standing)
    }

    pub(crate) fn is_down(&self) -> bool {
        matches!(self.standing, Standing::Down(_))
    }

    pub(crate) fn wake(&mut self, world: &mut dyn Ground, me: usize) {
        let now = world.now();
        if now < self.frozen_until && world.faulty() {
            world.wake_after(me, self.frozen_until - now);
            return;
        }
        self.order_in_time(world, me);
        self.thaw(world);
        self.stop_in_time(world);
        for (op, heard) in std::mem::take(&mut self.inbox) {
            self.listen(world, op, heard);
        }
        if let Standing::Down(until) = self.standing {
            let comes = if self.is_twin { self.twin_comes(world) } else { until <= now || !world.faulty() };
            if comes {
                self.begin(world);
            }
        } else if world.faulty() && !self.is_steady && self.misfortune(world, me) {
            return;
        } else if self.is_twin && !world.faulty() {
            self.die(world);
        } else if self.is_deaf() && !self.restarted && !world.faulty() {
            self.restarted = true;
            self.die(world);
        }
        self.speak(world, me);
        self.wake_again(world, me);
    }

    fn wake_again(&mut self, world: &mut dyn Ground, me: usize) {
        let now = world.now();
        let ends = self.serves.values().filter_map(|serving| serving.stops_at).min().unwrap_or(u64::MAX);
        let trust = if self.serves.is_empty() { u64::MAX } else { self.trusted_until };
        let beat = match self.standing {
            Standing::Out | Standing::In => self.next_beat,
            Standing::Down(_) | Standing::Coming { .. } => u64::MAX,
        };
        let next = beat.min(ends).min(trust);
        let pause = self.rng.range(50 * MS, SECOND);
        world.wake_after(me, next.saturating_sub(now).clamp(1, pause));
    }

    /// Dies, freezes, leaves, changes its mind, now and then. Answers whether it does nothing else now.
    fn misfortune(&mut self, world: &mut dyn Ground, me: usize) -> bool {
        let Some(plan) = world.plan().shards.clone() else { return false };
        // Woken about twice a second.
        let mut happens = |rate: u32| self.rng.chance(rate / 2);
        let deaths = if self.is_twin { plan.deaths + 100_000 } else { plan.deaths };
        if happens(deaths) {
            world.shards().coverage.add(ShardCovered::WorkerDied);
            self.die(world);
        } else if happens(plan.freezes) {
            self.freeze(world, me, &plan);
            return true;
        } else if happens(plan.leaves) && self.standing == Standing::In {
            self.leave(world, me);
        } else if happens(plan.reconnects) && self.standing == Standing::In {
            world.shards().coverage.add(ShardCovered::WorkerReconnected);
            self.connections += 1;
        } else if happens(plan.count_changes) {
            self.change_count(world, me, &plan);
        }
        false
    }

    /// Names another shard count from now on, or the operator sets one; none at all, now and then.
    fn change_count(&mut self, world: &mut dyn Ground, me: usize, plan: &ShardPlan) {
        let count = u32::try_from(self.rng.range(1, 2 * u64::from(plan.count))).unwrap_or(1);
        if !self.rng.chance(200_000) {
            self.count = count;
            return;
        }
        let count = if self.rng.chance(200_000) { 0 } else { count };
        self.order(world, me, count);
    }

    /// The operator sets a shard count.
    fn order(&self, world: &mut dyn Ground, me: usize, count: u32) {
        world.shards().orders.push((self.service.clone(), count));
        world.ask(me, Question::ChangeService { service: self.service.clone(), count });
    }

    /// The operator sets shard counts again and again.
    fn order_in_time(&mut self, world: &mut dyn Ground, me: usize) {
        let (now, faulty) = (world.now(), world.faulty());
        if self.orders_at.take_if(|at| now >= *at && faulty).is_none() {
            return;
        }
        let most = world.plan().shards.as_ref().map_or(1, |plan| 2 * u64::from(plan.count));
        let count = u32::try_from(self.rng.range(1, most)).unwrap_or(1);
        self.order(world, me, count);
        self.orders_at = Some(now + self.rng.range(SECOND, 10 * SECOND));
    }

    fn twin_comes(&mut self, world: &mut dyn Ground) -> bool {
        let twins = world.plan().shards.as_ref().map_or(0, |plan| plan.twins);
        let comes = world.faulty() && self.rng.chance(twins / 2);
        if comes {
            world.shards().coverage.add(ShardCovered::SecondProcess);
        }
        comes
    }

    fn begin(&mut self, world: &mut dyn Ground) {
        self.number = world.shards().begin(self.process.clone());
        self.processes += 1;
        self.connections += 1;
        (self.standing, self.since, self.heard) = (Standing::Out, world.now(), false);
        (self.generation, self.trusted_until, self.next_beat) = (Position(0), 0, world.now());
    }

    /// The process is gone without a word. Where nothing goes wrong, it is seen that its connections are closed.
    fn die(&mut self, world: &mut dyn Ground) {
        self.end(world);
        self.inbox.clear();
        if !world.faulty() {
            world.close(self.number);
        }
        // Before its lease ends, or after.
        let lease_ms = world.plan().shards.as_ref().map_or(0, |plan| plan.lease_ms);
        let down = self.rng.skewed(10 * MS, 2 * lease_ms * MS);
        self.standing = Standing::Down(world.now() + down);
    }

    /// Stands still wherever it is. Nothing is served meanwhile.
    fn freeze(&mut self, world: &mut dyn Ground, me: usize, plan: &ShardPlan) {
        world.shards().coverage.add(ShardCovered::WorkerFrozen);
        self.pause(world);
        let takes = self.rng.skewed(100 * MS, plan.frozen * plan.lease_ms * MS);
        self.frozen_until = world.now() + takes;
        world.wake_after(me, takes);
    }

    fn thaw(&mut self, world: &mut dyn Ground) {
        if self.frozen_until == 0 {
            return;
        }
        self.frozen_until = 0;
        let now = world.now();
        self.serves.values_mut().for_each(|serving| serving.from = now);
        if !self.serves.is_empty() && now >= self.trusted_until {
            world.shards().coverage.add(ShardCovered::WokeTooLate);
            self.serves.clear();
        }
    }

    fn leave(&mut self, world: &mut dyn Ground, me: usize) {
        world.shards().coverage.add(ShardCovered::WorkerLeft);
        self.end(world);
        self.say(world, Message::Goes);
        // It does not wait for an answer, so it says it twice.
        for _ in 0..2 {
            let body = ShardDeregister { session: Some(self.session()), seq: None };
            let (service, worker) = (self.service.clone(), self.name.clone());
            self.ask(world, me, ShardAsk::Deregister { service, worker, body });
        }
        // Most come again while something that they sent is still on its way.
        self.standing = Standing::Down(world.now() + self.rng.skewed(MS, 5 * SECOND));
    }

    /// Stops everything now, for good.
    pub(crate) fn end(&mut self, world: &mut dyn Ground) {
        self.pause(world);
        self.serves.clear();
    }

    /// Notes down what was served so far.
    fn pause(&mut self, world: &mut dyn Ground) {
        let now = world.now();
        if self.number < usize::MAX {
            world.shards().trouble(self.number, now);
        }
        for shard in self.serves.keys().copied().collect::<Vec<u32>>() {
            self.note(world, shard, now);
        }
    }

    /// Notes down that a shard was served until now, or until its time was over.
    fn note(&mut self, world: &mut dyn Ground, shard: u32, now: u64) {
        let Some(serving) = self.serves.get_mut(&shard) else { return };
        let to_us = now.min(self.trusted_until).min(serving.stops_at.unwrap_or(u64::MAX));
        let (process, token, from_us) = (self.number, serving.token, serving.from);
        serving.from = now;
        if to_us > from_us {
            world.shards().served.push(Served { process, shard, token, from_us, to_us });
        }
    }

    fn stop(&mut self, world: &mut dyn Ground, shard: u32) {
        let now = world.now();
        self.note(world, shard, now);
        self.serves.remove(&shard);
    }

    /// Stops what was to be stopped by now, and everything when its time is over.
    fn stop_in_time(&mut self, world: &mut dyn Ground) {
        let now = world.now();
        let over = now >= self.trusted_until;
        if over && !self.serves.is_empty() {
            world.shards().coverage.add(ShardCovered::StoppedByItself);
        }
        let is_over = |serving: &Serving| over || serving.stops_at.is_some_and(|at| at <= now);
        let ended = self.serves.iter().filter(|(_, serving)| is_over(serving));
        for shard in ended.map(|(shard, _)| *shard).collect::<Vec<u32>>() {
            self.stop(world, shard);
            // A worker that has stopped releases at once.
            self.next_beat = now;
        }
    }

    fn speak(&mut self, world: &mut dyn Ground, me: usize) {
        let now = world.now();
        if now < self.next_beat || self.is_down() {
            return;
        }
        let Some(plan) = world.plan().shards.clone() else { return };
        let beat_ms = self.promised_ms.map_or(plan.beat_ms(), beat_ms);
        self.next_beat = now + self.rng.range(beat_ms / 2, beat_ms) * MS;
        let (service, worker) = (self.service.clone(), self.name.clone());
        match self.standing {
            Standing::Down(_) | Standing::Coming { .. } => {}
            Standing::Out if self.is_deaf() || self.rng.chance(500_000) => {
                self.say(world, Message::Comes { count: self.count });
                let body = ShardRegister {
                    max_shard_count: self.count,
                    capacity: self.capacity,
                    group: None,
                    session: Some(self.session()),
                    seq: (!self.process.kind.is_plain()).then_some(self.seq),
                    by: None,
                };
                let op = self.ask(world, me, ShardAsk::Register { service, worker, body });
                self.standing = Standing::Coming { op };
            }
            Standing::Out => {
                let op = self.beat(world, me, None);
                self.standing = Standing::Coming { op };
            }
            Standing::In if !self.is_deaf() && self.rng.chance(200_000) => {
                self.ask(world, me, ShardAsk::Assignment { service, worker, session: self.session() });
                self.next_beat = now + self.rng.range(MS, 100 * MS);
            }
            Standing::In => {
                let generation = match self.process.kind {
                    Kind::Aware => Some(self.generation),
                    Kind::Plain | Kind::Deaf => None,
                };
                self.beat(world, me, generation);
            }
        }
    }

    fn beat(&mut self, world: &mut dyn Ground, me: usize, generation: Option<Position>) -> usize {
        let shards: Vec<u32> = self.serves.keys().copied().collect();
        self.say(world, Message::Serves { count: self.count, shards: shards.clone(), generation });
        self.seq += 1;
        let seq = match self.process.kind {
            Kind::Aware => Some(self.seq),
            Kind::Plain | Kind::Deaf => None,
        };
        let body = ShardHeartbeat {
            max_shard_count: self.count,
            assigned_shards: shards,
            generation,
            seq,
            session: Some(self.session()),
            ..ShardHeartbeat::default()
        };
        let (service, worker) = (self.service.clone(), self.name.clone());
        self.ask(world, me, ShardAsk::Heartbeat { service, worker, body })
    }

    /// Every second worker names its session, which its process keeps; the others have those of their connections.
    fn session(&self) -> Name {
        let twin = if self.is_twin { "t" } else { "" };
        let is_odd = self.name.as_str().bytes().map(u32::from).sum::<u32>() % 2 == 1;
        let names_it = is_odd && self.process.kind != Kind::Deaf;
        name(&match names_it {
            true => format!("{}{twin}-{}", self.name, self.processes),
            false => format!("{CONNECTION_SESSION}{}{twin}-{}", self.name, self.connections),
        })
    }

    fn say(&self, world: &mut dyn Ground, what: Message) {
        let (process, at_us) = (self.number, world.now());
        world.shards().sent.push(SentMessage { process, at_us, what });
    }

    fn ask(&self, world: &mut dyn Ground, me: usize, ask: ShardAsk) -> usize {
        world.ask(me, Question::Shards { process: self.number, ask: Box::new(ask) })
    }
}
