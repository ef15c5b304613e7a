//! Random histories of the bus: the rules decide each command, and the model finds nothing. It agrees with the state on owners
//! and on the ends of leases. An event that comes twice is found.

use std::collections::BTreeMap;

use orchestrix_core::wire::Submit;
use orchestrix_core::{
    Claim, Command, Decision, Event, FormatRaised, HeldLease, Json, Lease, LeaseGranted, LeaseId,
    LeaseOffered, NodeLeftReason, Offer, OwnerToken, OwnershipCommand, OwnershipEvent, Position, Refusal,
    State, TaskCommand, TaskEvent, TaskId, TermCommand, Timestamp, WITH_BUS,
};

use super::super::name;
use crate::check::model::walk;
use crate::coverage::Coverage;
use crate::history::{Entry, History};
use crate::rng::Rng;

const HISTORIES: u64 = 60;
const STEPS: usize = 150;

/// A journal that the rules have decided.
struct Drawn {
    rng: Rng,
    state: State,
    now: Timestamp,
    history: History,
    leases: Vec<(TaskId, LeaseId)>,
    nodes: Vec<OwnerToken>,
    refused: BTreeMap<&'static str, u64>,
}

impl Drawn {
    /// Begins in the first format, in which there is no bus.
    fn draw(seed: u64) -> Self {
        let mut drawn = Self {
            rng: Rng::new(seed),
            state: State::new(),
            now: Timestamp(1_000_000),
            history: History::default(),
            leases: Vec::new(),
            nodes: Vec::new(),
            refused: BTreeMap::new(),
        };
        drawn.term();
        let raise_at = drawn.rng.index(STEPS / 5);
        for step in 0..STEPS {
            if step == raise_at {
                drawn.apply(FormatRaised { format: WITH_BUS }.into());
            }
            drawn.step();
        }
        drawn
    }

    fn step(&mut self) {
        match self.rng.index(20) {
            0..=3 => self.offer(),
            4 => self.lease_over_http(),
            5 | 6 => self.wait(),
            7 => self.term_or_silence(),
            8..=13 => self.report(),
            _ => self.own(),
        }
    }

    fn submit(&mut self) {
        let mut task = Submit::new(name("q"), Json::null());
        task.max_attempts = 1 + u32::try_from(self.rng.index(3)).unwrap_or(0);
        task.timeout_ms = self.rng.chance(300_000).then(|| self.rng.range(1_000, 30_000));
        task.ttl_ms = self.rng.chance(200_000).then(|| self.rng.range(1_000, 60_000));
        task.delay_ms = if self.rng.chance(200_000) { self.rng.range(1, 9_000) } else { 0 };
        self.decide(&Command::submit(task));
    }

    fn offer(&mut self) {
        self.submit();
        let offer = Offer { queues: vec![name("q")], lease_ms: self.rng.range(1_000, 20_000) };
        self.task(TaskCommand::Offer(offer));
    }

    fn lease_over_http(&mut self) {
        let (worker, lease_ms) = (self.worker(), self.rng.range(1_000, 20_000));
        let lease = Lease { queues: vec![name("q")], worker, lease_ms, request_id: None, capacity: None };
        self.task(TaskCommand::Lease(lease));
    }

    /// Time passes, and what is over ends.
    fn wait(&mut self) {
        let longest = if self.rng.chance(800_000) { 3_000 } else { 40_000 };
        self.now = self.now.plus(self.rng.range(1, longest));
        self.state.advance(self.now, |_| {});
        let mut most = 0..1_000;
        while let Some(task) = self.state.next_end(self.now) {
            assert!(most.next().is_some(), "task {task} is over, and does not end");
            self.task(TaskCommand::Expire { task });
        }
    }

    fn term(&mut self) {
        let node = "node".to_owned();
        self.decide(&TermCommand::Start { epoch: 0, node, actor: None, shard_lease_ms: None }.into());
    }

    fn term_or_silence(&mut self) {
        if self.rng.chance(500_000) {
            return self.term();
        }
        let silent_since = Timestamp(self.now.0 - self.rng.range(0, 9_000));
        self.task(TaskCommand::ResumeBus { silent_since });
    }

