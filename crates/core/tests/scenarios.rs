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
use orchestrix_core::{
    Command, Decision, Event, LeaseId, OwnerToken, Records, State, TaskCommand, TaskId, Timestamp,
    encode_record,
};

#[path = "scenarios/words.rs"]
mod words;

use words::{command, event, lease_id, millis, owner};

#[test]
fn every_scenario_leaves_the_trace_that_it_tells() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let update = std::env::var_os("UPDATE_SCENARIOS").is_some();
    let mut scripts = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|kind| kind != "txt") {
            continue;
        }
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
            "owners" => self.owners(),
            "check" => self.check(owner(words[0]), lease_id(words[1])),
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
        encode_record(self.state.format_of(&event), self.now, &event, &mut self.journal);
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

    /// All nodes, all leases of the bus that nobody owns, and the offers among all.
    fn owners(&mut self) {
        let leases =
            |leases: Vec<LeaseId>| format!("{:?}", leases.iter().map(|lease| lease.0).collect::<Vec<_>>());
        for node in self.state.nodes() {
            let drains = if node.draining { " drains" } else { "" };
            let owned = self.state.owned_by(node.token, None, 10);
            assert_eq!(owned.len(), node.owned);
            let owned_by = owned.iter().filter(|lease| self.state.owner_of(**lease) == Some(node));
            assert_eq!(owned_by.count(), owned.len());
            assert_eq!(self.state.node_named(node.name), Some(node));
            writeln!(self.trace, "{} {} owns {}{drains}", node.name, node.token, leases(owned)).unwrap();
        }
        let orphans = self.state.orphans(None, 10);
        let told: Vec<String> =
            orphans.iter().map(|(since, lease)| format!("{lease} since {}", since.0)).collect();
        let offers = self.state.offers(None).map(|task| task.lease.as_ref().unwrap().id).collect();
        let (told, offers, all) = (told.join(", "), leases(offers), self.state.bus_lease_count());
        writeln!(self.trace, "of {all} leases nobody owns [{told}], offered are {offers}").unwrap();
        assert_eq!(self.state.orphaned_since(), orphans.first().map(|(since, _)| *since));
        // One after the other they are the same.
        let mut paged = Vec::new();
        while let Some(next) = self.state.orphans(paged.last().copied(), 1).pop() {
            paged.push(next);
        }
        assert_eq!(paged, orphans);
    }

    fn check(&mut self, node: OwnerToken, lease: LeaseId) {
        match self.state.check_owner(node, lease) {
            Ok(()) => writeln!(self.trace, "node {node} owns lease {lease}").unwrap(),
            Err(refusal) => writeln!(self.trace, "refused {}: {refusal}", refusal.code()).unwrap(),
        }
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
            if task.lease.as_ref().unwrap().is_of_bus() {
                write!(self.trace, " of {}", lease.worker).unwrap();
                assert!(self.state.bus_leases_of(&lease.worker).contains(&lease.lease_id));
                let limit = lease.timeout_at.map(|at| format!(" at most until {}", at.0));
                let note = lease.note.map(|note| format!(" says {note}"));
                write!(self.trace, "{}{}", limit.unwrap_or_default(), note.unwrap_or_default()).unwrap();
            }
        } else if let Some(offer) = &task.lease {
            write!(self.trace, " offer {} until {}", offer.id, offer.expires_at.0).unwrap();
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
        for record in Records::up_to(u8::MAX, &self.journal) {
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
