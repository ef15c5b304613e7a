//! Runs the scripts in `tests/scenarios/`: a command, `----`, and the trace that it leaves.
//!
//! Every line before `----` is one command; every line after it, up to an empty line, is expected. Lines that
//! begin with `#` are for the reader. `quietly` before a command keeps its trace away, and `impossible` before an event
//! shows that it stops the process. `UPDATE_SCENARIOS=1 cargo test -p orchestrix-core` writes the traces anew;
//! read what changed before you keep it.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use orchestrix_core::limits::QUEUES_MAX;
use orchestrix_core::wire::{Backoff, Submit};
use orchestrix_core::{
    Command, Decision, Event, ExpiryReason, FormatRaised, Json, Key, Lease, LeaseExpired, LeaseGranted,
    LeaseId, Name, Next, PositionsSkipped, Records, Retention, State, TaskCommand, TaskId, TermCommand,
    Timestamp, encode_record,
};

#[test]
fn every_scenario_leaves_the_trace_that_it_tells() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let update = std::env::var_os("UPDATE_SCENARIOS").is_some();
    let mut scripts = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let script = std::fs::read_to_string(&path).unwrap();
        let played = play(&script);
        if update {
            std::fs::write(&path, &played).unwrap();
        }
        assert!(
            update || played == script,
            "{} leaves another trace:\n{}",
            path.display(),
            difference(&script, &played)
        );
        scripts += 1;
    }
    assert!(scripts >= 8, "only {scripts} scenarios were found");
}

/// Plays a script; answers it with the traces that were left.
fn play(script: &str) -> String {
    let mut world = World::new();
    let mut played = String::new();
    let mut lines = script.lines().peekable();
    while let Some(line) = lines.next() {
        writeln!(played, "{line}").unwrap();
        if line == "----" {
            while lines.next_if(|line| !line.is_empty()).is_some() {}
            played.push_str(&std::mem::take(&mut world.trace));
        } else if !line.is_empty() && !line.starts_with('#') {
            world.run(line);
        }
    }
    assert!(world.trace.is_empty(), "the script ends with commands without a trace");
    world.check_replay();
    played
}

fn difference(expected: &str, found: &str) -> String {
    let pairs = expected.lines().zip(found.lines()).enumerate();
    let first = pairs.into_iter().find(|(_, (expected, found))| expected != found);
    first.map_or_else(
        || "one is longer than the other".to_owned(),
        |(n, (expected, found))| format!("line {}\n  expected {expected}\n  found    {found}", n + 1),
    )
}

struct World {
    state: State,
    now: Timestamp,
    trace: String,
    journal: Vec<u8>,
    queues_max: usize,
}

impl World {
    fn new() -> Self {
        Self {
            state: State::new(),
            now: Timestamp(0),
            trace: String::new(),
            journal: Vec::new(),
            queues_max: QUEUES_MAX,
        }
    }

    fn run(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (name, words) = words.split_first().unwrap();
        match *name {
            "wait" => self.wait(millis(words[0])),
            // Time passes, but nobody looks at the clock.
            "sleep" => self.now = self.now.plus(millis(words[0])),
            "show" => self.show(TaskId(words[0].parse().unwrap())),
            "count" => self.count(),
            "queues" => self.queues_max = words[0].parse().unwrap(),
            "submits" => {
                let count: usize = words[0].parse().unwrap();
                (0..count).for_each(|_| self.quietly(|world| world.decide(&command("submit", &words[1..]))));
            }
            "ends" => self.quietly(|world| world.end(words[0].parse().unwrap(), words[1], words[2])),
            "quietly" => self.quietly(|world| world.run(&words.join(" "))),
            "skip" | "raise" | "lapse" => self.apply(event(name, words)),
            "impossible" => self.stops(event(words[0], &words[1..])),
            _ => self.decide(&command(name, words)),
        }
    }

    fn wait(&mut self, millis: u64) {
        self.now = self.now.plus(millis);
        self.state.advance(self.now, |_| {});
        let mut most = 0..10_000;
        while let Some(task) = self.state.next_end(self.now) {
            assert!(most.next().is_some(), "task {task} is over, and does not end");
            self.decide(&Command::Task(TaskCommand::Expire { task }));
        }
    }

    fn quietly(&mut self, run: impl FnOnce(&mut Self)) {
        let trace = std::mem::take(&mut self.trace);
        run(self);
        self.trace = trace;
    }

