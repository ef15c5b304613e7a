//! The list of what the coordinator said, in a file of its own, which the oracle reads after a crash.
//!
//! **Invariant:** a word counts when it is synced. Many words share one sync; [`Ledger::settle`] waits for all.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use orchestrix_core::{LeaseId, TaskId};

use super::{Checked, failed};

/// One thing that was said, or that nobody said: an answer that never came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Submitted {
        key: String,
        task: TaskId,
    },
    SubmitUnknown {
        key: String,
    },
    Granted {
        lease: LeaseId,
    },
    Completed {
        task: TaskId,
        lease: LeaseId,
    },
    /// A look at the task showed that a worker of its own had completed it under this lease.
    Shown {
        task: TaskId,
        lease: LeaseId,
    },
    CompleteUnknown {
        task: TaskId,
        lease: LeaseId,
    },
    Stale {
        task: TaskId,
        lease: LeaseId,
    },
    /// The next so many lines under this lease.
    Logged {
        task: TaskId,
        lease: LeaseId,
        lines: u64,
    },
}

/// The list, with a thread that writes it.
pub(crate) struct Ledger {
    path: PathBuf,
    desk: Arc<Desk>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Desk {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Words that nobody has begun to write.
    waiting: Vec<u8>,
    /// Some words are being written.
    writing: bool,
    closed: bool,
    failed: Option<String>,
}

/// All words together: what the coordinator is held to.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) submitted: BTreeMap<String, TaskId>,
    pub(crate) submits_unknown: BTreeSet<String>,
    pub(crate) granted: BTreeSet<LeaseId>,
    pub(crate) completed: BTreeMap<TaskId, LeaseId>,
    /// Completed by workers that have results of their own.
    pub(crate) shown: BTreeSet<TaskId>,
    pub(crate) completes_unknown: BTreeSet<(TaskId, LeaseId)>,
    /// Reports that were refused: none of them ever counts.
    stale: BTreeSet<(TaskId, LeaseId)>,
    /// Lines of output of each lease.
    pub(crate) logged: BTreeMap<(TaskId, LeaseId), u64>,
    /// The tasks in the order in which they were submitted, completed and written for.
    pub(crate) submitted_order: Vec<TaskId>,
    pub(crate) completed_order: Vec<TaskId>,
    pub(crate) logged_order: Vec<TaskId>,
    /// Acknowledgements among the words.
    pub(crate) acknowledged: u64,
}

impl Ledger {
    pub(crate) fn create(path: PathBuf) -> Checked<Self> {
        let mut file = File::create(&path).map_err(failed("make the ledger"))?;
        let desk = Arc::new(Desk::default());
        let writer = std::thread::spawn({
            let desk = Arc::clone(&desk);
            move || desk.write_until_closed(&mut file)
        });
        Ok(Self { path, desk, writer: Some(writer) })
    }

    /// Takes a word; it counts once it is synced.
    pub(crate) fn say(&self, word: &Word) {
        self.desk.state().waiting.extend_from_slice(word.line().as_bytes());
        self.desk.changed.notify_all();
    }

