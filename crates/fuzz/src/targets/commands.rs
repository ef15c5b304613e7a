//! Commands that an input spells out, decided by the rules and by a naive model, which must agree on every answer
//! and on every task after it. What was decided replays to the same state, and so does every snapshot.

mod model;

use orchestrix_core::wire::{Backoff, Submit};
use orchestrix_core::{
    Command, Decision, Event, Json, Key, Lease, LeaseId, Name, Records, Refusal, Retention, SnapshotLoader,
    State, TaskCommand, TaskEvent, TaskId, TermCommand, Timestamp, encode_record,
};

use self::model::{Model, Verdict};
use crate::source::Source;

/// Commands of one input. Bounds its time.
const COMMANDS_MAX: usize = 120;
const LENGTHS_MS: [u64; 6] = [10, 100, 1_000, 5_000, 30_000, 86_400_000];
const WAITS_MS: [u64; 8] = [1, 9, 50, 600, 3_000, 31_000, 3_600_000, 90_000_000];

pub(super) fn commands(input: &[u8]) {
    let mut source = Source::new(input);
    let mut history = History::new();
    for _ in 0..COMMANDS_MAX {
        if source.is_empty() {
            break;
        }
        history.step(&mut source);
    }
    history.finish();
}

struct History {
    state: State,
    model: Model,
    now: Timestamp,
    records: Vec<u8>,
    /// Ids of tasks and leases that have been, and some that never were.
    tasks: Vec<TaskId>,
    leases: Vec<(TaskId, LeaseId)>,
    capture: Option<Capture>,
}

/// A snapshot under way, and what it must amount to.
struct Capture {
    loader: SnapshotLoader,
    expected: [u8; 16],
}

impl History {
    fn new() -> Self {
        Self {
            state: State::new(),
            model: Model::default(),
            now: Timestamp(1_000_000),
            records: Vec::new(),
            tasks: vec![TaskId(0), TaskId(7_777)],
            leases: vec![(TaskId(0), LeaseId(0))],
            capture: None,
        }
    }

    fn step(&mut self, source: &mut Source<'_>) {
        let command = match source.byte() % 20 {
            0..=3 => submit(source),
            4..=7 => Command::Task(TaskCommand::Lease(Lease {
                queues: (0..=source.byte() % 2).map(|_| name("q", source.byte() % 3)).collect(),
                worker: name("w", source.byte() % 3),
                lease_ms: LENGTHS_MS[source.below(LENGTHS_MS.len())],
                request_id: None,
                capacity: Some(u32::from(source.byte() % 8)).filter(|capacity| *capacity > 0),
            })),
            8 => {
                let ((task, lease), worker) = (self.lease(source), worker(source));
                Command::Task(TaskCommand::Heartbeat {
                    task,
                    lease,
                    worker,
                    progress: Some(source.byte() % 101),
                    note: None,
                })
            }
            9 => {
                let leases = (0..source.byte() % 5).map(|_| self.lease(source).1).collect();
                Command::Task(TaskCommand::HeartbeatAll { worker: name("w", source.byte() % 3), leases })
            }
            10 => {
                let ((task, lease), worker) = (self.lease(source), worker(source));
                Command::Task(TaskCommand::Complete { task, lease, worker, result: Some(Json::null()) })
            }
            11 | 12 => {
                let ((task, lease), worker) = (self.lease(source), worker(source));
                Command::Task(TaskCommand::Fail {
                    task,
                    lease,
                    worker,
                    error: "broken".to_owned(),
                    retry: !source.byte().is_multiple_of(4),
                })
            }
            13 => {
                let ((task, lease), worker) = (self.lease(source), worker(source));
                Command::Task(TaskCommand::Release { task, lease, worker })
            }
            14 => {
                let (task, lease) = self.lease(source);
                Command::Task(TaskCommand::Abandon { task, lease })
            }
            15 => Command::Task(TaskCommand::Cancel { task: self.task(source), actor: None }),
            16 => Command::Task(TaskCommand::Retry { task: self.task(source), actor: None }),
            17 => match source.byte() % 4 {
                0 => Command::Term(TermCommand::Start {
                    epoch: u64::from(source.byte()),
                    node: "node".to_owned(),
                    actor: None,
                    shard_lease_ms: Some(15_000),
                }),
                1 => Command::Task(TaskCommand::Expire { task: self.task(source) }),
                2 => return self.step_capture(source),
                _ => Command::Task(TaskCommand::Purge(Retention {
                    done_ms: WAITS_MS[source.below(WAITS_MS.len())],
                    failed_ms: WAITS_MS[source.below(WAITS_MS.len())],
                    count: source.below(5),
                    ..Retention::default()
                })),
            },
            _ => return self.wait(WAITS_MS[source.below(WAITS_MS.len())]),
        };
        self.decide(&command);
    }

    fn task(&self, source: &mut Source<'_>) -> TaskId {
        self.tasks[source.below(self.tasks.len())]
    }

    fn lease(&self, source: &mut Source<'_>) -> (TaskId, LeaseId) {
        // The newest ones are the ones that matter most.
        let back = source.below(self.leases.len().min(256));
        self.leases[self.leases.len() - 1 - back]
    }

