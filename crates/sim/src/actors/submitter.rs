//! Submits tasks, looks at them, cancels and retries some.

use orchestrix_core::wire::{Backoff, Submit};
use orchestrix_core::{Json, Key, Name, Refusal, TaskId, TaskState};
use orchestrix_node::{Error, Seen};

use crate::actors::{Ground, Heard};
use crate::coverage::Covered;
use crate::history::{Answer, Question};
use crate::rng::Rng;

/// Microseconds.
const SECOND: u64 = 1_000_000;
/// Tasks remembered for another look.
const KNOWN_MAX: usize = 50;

pub(crate) struct Submitter {
    number: usize,
    left: u64,
    made: u64,
    rng: Rng,
    asking: Option<usize>,
    /// A question whose outcome is not known: it is asked again until it is.
    again: Option<Question>,
    known: Vec<TaskId>,
    /// Submits with keys that were accepted, to be repeated.
    keyed: Vec<Submit>,
}

impl Submitter {
    pub(crate) fn new(number: usize, left: u64, rng: Rng) -> Self {
        Self { number, left, made: 0, rng, asking: None, again: None, known: Vec::new(), keyed: Vec::new() }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.left == 0 && self.asking.is_none() && self.again.is_none()
    }

    pub(crate) fn wake(&mut self, world: &mut dyn Ground, me: usize) {
        if self.asking.is_some() {
            return;
        }
        let question = match self.again.clone() {
            Some(question) => question,
            None if self.left == 0 => return,
            None => self.next(world),
        };
        self.asking = Some(world.ask(me, question));
    }

    pub(crate) fn hear(&mut self, world: &mut dyn Ground, me: usize, op: usize, heard: Heard) {
        if self.asking != Some(op) {
            return;
        }
        self.asking = None;
        let question = world.op(op).question.clone();
        let resolved = self.again.is_some();
        match heard.certain() {
            None
            | Some(Err(Error::Overloaded | Error::Stopping | Error::StorageFull | Error::Unavailable)) => {
                // Without a key, asking again could make a second task.
                let harmless = !matches!(&question, Question::Submit(task) if task.key.is_none());
                self.again = harmless.then_some(question);
            }
            Some(answer) => {
                world.see(resolved, Covered::UnknownResolved);
                self.again = None;
                self.learn(world, question, answer);
            }
        }
        let pause = self.rng.skewed(1_000, 3 * SECOND);
        world.wake_after(me, pause);
    }

    fn learn(&mut self, world: &mut dyn Ground, question: Question, answer: Result<Answer, Error>) {
        match (question, answer) {
            (Question::Submit(task), Ok(Answer::Submitted(outcome, seen))) => {
                world.see(true, Covered::Submitted);
                world.see(seen == Seen::Repeat, Covered::KeyRepeated);
                if self.known.len() == KNOWN_MAX {
                    self.known.remove(0);
                }
                self.known.push(outcome.id);
                if task.key.is_some() {
                    self.keyed.push(task);
                }
            }
            (_, Err(Error::Refused(Refusal::KeyConflict { .. }))) => world.see(true, Covered::KeyConflict),
            (_, Err(Error::Refused(Refusal::Invalid { .. }))) => world.see(true, Covered::QueueRefused),
            (_, Err(Error::Refused(Refusal::NotFound(id)))) => self.known.retain(|known| *known != id),
            (Question::Retry { .. }, Ok(_)) => world.see(true, Covered::Retried),
            (Question::Get { task }, Ok(Answer::Task(view)))
                if view.summary.state == TaskState::Failed && self.rng.chance(800_000) =>
            {
                self.again = Some(Question::Retry { task });
            }
            _ => {}
        }
    }

    fn next(&mut self, world: &mut dyn Ground) -> Question {
        if !self.known.is_empty() && self.rng.chance(world.plan().cancels) {
            let task = self.known[self.rng.index(self.known.len())];
            return Question::Cancel { task };
        }
        if !self.known.is_empty() && self.rng.chance(300_000) {
            let task = self.known[self.rng.index(self.known.len())];
            return Question::Get { task };
        }
        if self.rng.chance(100_000) {
            return Question::Queues;
        }
        self.left -= 1;
        if !self.keyed.is_empty() && self.rng.chance(50_000) {
            let mut task = self.keyed[self.rng.index(self.keyed.len())].clone();
            if self.rng.chance(300_000) {
                task.priority += 1;
            }
            return Question::Submit(task);
        }
        Question::Submit(self.task(world))
    }

    fn task(&mut self, world: &mut dyn Ground) -> Submit {
        self.made += 1;
        let rng = &mut self.rng;
        let unique = format!("{}-{}", self.number, self.made);
        let poison = rng.chance(world.plan().poison);
        let pad = "x".repeat(usize::try_from(rng.skewed(1, 2_000)).unwrap_or(1));
        let payload = format!("{{\"of\":\"{unique}\",\"poison\":{poison},\"pad\":\"{pad}\"}}");
        let queue = Name::new(&format!("q{}", rng.index(world.plan().queues))).expect("a plain name");
        let mut task = Submit::new(queue, Json::parse(&payload).expect("plain JSON"));
        if rng.chance(world.plan().keyed) {
            task.key = Some(Key::new(&unique).expect("a plain key"));
        }
        if rng.chance(300_000) {
            task.priority = i32::try_from(rng.range(0, 4)).unwrap_or(0) - 2;
        }
        if rng.chance(200_000) {
            task.delay_ms = rng.skewed(1, 60_000);
        }
        if rng.chance(100_000) {
            task.ttl_ms = Some(rng.skewed(100, 120_000));
        }
        // Where nothing goes wrong, leases of one worker have more often different lengths.
        if rng.chance(if world.plan().calm { 500_000 } else { 100_000 }) {
            task.timeout_ms = Some(rng.skewed(100, 60_000));
        }
        task.max_attempts = u32::try_from(rng.range(1, 5)).unwrap_or(1);
        task.backoff = Backoff { base_ms: rng.skewed(1, 2_000), factor: 2.0, max_ms: 10_000 };
        task
    }
}