    /// Something that a worker or a client says of a lease.
    fn report(&mut self) {
        let Some((task, lease)) = self.any_lease() else { return };
        let by = self.worker();
        let worker = self.rng.chance(800_000).then(|| by.clone());
        let held = HeldLease { lease, worker: by.clone() };
        let command = match self.rng.index(12) {
            0..=2 => {
                let mut started = vec![held];
                while let Some((_, lease)) = self.any_lease().filter(|_| self.rng.chance(400_000)) {
                    started.push(HeldLease { lease, worker: by.clone() });
                }
                TaskCommand::Start(started)
            }
            3 => TaskCommand::Extend(vec![held]),
            4 => TaskCommand::Note { task, lease, worker: by, progress: Some(7), note: None },
            5 => TaskCommand::Heartbeat { task, lease, worker, progress: None, note: None },
            6 => TaskCommand::HeartbeatAll { worker: by, leases: vec![lease] },
            7 => TaskCommand::Complete { task, lease, worker, result: None },
            8 => {
                let retry = self.rng.chance(500_000);
                TaskCommand::Fail { task, lease, worker, error: String::new(), retry }
            }
            9 => TaskCommand::Release { task, lease, worker },
            10 => TaskCommand::Abandon { task, lease },
            _ => TaskCommand::Cancel { task, actor: None },
        };
        self.task(command);
    }

    /// Something about nodes and owners.
    fn own(&mut self) {
        let (name, life) = (format!("n{}", self.rng.index(3)), self.rng.index(3).to_string());
        let Some(node) = self.any_node().filter(|_| self.rng.chance(850_000)) else {
            let command = OwnershipCommand::Join { node: name, incarnation: life, address: String::new() };
            return self.decide(&command.into());
        };
        let of_bus = |state: &State, lease: LeaseId| {
            state.leased(lease).and_then(|task| task.lease.as_ref()).is_some_and(|lease| lease.is_of_bus())
        };
        let mut leases: Vec<LeaseId> =
            (0..1 + self.rng.index(3)).filter_map(|_| Some(self.any_lease()?.1)).collect();
        let all_live = self.rng.chance(800_000);
        leases.retain(|lease| !all_live || of_bus(&self.state, *lease));
        let command = match self.rng.index(10) {
            0 => OwnershipCommand::Leave { node, reason: NodeLeftReason::Silent },
            1 => OwnershipCommand::Drain { node },
            2 | 3 => {
                let owner =
                    leases.iter().find_map(|lease| self.state.owner_of(*lease)).map(|owner| owner.token);
                let all_its = self.rng.chance(800_000);
                leases.retain(|lease| {
                    !all_its || self.state.owner_of(*lease).map(|owner| owner.token) == owner
                });
                OwnershipCommand::Release { node: owner.unwrap_or(node), leases }
            }
            _ => {
                let claims = leases.into_iter().map(|lease| {
                    let owner = self.state.owner_of(lease).map(|owner| owner.token);
                    let previous = if self.rng.chance(700_000) { owner } else { self.any_node() };
                    Claim { lease, previous }
                });
                OwnershipCommand::Own { node, claims: claims.collect() }
            }
        };
        self.decide(&command.into());
    }

    fn worker(&mut self) -> orchestrix_core::Name {
        name(&format!("w{}", self.rng.index(2)))
    }

    /// One of the last few, which are mostly live.
    fn any_lease(&mut self) -> Option<(TaskId, LeaseId)> {
        let last = self.leases.len().saturating_sub(12);
        let some = &self.leases[last..];
        (!some.is_empty()).then(|| some[self.rng.index(some.len())])
    }

    fn any_node(&mut self) -> Option<OwnerToken> {
        let last = self.nodes.len().saturating_sub(4);
        let some = &self.nodes[last..];
        (!some.is_empty()).then(|| some[self.rng.index(some.len())])
    }

    fn task(&mut self, command: TaskCommand) {
        self.decide(&Command::Task(command));
    }

    fn decide(&mut self, command: &Command) {
        command.validate().unwrap();
        match self.state.decide(command, self.now) {
            Ok(Decision::Event(event)) => self.apply(event),
            Ok(Decision::Already(_) | Decision::Nothing) => {}
            Err(refusal) => {
                assert_ne!(refusal, Refusal::Internal, "{command:?} met a bug");
                *self.refused.entry(refusal.code()).or_default() += 1;
            }
        }
    }