    /// Lets time pass, and everything end whose time is over, in its order.
    fn wait(&mut self, millis: u64) {
        self.now = self.now.plus(millis);
        self.state.advance(self.now, |_| {});
        loop {
            let due = self.state.next_end(self.now);
            assert_eq!(due, self.model.next_end(self.now.0).map(TaskId), "what ends next");
            let Some(task) = due else { break };
            let before = self.state.position();
            self.decide(&Command::Task(TaskCommand::Expire { task }));
            assert!(self.state.position() > before, "an end that is due is decided");
        }
    }

    fn decide(&mut self, command: &Command) {
        if command.validate().is_err() {
            return;
        }
        let decided = self.state.decide(command, self.now);
        assert_ne!(decided, Err(Refusal::Internal), "{command:?} met a bug");
        let id = self.state.position().0 + 1;
        let expected = self.model.judge(command, self.now.0, id);
        assert_eq!(verdict(&decided), expected, "{command:?} at {:?}", self.now);
        if let Ok(Decision::Event(event)) = decided {
            self.apply(event);
        }
        self.model.compare(&self.state);
    }

    fn apply(&mut self, event: Event) {
        encode_record(self.state.format_of(&event), self.now, &event, &mut self.records);
        let granted = if let Event::Task(TaskEvent::LeaseGranted(granted)) = &event {
            Some(granted.task)
        } else {
            None
        };
        let created = matches!(event, Event::Task(TaskEvent::TaskCreated(_)));
        let position = self.state.apply(self.now, event);
        if created {
            self.tasks.push(TaskId(position.0));
        }
        self.leases.extend(granted.map(|task| (task, LeaseId(position.0))));
    }

    /// Begins a snapshot, or takes the next piece of it.
    fn step_capture(&mut self, source: &mut Source<'_>) {
        let Some(mut capture) = self.capture.take() else {
            let expected = self.state.fingerprint();
            let mut loader = SnapshotLoader::new();
            loader.load(&self.state.begin_capture()).expect("a header that was captured can be loaded");
            self.capture = Some(Capture { loader, expected });
            return;
        };
        let mut chunk = Vec::new();
        let more = self.state.step_capture(1 + source.below(4), 400, &mut chunk);
        capture.loader.load(&chunk).expect("tasks that were captured can be loaded");
        if more {
            self.capture = Some(capture);
            return;
        }
        let loaded = capture.loader.finish().expect("a header was loaded");
        assert_eq!(loaded.fingerprint(), capture.expected, "a snapshot is the state at its beginning");
    }

    /// Reads back all that was decided.
    fn finish(mut self) {
        while self.capture.is_some() {
            self.step_capture(&mut Source::new(&[]));
        }
        let mut replayed = State::new();
        for record in Records::new(&self.records) {
            let (at, event) = record.expect("what was written can be read");
            replayed.apply(at, event);
        }
        assert_eq!(replayed.fingerprint(), self.state.fingerprint(), "the journal replays to the same state");
        self.model.compare(&replayed);
    }
}

fn submit(source: &mut Source<'_>) -> Command {
    let (queue, payload) = (name("q", source.byte() % 3), source.byte() % 2);
    let payload = Json::parse(&payload.to_string()).expect("a number is JSON");
    let mut task = Submit::new(queue, payload);
    let [more, key, delay] = [source.byte(), source.byte(), source.byte()];
    task.priority = i32::from(more % 5) - 2;
    task.max_attempts = 1 + u32::from(more / 8 % 4);
    task.key =
        key.is_multiple_of(3).then(|| Key::new(&format!("k{}", key / 3 % 3)).expect("a short key is valid"));
    task.delay_ms = if delay.is_multiple_of(3) { WAITS_MS[usize::from(delay) / 3 % 6] } else { 0 };
    if more & 0x80 != 0 {
        let terms = source.byte();
        task.ttl_ms = (terms & 1 != 0).then_some(WAITS_MS[usize::from(terms / 16) % 8]);
        task.timeout_ms = (terms & 2 != 0).then_some(WAITS_MS[usize::from(terms / 4) % 8]);
        task.backoff =
            Backoff { base_ms: u64::from(terms) * 10, factor: f64::from(terms % 4) + 0.5, max_ms: 10_000 };
    }
    Command::submit(task)
}

fn worker(source: &mut Source<'_>) -> Option<Name> {
    let drawn = source.byte();
    drawn.is_multiple_of(4).then(|| name("w", drawn / 4 % 3))
}

fn name(kind: &str, number: u8) -> Name {
    Name::new(&format!("{kind}{number}")).expect("a short name is valid")
}

fn verdict(decided: &Result<Decision, Refusal>) -> Verdict {
    match decided {
        Ok(Decision::Event(event)) => Verdict::Event(event.name()),
        Ok(Decision::Already(outcome)) => Verdict::Already(outcome.id.0, outcome.state),
        Ok(Decision::Nothing) => Verdict::Nothing,
        Err(refusal) => Verdict::Refused(refusal.code()),
    }
}