    /// Leases so many tasks of a queue and completes or fails each.
    fn end(&mut self, count: usize, how: &str, queue: &str) {
        for _ in 0..count {
            self.decide(&command("lease", &["w", queue]));
            let lease = LeaseId(self.state.position().0);
            let (task, lease) = (self.state.leased(lease).unwrap().id.to_string(), lease.to_string());
            let words = [task.as_str(), lease.as_str(), "broken", "retry=no"];
            self.decide(&command(how, if how == "fail" { &words } else { &words[..2] }));
        }
    }

    fn decide(&mut self, command: &Command) {
        let decide = |()| self.state.decide_within(command, self.queues_max, self.now);
        match command.validate().and_then(decide) {
            Ok(Decision::Event(event)) => self.apply(event),
            Ok(Decision::Already(outcome)) => {
                let json = serde_json::to_string(&outcome).unwrap();
                writeln!(self.trace, "already {json}").unwrap();
            }
            Ok(Decision::Nothing) => writeln!(self.trace, "nothing").unwrap(),
            Err(refusal) => writeln!(self.trace, "refused {}: {refusal}", refusal.code()).unwrap(),
        }
    }

    fn apply(&mut self, event: Event) {
        let text = tell(&event);
        encode_record(self.now, &event, &mut self.journal);
        let position = self.state.apply(self.now, event);
        writeln!(self.trace, "{position} {text}").unwrap();
    }

    /// Tells why an event stops a process with the same state.
    fn stops(&mut self, event: Event) {
        let (mut state, text) = (self.replayed(), tell(&event));
        let stopped = catch_unwind(AssertUnwindSafe(|| state.apply(self.now, event)));
        let why = stopped.expect_err("it is impossible");
        let why = why.downcast_ref::<&str>().copied().or(why.downcast_ref::<String>().map(String::as_str));
        let why = why.unwrap().lines().next().unwrap();
        writeln!(self.trace, "impossible {text}: {why}").unwrap();
    }

    fn count(&mut self) {
        for queue in self.state.queues() {
            let all = queue.all;
            let (waiting, leased) = (all.waiting, all.leased);
            let (completed, failed, cancelled) = (all.completed, all.failed, all.cancelled);
            write!(self.trace, "{}: {waiting} waiting, {leased} leased, ", queue.queue).unwrap();
            writeln!(self.trace, "{completed} completed, {failed} failed, {cancelled} cancelled").unwrap();
        }
        writeln!(self.trace, "{} keys of purged tasks", self.state.remembered_keys()).unwrap();
    }

    fn show(&mut self, id: TaskId) {
        let Some(task) = self.state.task(id) else {
            writeln!(self.trace, "task {id} is not there").unwrap();
            return;
        };
        let view = task.summary();
        write!(self.trace, "task {id} {} attempt {}/{}", view.state, view.attempt, view.max_attempts)
            .unwrap();
        if let Some(lease) = view.lease {
            write!(self.trace, " lease {} until {}", lease.lease_id, lease.expires_at.0).unwrap();
        }
        if let Some(reason) = view.reason {
            write!(self.trace, " because {reason}").unwrap();
        }
        if let Some(name) = view.cancelled_by {
            write!(self.trace, " by {name}").unwrap();
        }
        if task.round() > 1 {
            write!(self.trace, " round {}", task.round()).unwrap();
        }
        let attempts = task.attempts().iter().map(|attempt| attempt.end.as_str());
        writeln!(self.trace, " after [{}]", attempts.collect::<Vec<_>>().join(" ")).unwrap();
    }

    /// What was played must come out of its own journal.
    fn check_replay(&self) {
        assert_eq!(self.replayed().fingerprint(), self.state.fingerprint());
    }

    fn replayed(&self) -> State {
        let mut replayed = State::new();
        for record in Records::new(&self.journal) {
            let (at, event) = record.unwrap();
            replayed.apply(at, event);
        }
        replayed
    }
}

/// An event on one line: its name and the fields that say something.
fn tell(event: &Event) -> String {
    let serde_json::Value::Object(mut fields) = serde_json::to_value(event).unwrap() else {
        panic!("an object")
    };
    fields.remove("type");
    fields.retain(|_, value| !value.is_null());
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
    format!("{} {}", event.name(), fields.join(" "))
}

