//! Deletes output whose task is gone. It walks over all output.
//!
//! A leader that dies between a purge and the deletion leaves output behind, and no later leader hears of that purge. So
//! a new leader walks once over all tasks with output, slowly: no call waits for it.
//!
//! **Invariant:** only output of tasks is deleted whose id was given out before the term began and that the state does
//! not know. Ids are positions: such a task was there and was purged, and none will have its id again.

use std::time::Duration;

use orchestrix_core::{Position, TaskId};
use orchestrix_engine::{Bookmark, Logs};

/// Tasks that are listed, and asked about, in one step.
const LISTED_MAX: usize = 500;
/// Tasks whose output is deleted in one step. Bounds for how long that keeps the engine from others.
const DELETED_MAX: usize = 100;
/// Between two steps.
const PAUSE: Duration = Duration::from_millis(100);
/// After an engine did not answer.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(5);

/// Asks the state which of some tasks it does not know. `None` if there is no answer: the term is over.
pub(crate) type AskUnknown = Box<dyn FnMut(Vec<TaskId>) -> Option<Vec<TaskId>> + Send>;

/// One walk.
pub(super) struct Sweep {
    began_after: Position,
    ask: AskUnknown,
    /// Found, and not deleted yet.
    found: Vec<TaskId>,
    /// Where the walk goes on; `None` at its end.
    from: Option<Bookmark>,
    deleted: usize,
}

/// What comes after a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Swept {
    Pause(Duration),
    /// Every task that had output when it began was named, or its output is gone.
    Over,
    GivenUp,
}

impl Sweep {
    pub(super) fn new(began_after: Position, ask: AskUnknown) -> Self {
        Self { began_after, ask, found: Vec::new(), from: Some(Bookmark::default()), deleted: 0 }
    }

    /// Deletes some of what was found, or looks for more and names the tasks that have output and keep it.
    pub(super) fn step(&mut self, engine: &dyn Logs, name: impl FnOnce(&[TaskId])) -> Swept {
        match self.try_step(engine, name) {
            Ok(Swept::Over) => {
                if self.deleted > 0 {
                    tracing::info!(
                        tasks = self.deleted,
                        "deleted the output of tasks that were purged before"
                    );
                }
                Swept::Over
            }
            Ok(swept) => swept,
            Err(error) if error.may_pass() => {
                tracing::debug!(%error, "cannot look for the output of purged tasks; trying again later");
                Swept::Pause(PAUSE_AFTER_FAILURE)
            }
            Err(error) => {
                tracing::warn!(%error, "the output of purged tasks stays until the next leader starts");
                Swept::GivenUp
            }
        }
    }

    fn try_step(
        &mut self,
        engine: &dyn Logs,
        name: impl FnOnce(&[TaskId]),
    ) -> Result<Swept, orchestrix_engine::Error> {
        if !self.found.is_empty() {
            let some = self.found.len().min(DELETED_MAX);
            engine.delete(&self.found[..some])?;
            self.found.drain(..some);
            self.deleted += some;
            return Ok(Swept::Pause(PAUSE));
        }
        let Some(from) = self.from else { return Ok(Swept::Over) };
        let (mut tasks, next) = engine.some_tasks(from, LISTED_MAX)?;
        let before: Vec<TaskId> = tasks.iter().copied().filter(|task| task.0 <= self.began_after.0).collect();
        if !before.is_empty() {
            let Some(unknown) = (self.ask)(before) else { return Ok(Swept::GivenUp) };
            self.found = unknown;
        }
        tasks.retain(|task| !self.found.contains(task));
        name(&tasks);
        self.from = next;
        Ok(Swept::Pause(PAUSE))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use orchestrix_core::LeaseId;
    use orchestrix_engine::LogPlace;
    use orchestrix_engine::memory::MemoryLogs;

    use super::*;

    fn logs(tasks: impl IntoIterator<Item = u64>) -> MemoryLogs {
        let logs = MemoryLogs::default();
        for task in tasks {
            logs.append(LogPlace::first(TaskId(task), LeaseId(1)), b"line").unwrap();
        }
        logs
    }

    /// Steps to the end; how many that took.
    fn walk(sweep: &mut Sweep, logs: &MemoryLogs) -> usize {
        (1..1_000).find(|_| sweep.step(logs, |_| {}) == Swept::Over).expect("a walk ends")
    }

    fn left(logs: &MemoryLogs) -> Vec<u64> {
        logs.tasks().unwrap().into_iter().map(|task| task.0).collect()
    }

    #[test]
    fn only_unknown_output_from_before_the_term_is_deleted() {
        let logs = logs([1, 2, 9, 10, 11]);
        let known_is_two = |tasks: Vec<TaskId>| Some(tasks.into_iter().filter(|task| task.0 != 2).collect());
        walk(&mut Sweep::new(Position(10), Box::new(known_is_two)), &logs);
        assert_eq!(left(&logs), [2, 11]);
    }

    #[test]
    fn a_walk_is_made_of_bounded_steps() {
        let logs = logs(1..=LISTED_MAX as u64 + 1);
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&asked);
        let none_is_known = move |tasks: Vec<TaskId>| {
            noted.lock().unwrap().push(tasks.len());
            Some(tasks)
        };
        let steps = walk(&mut Sweep::new(Position(10_000), Box::new(none_is_known)), &logs);
        assert_eq!(*asked.lock().unwrap(), [LISTED_MAX, 1]);
        assert_eq!(steps, 2 + LISTED_MAX / DELETED_MAX + 1 + 1, "two lists, six deletions, and the end");
        assert!(left(&logs).is_empty());
    }

    #[test]
    fn without_an_answer_nothing_is_deleted() {
        let logs = logs([1, 2]);
        let mut sweep = Sweep::new(Position(10), Box::new(|_| None));
        assert_eq!(sweep.step(&logs, |_| {}), Swept::GivenUp);
        assert_eq!(left(&logs), [1, 2]);
    }
}
