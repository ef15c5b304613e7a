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
    Submitted { key: String, task: TaskId },
    SubmitUnknown { key: String },
    Granted { lease: LeaseId },
    Completed { task: TaskId, lease: LeaseId },
    CompleteUnknown { task: TaskId, lease: LeaseId },
    Stale { task: TaskId, lease: LeaseId },
    Logged { task: TaskId, lines: u64 },
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
    pub(crate) completes_unknown: BTreeSet<(TaskId, LeaseId)>,
    /// Reports of which nobody knew what became of them until they were repeated: one of them may have counted.
    pub(crate) stale: BTreeSet<(TaskId, LeaseId)>,
    pub(crate) logged: BTreeMap<TaskId, u64>,
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
            Word::Completed { task, lease } => {
                self.completes_unknown.remove(&(task, lease));
                let other = self.completed.insert(task, lease);
                if other.is_some_and(|other| other != lease) {
                    return Err(format!("task {task} has two accepted outcomes: {lease} and {other:?}"));
                }
            }
            Word::CompleteUnknown { task, lease } => {
                self.completes_unknown.insert((task, lease));
            }
            Word::Stale { task, lease } => {
                self.completes_unknown.remove(&(task, lease));
                self.stale.insert((task, lease));
            }
            Word::Logged { task, lines } => *self.logged.entry(task).or_default() += lines,
        }
        Ok(())
    }
}

impl Word {
    fn is_acknowledgement(&self) -> bool {
        match self {
            Self::Submitted { .. } | Self::Granted { .. } | Self::Completed { .. } | Self::Logged { .. } => {
                true
            }
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
            Self::Logged { task, lines } => format!("logged {task} {lines}\n"),
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
            ["logged", id, lines] => Self::Logged { task: task(id)?, lines: lines.parse().ok()? },
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
        ledger.say(&Word::Logged { task: TaskId(2), lines: 4 });
        let said = ledger.settle().unwrap();
        assert_eq!(said.submitted, BTreeMap::from([("a".to_owned(), TaskId(2))]));
        assert_eq!(said.submits_unknown, BTreeSet::from(["b".to_owned()]));
        assert_eq!(said.completes_unknown, BTreeSet::from([(TaskId(2), LeaseId(3))]));
        assert_eq!((said.logged[&TaskId(2)], said.acknowledged), (4, 3));
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