    fn apply(&mut self, event: Event) {
        let position = self.state.position().next();
        if let Event::Task(
            TaskEvent::LeaseOffered(LeaseOffered { task, .. })
            | TaskEvent::LeaseGranted(LeaseGranted { task, .. }),
        ) = &event
        {
            self.leases.push((*task, LeaseId(position.0)));
        }
        if let Event::Ownership(OwnershipEvent::NodeJoined(_)) = &event {
            self.nodes.push(OwnerToken(position.0));
        }
        self.history.log.push(entry(position, self.now, event.clone()));
        self.state.apply(self.now, event);
    }
}

fn entry(position: Position, at: Timestamp, event: Event) -> Entry {
    Entry { position, at, event, batch: [0; 32] }
}

/// What must be found when an event comes twice; nothing where that may happen.
fn when_doubled(event: &Event) -> Option<&'static str> {
    match event.name() {
        "FormatRaised" => Some("W15"),
        "NodeJoined" | "NodeLeft" => Some("O7"),
        "NodeDraining" => Some("O6"),
        "OwnersAssigned" => Some("O1"),
        "OwnersReleased" => Some("O2"),
        "LeaseOffered" | "LeasesStarted" => Some("L1"),
        "LeaseReleased" | "TaskCompleted" | "TaskFailed" => Some("T6"),
        _ => None,
    }
}

#[test]
fn what_the_rules_decide_about_the_bus_breaks_nothing() {
    let mut events: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut refused: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in 1..=HISTORIES {
        let drawn = Drawn::draw(seed);
        let model = walk(&drawn.history, &mut Coverage::default());
        let model = model.unwrap_or_else(|violation| {
            let known = drawn.history.log.iter().map(|entry| format!("{entry:?}\n")).collect::<String>();
            panic!("seed {seed}: {violation}\n{known}")
        });
        for (_, lease) in &drawn.leases {
            let Some(live) = drawn.state.leased(*lease).and_then(|task| task.lease.as_ref()) else {
                continue;
            };
            let ends = model.leases[lease].ends.last().map(|(_, at)| *at);
            assert_eq!(ends, Some(live.ends_at()), "seed {seed}: the end of lease {lease}");
            let owner = drawn.state.owner_of(*lease).map(|node| node.token);
            assert_eq!(model.owner_of(*lease), owner, "seed {seed}: the owner of lease {lease}");
        }
        for entry in &drawn.history.log {
            *events.entry(entry.event.name()).or_default() += 1;
        }
        drawn.refused.into_iter().for_each(|(code, count)| *refused.entry(code).or_default() += count);
    }
    println!("{events:?}, refused: {refused:?}");
    let kinds = [
        "NodeJoined",
        "NodeLeft",
        "NodeDraining",
        "OwnersAssigned",
        "OwnersReleased",
        "LeaseOffered",
        "LeasesStarted",
        "BusResumed",
        "TaskCompleted",
        "LeaseExpired",
        "TaskCancelled",
    ];
    let rare = kinds.iter().find(|kind| events.get(*kind).is_none_or(|count| *count < 20));
    assert_eq!(rare, None, "{events:?}");
    assert!(refused["upgrading"] > 20 && refused["not_owner"] > 20, "{refused:?}");
}

#[test]
fn every_event_of_the_bus_that_comes_twice_is_found() {
    for seed in 1..=HISTORIES / 3 {
        let drawn = Drawn::draw(seed);
        for (n, doubled) in drawn.history.log.iter().enumerate() {
            let Some(expected) = when_doubled(&doubled.event) else { continue };
            let mut history = History { log: drawn.history.log[..=n].to_vec(), ..History::default() };
            history.log.push(entry(doubled.position.next(), doubled.at, doubled.event.clone()));
            let found = walk(&history, &mut Coverage::default()).err().map(|found| found.invariant);
            let event = &doubled.event;
            assert_eq!(found, Some(expected), "seed {seed}: {event:?}");
        }
    }
}
