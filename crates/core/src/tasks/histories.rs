//! Random histories: what was decided replays to the same state, from every prefix and through every snapshot,
//! and the indexes always say what the tasks say.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::Index;

use super::Tasks;
use crate::wire::{Backoff, Submit};
use crate::{
    Command, Decision, Json, Key, Lease, LeaseId, Name, Records, Retention, SnapshotLoader, State,
    TaskCommand, TaskEvent, TaskId, TaskState, TermCommand, Timestamp, encode_record,
};

/// One step of a history; tasks and leases are drawn from those that have been.
#[derive(Clone, Debug)]
enum Step {
    Submit {
        queue: u8,
        key: Option<u8>,
        priority: i32,
        delay_ms: u64,
        ttl: bool,
        timeout: bool,
        attempts: u32,
    },
    Lease {
        worker: u8,
        queue: u8,
        lease_ms: u64,
        request: Option<u8>,
        capacity: Option<u32>,
    },
    Heartbeat(Index),
    HeartbeatAll {
        worker: u8,
        leases: Vec<Index>,
    },
    Complete(Index),
    Fail(Index, bool),
    Release(Index),
    Abandon(Index),
    Cancel(Index),
    Retry(Index),
    Purge,
    Term,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let submit = (
        0_u8..3,
        prop::option::weighted(0.3, 0_u8..4),
        -2_i32..3,
        prop::bool::weighted(0.3),
        any::<[bool; 2]>(),
        1_u32..4,
    );
    let submit = submit.prop_map(|(queue, key, priority, delayed, [ttl, timeout], attempts)| Step::Submit {
        queue,
        key,
        priority,
        delay_ms: if delayed { 5_000 } else { 0 },
        ttl: ttl && timeout,
        timeout,
        attempts,
    });
    let lease = (
        0_u8..3,
        0_u8..3,
        100_u64..20_000,
        prop::option::weighted(0.3, 0_u8..3),
        prop::option::weighted(0.2, 1_u32..4),
    );
    let lease = lease.prop_map(|(worker, queue, lease_ms, request, capacity)| Step::Lease {
        worker,
        queue,
        lease_ms,
        request,
        capacity,
    });
    let all = (0_u8..3, prop::collection::vec(any::<Index>(), 0..5));
    prop_oneof![
        6 => submit,
        8 => lease,
        1 => any::<Index>().prop_map(Step::Heartbeat),
        2 => all.prop_map(|(worker, leases)| Step::HeartbeatAll { worker, leases }),
        4 => any::<Index>().prop_map(Step::Complete),
        3 => (any::<Index>(), any::<bool>()).prop_map(|(index, retry)| Step::Fail(index, retry)),
        2 => any::<Index>().prop_map(Step::Release),
        1 => any::<Index>().prop_map(Step::Abandon),
        1 => any::<Index>().prop_map(Step::Cancel),
        1 => any::<Index>().prop_map(Step::Retry),
        1 => Just(Step::Purge),
        1 => Just(Step::Term),
        4 => prop_oneof![3 => 1_u64..3_000, 1 => 3_000_u64..40_000, 1 => Just(90_000_000)].prop_map(Step::Wait),
    ]
}

struct History {
    state: State,
    now: Timestamp,
    records: Vec<u8>,
    /// The fingerprint after every event.
    fingerprints: Vec<[u8; 16]>,
    tasks: Vec<TaskId>,
    leases: Vec<(TaskId, LeaseId)>,
}

impl History {
    fn new() -> Self {
        let now = Timestamp(1_000_000);
        Self {
            state: State::new(),
            now,
            records: vec![],
            fingerprints: vec![],
            tasks: vec![],
            leases: vec![],
        }
    }

    fn run(&mut self, step: &Step) {
        if let Step::Wait(millis) = step {
            return self.wait(*millis);
        }
        if let Some(command) = self.command(step) {
            self.decide(&command);
        }
    }

    fn wait(&mut self, millis: u64) {
        self.now = self.now.plus(millis);
        self.state.advance(self.now, |_| {});
        let mut most = 0..400;
        while let Some(task) = self.state.next_end(self.now) {
            assert!(most.next().is_some(), "task {task} is over, and does not end");
            self.decide(&Command::Task(TaskCommand::Expire { task }));
        }
    }