fn command(name: &str, words: &[&str]) -> Command {
    let plain: Vec<&str> = words.iter().copied().filter(|word| !is_option(word)).collect();
    let option = |name: &str| words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let task = || TaskId(plain[0].parse().unwrap());
    let lease = || LeaseId(plain[1].parse().unwrap());
    let worker = option("worker").map(name_of);
    let actor = || option("actor").map(name_of);
    match name {
        "term" => Command::Term(TermCommand::Start {
            epoch: 0,
            node: plain[0].to_owned(),
            actor: actor(),
            shard_lease_ms: None,
        }),
        "submit" => Command::submit(submit(&plain, option)),
        "lease" => Command::Task(TaskCommand::Lease(Lease {
            worker: name_of(plain[0]),
            queues: plain[1].split(',').map(name_of).collect(),
            lease_ms: option("lease").map_or(30_000, millis),
            request_id: option("request").map(name_of),
            capacity: option("capacity").map(|text| text.parse().unwrap()),
        })),
        "heartbeat" => Command::Task(TaskCommand::Heartbeat {
            task: task(),
            lease: lease(),
            worker,
            progress: option("progress").map(|text| text.parse().unwrap()),
            note: option("note").map(str::to_owned),
        }),
        "heartbeat-all" => Command::Task(TaskCommand::HeartbeatAll {
            worker: name_of(plain[0]),
            leases: plain[1..].iter().map(|text| LeaseId(text.parse().unwrap())).collect(),
        }),
        "complete" => Command::Task(TaskCommand::Complete {
            task: task(),
            lease: lease(),
            worker,
            result: option("result").map(|text| Json::parse(text).unwrap()),
        }),
        "fail" => {
            let retry = option("retry") != Some("no");
            Command::Task(TaskCommand::Fail {
                task: task(),
                lease: lease(),
                worker,
                error: plain[2].to_owned(),
                retry,
            })
        }
        "release" => Command::Task(TaskCommand::Release { task: task(), lease: lease(), worker }),
        "abandon" => Command::Task(TaskCommand::Abandon { task: task(), lease: lease() }),
        "expire" => Command::Task(TaskCommand::Expire { task: task() }),
        "cancel" => Command::Task(TaskCommand::Cancel { task: task(), actor: actor() }),
        "retry" => Command::Task(TaskCommand::Retry { task: task(), actor: actor() }),
        "purge" => Command::Task(TaskCommand::Purge(Retention {
            done_ms: option("done").map_or(0, millis),
            failed_ms: option("failed").map_or(0, millis),
            count: option("count").map_or(1_000, |text| text.parse().unwrap()),
            key_ms: option("keys_for").map_or(86_400_000, millis),
            keys: option("keys").map_or(1_000, |text| text.parse().unwrap()),
        })),
        other => panic!("no command {other:?}"),
    }
}

/// An event that no command asks for.
fn event(name: &str, words: &[&str]) -> Event {
    let number = |n: usize| words[n].parse::<u64>().unwrap();
    match name {
        "skip" => PositionsSkipped { count: number(0).try_into().unwrap() }.into(),
        "raise" => FormatRaised { format: number(0).try_into().unwrap() }.into(),
        "grant" => {
            let (task, worker) = (TaskId(number(0)), name_of("w"));
            let expires_at = Timestamp(60_000);
            let (attempt, length_ms) = (1, 1_000);
            LeaseGranted { task, worker, attempt, length_ms, expires_at, timeout_at: None, request_id: None }
                .into()
        }
        // It goes on, however many attempts it has had.
        "lapse" => LeaseExpired {
            task: TaskId(number(0)),
            lease: LeaseId(number(1)),
            reason: ExpiryReason::Silent,
            next: Next::Waiting { not_before: Timestamp(0) },
        }
        .into(),
        other => panic!("no event {other:?}"),
    }
}

fn submit<'a>(plain: &[&str], option: impl Fn(&str) -> Option<&'a str>) -> Submit {
    let number = |name: &str| option(name).map(|text| text.parse::<u32>().unwrap());
    let mut task = Submit::new(name_of(plain[0]), Json::parse(plain[1]).unwrap());
    task.key = option("key").map(|key| Key::new(key).unwrap());
    task.priority = option("priority").map_or(0, |text| text.parse().unwrap());
    task.delay_ms = option("delay").map_or(0, millis);
    task.max_attempts = number("max_attempts").unwrap_or(task.max_attempts);
    task.timeout_ms = option("timeout").map(millis);
    task.ttl_ms = option("ttl").map(millis);
    if let Some(base) = option("backoff") {
        task.backoff = Backoff { base_ms: millis(base), ..Backoff::default() };
    }
    task
}

fn is_option(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
}

fn name_of(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn millis(text: &str) -> u64 {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().unwrap();
    match &text[digits.len()..] {
        "ms" | "" => number,
        "s" => number * 1_000,
        "m" => number * 60_000,
        "h" => number * 3_600_000,
        "d" => number * 86_400_000,
        unit => panic!("no unit {unit:?}"),
    }
}