    /// Waits until every word so far is synced, then reads them all back from the file.
    pub(crate) fn settle(&self) -> Checked<Said> {
        let mut state = self.desk.state();
        while (state.writing || !state.waiting.is_empty()) && state.failed.is_none() {
            state = self.desk.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(why) = &state.failed {
            return Err(format!("cannot write the ledger: {why}"));
        }
        drop(state);
        read(&self.path)
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.desk.state().closed = true;
        self.desk.changed.notify_all();
        if let Some(writer) = self.writer.take() {
            // It has nothing to tell that `settle` would not have told.
            let _ = writer.join();
        }
    }
}

impl Desk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_until_closed(&self, file: &mut File) {
        loop {
            let mut state = self.state();
            while state.waiting.is_empty() {
                if state.closed {
                    return;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let words = std::mem::take(&mut state.waiting);
            state.writing = true;
            drop(state);
            let written = file.write_all(&words).and_then(|()| file.sync_data());
            let mut state = self.state();
            state.writing = false;
            state.failed = written.err().map(|error| error.to_string());
            let stop = state.failed.is_some();
            drop(state);
            self.changed.notify_all();
            if stop {
                return;
            }
        }
    }
}

fn read(path: &Path) -> Checked<Said> {
    let text = std::fs::read_to_string(path).map_err(failed("read the ledger"))?;
    let mut said = Said::default();
    for line in text.lines() {
        let word = Word::parse(line).ok_or_else(|| format!("the ledger has a strange line: {line:?}"))?;
        said.take(word)?;
    }
    Ok(said)
}

impl Said {
    /// Adds a word. Some contradict each other whatever the coordinator holds now.
    fn take(&mut self, word: Word) -> Checked {
        self.acknowledged += u64::from(word.is_acknowledgement());
        match word {
            Word::Submitted { key, task } => {
                self.submits_unknown.remove(&key);
                self.submitted_order.push(task);
                let other = self.submitted.insert(key.clone(), task);
                if other.is_some_and(|other| other != task) {
                    return Err(format!("key {key} was answered with task {task} and before with {other:?}"));
                }
            }
            Word::SubmitUnknown { key } => {
                self.submits_unknown.insert(key);
            }
            Word::Granted { lease } => {
                if !self.granted.insert(lease) {
                    return Err(format!("lease {lease} was granted twice"));
                }
            }
            Word::Completed { task, lease } => self.complete(task, lease)?,
            Word::Shown { task, lease } => {
                self.shown.insert(task);
                self.complete(task, lease)?;
            }
            Word::CompleteUnknown { task, lease } => {
                self.completes_unknown.insert((task, lease));
            }
            Word::Stale { task, lease } => {
                self.completes_unknown.remove(&(task, lease));
                self.stale.insert((task, lease));
                if self.completed.get(&task) == Some(&lease) {
                    return Err(format!("task {task} was completed under {lease}; a repeat was refused"));
                }
            }
            Word::Logged { task, lease, lines } => {
                *self.logged.entry((task, lease)).or_default() += lines;
                self.logged_order.push(task);
            }
        }
        Ok(())
    }

    fn complete(&mut self, task: TaskId, lease: LeaseId) -> Checked {
        self.completes_unknown.remove(&(task, lease));
        self.completed_order.push(task);
        if self.stale.contains(&(task, lease)) {
            return Err(format!("the report of task {task} under {lease} was refused and then accepted"));
        }
        let other = self.completed.insert(task, lease);
        if other.is_some_and(|other| other != lease) {
            return Err(format!("task {task} has two accepted outcomes: {lease} and {other:?}"));
        }
        Ok(())
    }
}

impl Word {
    fn is_acknowledgement(&self) -> bool {
        match self {
            Self::Submitted { .. }
            | Self::Granted { .. }
            | Self::Completed { .. }
            | Self::Shown { .. }
            | Self::Logged { .. } => true,
            Self::SubmitUnknown { .. } | Self::CompleteUnknown { .. } | Self::Stale { .. } => false,
        }
    }