    fn decide(&mut self, command: &Command) {
        command.validate().unwrap();
        let before = self.state.fingerprint();
        let decided = self.state.decide(command, self.now);
        assert_eq!(self.state.fingerprint(), before, "to decide changes nothing");
        let Ok(Decision::Event(event)) = decided else { return };
        encode_record(self.state.format_of(&event), self.now, &event, &mut self.records);
        let name = event.name();
        let granted = if let crate::Event::Task(TaskEvent::LeaseGranted(event)) = &event {
            Some(event.task)
        } else {
            None
        };
        let position = self.state.apply(self.now, event);
        match name {
            "TaskCreated" => self.tasks.push(TaskId(position.0)),
            "LeaseGranted" => self.leases.push((granted.unwrap(), LeaseId(position.0))),
            _ => {}
        }
        self.fingerprints.push(self.state.fingerprint());
        self.state.tasks.check(self.state.at);
    }

    fn command(&self, step: &Step) -> Option<Command> {
        let task = |index: &Index| (!self.tasks.is_empty()).then(|| *index.get(&self.tasks));
        let lease = |index: &Index| (!self.leases.is_empty()).then(|| *index.get(&self.leases));
        Some(match step {
            Step::Submit { queue, key, priority, delay_ms, ttl, timeout, attempts } => {
                let payload = Json::parse(&format!("{{\"n\":{}}}", self.tasks.len() % 3)).unwrap();
                let mut task = Submit::new(name("queue", *queue), payload);
                task.key = key.map(|key| Key::new(&format!("key-{key}")).unwrap());
                task.priority = *priority;
                task.delay_ms = *delay_ms;
                task.ttl_ms = ttl.then_some(9_000);
                task.timeout_ms = timeout.then_some(6_000);
                task.max_attempts = *attempts;
                task.backoff = Backoff { base_ms: 700, ..Backoff::default() };
                Command::submit(task)
            }
            Step::Lease { worker, queue, lease_ms, request, capacity } => {
                Command::Task(TaskCommand::Lease(Lease {
                    queues: vec![name("queue", *queue), name("queue", 0)],
                    worker: name("worker", *worker),
                    lease_ms: *lease_ms,
                    request_id: request.map(|request| name("request", request)),
                    capacity: *capacity,
                }))
            }
            Step::Heartbeat(index) => {
                let (task, lease) = lease(index)?;
                Command::Task(TaskCommand::Heartbeat {
                    task,
                    lease,
                    worker: None,
                    progress: Some(7),
                    note: None,
                })
            }
            Step::HeartbeatAll { worker, leases } => Command::Task(TaskCommand::HeartbeatAll {
                worker: name("worker", *worker),
                leases: leases.iter().filter_map(|index| Some(lease(index)?.1)).collect(),
            }),
            Step::Complete(index) => {
                let (task, lease) = lease(index)?;
                Command::Task(TaskCommand::Complete { task, lease, worker: None, result: Some(Json::null()) })
            }
            Step::Fail(index, retry) => {
                let (task, lease) = lease(index)?;
                Command::Task(TaskCommand::Fail {
                    task,
                    lease,
                    worker: None,
                    error: "broken".to_owned(),
                    retry: *retry,
                })
            }
            Step::Release(index) => {
                let (task, lease) = lease(index)?;
                Command::Task(TaskCommand::Release { task, lease, worker: None })
            }
            Step::Abandon(index) => {
                let (task, lease) = lease(index)?;
                Command::Task(TaskCommand::Abandon { task, lease })
            }
            Step::Cancel(index) => Command::Task(TaskCommand::Cancel { task: task(index)?, actor: None }),
            Step::Retry(index) => Command::Task(TaskCommand::Retry { task: task(index)?, actor: None }),
            Step::Purge => Command::Task(TaskCommand::Purge(Retention {
                done_ms: 2_000,
                failed_ms: 20_000,
                count: 3,
                key_ms: 30_000,
                keys: 4,
            })),
            Step::Term => Command::Term(TermCommand::Start {
                epoch: 0,
                node: "node".to_owned(),
                actor: None,
                shard_lease_ms: Some(15_000),
            }),
            Step::Wait(_) => return None,
        })
    }
}

fn name(kind: &str, n: u8) -> Name {
    Name::new(&format!("{kind}-{n}")).unwrap()
}

impl Tasks {
    /// Makes every index anew from the tasks and compares. Delayed tasks may stand in line already.
    pub(crate) fn check(&self, at: Timestamp) {
        let mut anew = Tasks::default();
        for task in self.all.after(None) {
            assert_eq!(task.state == TaskState::Leased, task.lease.is_some());
            assert!(task.charged <= task.max_attempts);
            anew.all.insert(task.clone());
            anew.index(task.id, at);
        }
        assert_eq!(anew.leases, self.leases);
        assert_eq!(anew.holders, self.holders);
        assert_eq!((&anew.ends, &anew.bus_ends), (&self.ends, &self.bus_ends));
        assert_eq!((&anew.offers, &anew.bus_held), (&self.offers, &self.bus_held));
        assert_eq!(self.bus_change, None, "owners were told");
        assert_eq!((&anew.done, &anew.failed), (&self.done, &self.failed));
        assert_eq!(self.remembered.iter().count(), self.remembered.len());
        assert_eq!(sorted(&anew.requests), sorted(&self.requests));
        assert!(anew.keys.keys().eq(self.keys.keys()));
        assert!(anew.queues.keys().eq(self.queues.keys()));
        for (name, queue) in &self.queues {
            assert_eq!(queue.counts, anew.queues[name].counts);
        }
        let lined_up = |tasks: &Tasks| tasks.queues.values().map(|queue| queue.ready.len()).sum::<usize>();
        assert_eq!(lined_up(&anew) + anew.delayed.len(), lined_up(self) + self.delayed.len());
    }
}

fn sorted(requests: &BTreeMap<(Name, Name), Vec<LeaseId>>) -> BTreeMap<(Name, Name), Vec<LeaseId>> {
    let mut requests = requests.clone();
    requests.values_mut().for_each(|leases| leases.sort());
    requests
}

/// A snapshot taken while the history goes on.
struct Taken {
    at: usize,
    chunks: Vec<Vec<u8>>,
}

impl Taken {
    fn step(&mut self, state: &mut State, tasks: usize) -> bool {
        let mut chunk = Vec::new();
        let more = state.step_capture(tasks, 300, &mut chunk);
        self.chunks.push(chunk);
        more
    }

    fn load(&self) -> State {
        let mut loader = SnapshotLoader::new();
        self.chunks.iter().for_each(|chunk| loader.load(chunk).unwrap());
        loader.finish().unwrap()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn a_history_replays_from_every_prefix_and_snapshot(
        steps in prop::collection::vec(step(), 1..160),
        begins in 0_usize..100,
        pace in 1_usize..4,
    ) {
        let mut history = History::new();
        let (mut taken, mut under_way): (Vec<Taken>, Option<Taken>) = (Vec::new(), None);
        for (n, step) in steps.iter().enumerate() {
            history.run(step);
            match under_way.as_mut().map(|taken| taken.step(&mut history.state, pace)) {
                Some(true) => {}
                Some(false) => taken.extend(under_way.take()),
                None if n % 20 == begins % 20 => {
                    let chunks = vec![history.state.begin_capture()];
                    under_way = Some(Taken { at: history.fingerprints.len(), chunks });
                }
                None => {}
            }
        }
        if let Some(mut last) = under_way {
            while last.step(&mut history.state, pace) {}
            taken.push(last);
        }

        let records: Vec<_> = Records::new(&history.records).map(Result::unwrap).collect();
        prop_assert_eq!(records.len(), history.fingerprints.len());
        let mut replayed = State::new();
        for ((at, event), fingerprint) in records.iter().zip(&history.fingerprints) {
            replayed.apply(*at, event.clone());
            prop_assert_eq!(replayed.fingerprint(), *fingerprint);
        }
        replayed.tasks.check(replayed.at);
        for taken in &taken {
            let mut loaded = taken.load();
            let expected = taken.at.checked_sub(1).map_or_else(|| State::new().fingerprint(), |n| history.fingerprints[n]);
            prop_assert_eq!(loaded.fingerprint(), expected);
            loaded.tasks.check(loaded.at);
            for (at, event) in &records[taken.at..] {
                loaded.apply(*at, event.clone());
            }
            prop_assert_eq!(loaded.fingerprint(), history.state.fingerprint());
            loaded.tasks.check(loaded.at);
        }
    }
}