    fn line(&self) -> String {
        match self {
            Self::Submitted { key, task } => format!("submitted {key} {task}\n"),
            Self::SubmitUnknown { key } => format!("submit-unknown {key}\n"),
            Self::Granted { lease } => format!("granted {lease}\n"),
            Self::Completed { task, lease } => format!("completed {task} {lease}\n"),
            Self::CompleteUnknown { task, lease } => format!("complete-unknown {task} {lease}\n"),
            Self::Stale { task, lease } => format!("stale {task} {lease}\n"),
            Self::Shown { task, lease } => format!("shown {task} {lease}\n"),
            Self::Logged { task, lease, lines } => format!("logged {task} {lease} {lines}\n"),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let parts: Vec<&str> = line.split(' ').collect();
        let task = |text: &str| text.parse().ok().map(TaskId);
        let lease = |text: &str| text.parse().ok().map(LeaseId);
        Some(match parts[..] {
            ["submitted", key, id] => Self::Submitted { key: key.to_owned(), task: task(id)? },
            ["submit-unknown", key] => Self::SubmitUnknown { key: key.to_owned() },
            ["granted", id] => Self::Granted { lease: lease(id)? },
            ["completed", id, under] => Self::Completed { task: task(id)?, lease: lease(under)? },
            ["complete-unknown", id, under] => {
                Self::CompleteUnknown { task: task(id)?, lease: lease(under)? }
            }
            ["stale", id, under] => Self::Stale { task: task(id)?, lease: lease(under)? },
            ["shown", id, under] => Self::Shown { task: task(id)?, lease: lease(under)? },
            ["logged", id, under, lines] => {
                Self::Logged { task: task(id)?, lease: lease(under)?, lines: lines.parse().ok()? }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> (tempfile::TempDir, Ledger) {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::create(folder.path().join("ledger")).unwrap();
        (folder, ledger)
    }

    #[test]
    fn what_was_said_is_read_back_from_the_file() {
        let (_folder, ledger) = ledger();
        ledger.say(&Word::SubmitUnknown { key: "a".to_owned() });
        ledger.say(&Word::SubmitUnknown { key: "b".to_owned() });
        ledger.say(&Word::Submitted { key: "a".to_owned(), task: TaskId(2) });
        ledger.say(&Word::Granted { lease: LeaseId(3) });
        ledger.say(&Word::CompleteUnknown { task: TaskId(2), lease: LeaseId(3) });
        ledger.say(&Word::Logged { task: TaskId(2), lease: LeaseId(3), lines: 4 });
        ledger.say(&Word::Logged { task: TaskId(2), lease: LeaseId(3), lines: 1 });
        ledger.say(&Word::Shown { task: TaskId(9), lease: LeaseId(10) });
        let said = ledger.settle().unwrap();
        assert_eq!(said.submitted, BTreeMap::from([("a".to_owned(), TaskId(2))]));
        assert_eq!(said.submits_unknown, BTreeSet::from(["b".to_owned()]));
        assert_eq!(said.completes_unknown, BTreeSet::from([(TaskId(2), LeaseId(3))]));
        assert_eq!((said.logged[&(TaskId(2), LeaseId(3))], said.acknowledged), (5, 5));
        assert_eq!((said.completed[&TaskId(9)], said.shown), (LeaseId(10), BTreeSet::from([TaskId(9)])));
    }

    #[test]
    fn the_latest_are_the_last_acknowledged_in_any_id_order() {
        let (_folder, ledger) = ledger();
        for task in [5, 9, 2] {
            ledger.say(&Word::Completed { task: TaskId(task), lease: LeaseId(20 + task) });
        }
        assert_eq!(ledger.settle().unwrap().completed_order, [5, 9, 2].map(TaskId));
    }

    #[test]
    fn words_that_contradict_each_other_are_found() {
        let pairs = [
            [Word::Granted { lease: LeaseId(3) }, Word::Granted { lease: LeaseId(3) }],
            [
                Word::Completed { task: TaskId(2), lease: LeaseId(3) },
                Word::Completed { task: TaskId(2), lease: LeaseId(5) },
            ],
            [
                Word::Completed { task: TaskId(2), lease: LeaseId(3) },
                Word::Stale { task: TaskId(2), lease: LeaseId(3) },
            ],
            [
                Word::Stale { task: TaskId(2), lease: LeaseId(3) },
                Word::Completed { task: TaskId(2), lease: LeaseId(3) },
            ],
            [
                Word::Submitted { key: "a".to_owned(), task: TaskId(2) },
                Word::Submitted { key: "a".to_owned(), task: TaskId(4) },
            ],
        ];
        for [one, other] in pairs {
            let (_folder, ledger) = ledger();
            ledger.say(&one);
            assert!(ledger.settle().is_ok());
            ledger.say(&other);
            assert!(ledger.settle().is_err(), "{one:?} {other:?}");
        }
    }
}
