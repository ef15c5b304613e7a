//! A log of all answers of the coordinator, in a separate file, which the oracle reads after a crash.
//!
//! **Invariant:** an entry counts when it is synced. Many entries share one sync; [`AckLog::settle`] waits for all.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use orchestrix_core::{LeaseId, TaskId};

use super::{Checked, failed};

/// One answer, or a missing answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AckEntry {
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

/// The log, with a thread that writes it.
pub(crate) struct AckLog {
    path: PathBuf,
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Entries that are not being written yet.
    waiting: Vec<u8>,
    /// Some entries are being written.
    writing: bool,
    closed: bool,
    failed: Option<String>,
}

/// All entries together: what the coordinator must still have.
#[derive(Debug, Default)]
pub(crate) struct Acked {
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
    /// Acknowledgements among the entries.
    pub(crate) acknowledged: u64,
}

impl AckLog {
    pub(crate) fn create(path: PathBuf) -> Checked<Self> {
        let mut file = File::create(&path).map_err(failed("create the acknowledgement log"))?;
        let shared = Arc::new(Shared::default());
        let writer = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.write_until_closed(&mut file)
        });
        Ok(Self { path, shared, writer: Some(writer) })
    }

    /// Takes an entry; it counts once it is synced.
    pub(crate) fn note(&self, entry: &AckEntry) {
        self.shared.state().waiting.extend_from_slice(entry.line().as_bytes());
        self.shared.changed.notify_all();
    }

    /// Waits until every entry so far is synced, then reads them all back from the file.
    pub(crate) fn settle(&self) -> Checked<Acked> {
        let mut state = self.shared.state();
        while (state.writing || !state.waiting.is_empty()) && state.failed.is_none() {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(why) = &state.failed {
            return Err(format!("cannot write the acknowledgement log: {why}"));
        }
        drop(state);
        read(&self.path)
    }
}

impl Drop for AckLog {
    fn drop(&mut self) {
        self.shared.state().closed = true;
        self.shared.changed.notify_all();
        if let Some(writer) = self.writer.take() {
            // `settle` has reported its errors.
            let _ = writer.join();
        }
    }
}

impl Shared {
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
            let entries = std::mem::take(&mut state.waiting);
            state.writing = true;
            drop(state);
            let written = file.write_all(&entries).and_then(|()| file.sync_data());
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

fn read(path: &Path) -> Checked<Acked> {
    let text = std::fs::read_to_string(path).map_err(failed("read the acknowledgement log"))?;
    let mut acked = Acked::default();
    for line in text.lines() {
        let entry = AckEntry::parse(line)
            .ok_or_else(|| format!("the acknowledgement log has a strange line: {line:?}"))?;
        acked.take(entry)?;
    }
    Ok(acked)
}

impl Acked {
    /// Adds an entry. Some contradict each other, regardless of the state of the coordinator.
    fn take(&mut self, entry: AckEntry) -> Checked {
        self.acknowledged += u64::from(entry.is_acknowledgement());
        match entry {
            AckEntry::Submitted { key, task } => {
                self.submits_unknown.remove(&key);
                self.submitted_order.push(task);
                let other = self.submitted.insert(key.clone(), task);
                if other.is_some_and(|other| other != task) {
                    return Err(format!("key {key} was answered with task {task} and before with {other:?}"));
                }
            }
            AckEntry::SubmitUnknown { key } => {
                self.submits_unknown.insert(key);
            }
            AckEntry::Granted { lease } => {
                if !self.granted.insert(lease) {
                    return Err(format!("lease {lease} was granted twice"));
                }
            }
            AckEntry::Completed { task, lease } => self.complete(task, lease)?,
            AckEntry::Shown { task, lease } => {
                self.shown.insert(task);
                self.complete(task, lease)?;
            }
            AckEntry::CompleteUnknown { task, lease } => {
                self.completes_unknown.insert((task, lease));
            }
            AckEntry::Stale { task, lease } => {
                self.completes_unknown.remove(&(task, lease));
                self.stale.insert((task, lease));
                if self.completed.get(&task) == Some(&lease) {
                    return Err(format!("task {task} was completed under {lease}; a repeat was refused"));
                }
            }
            AckEntry::Logged { task, lease, lines } => {
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

impl AckEntry {
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

    fn ack_log() -> (tempfile::TempDir, AckLog) {
        let folder = tempfile::tempdir().unwrap();
        let ack_log = AckLog::create(folder.path().join("ack-log")).unwrap();
        (folder, ack_log)
    }

    #[test]
    fn entries_are_read_back_from_the_file() {
        let (_folder, ack_log) = ack_log();
        ack_log.note(&AckEntry::SubmitUnknown { key: "a".to_owned() });
        ack_log.note(&AckEntry::SubmitUnknown { key: "b".to_owned() });
        ack_log.note(&AckEntry::Submitted { key: "a".to_owned(), task: TaskId(2) });
        ack_log.note(&AckEntry::Granted { lease: LeaseId(3) });
        ack_log.note(&AckEntry::CompleteUnknown { task: TaskId(2), lease: LeaseId(3) });
        ack_log.note(&AckEntry::Logged { task: TaskId(2), lease: LeaseId(3), lines: 4 });
        ack_log.note(&AckEntry::Logged { task: TaskId(2), lease: LeaseId(3), lines: 1 });
        ack_log.note(&AckEntry::Shown { task: TaskId(9), lease: LeaseId(10) });
        let acked = ack_log.settle().unwrap();
        assert_eq!(acked.submitted, BTreeMap::from([("a".to_owned(), TaskId(2))]));
        assert_eq!(acked.submits_unknown, BTreeSet::from(["b".to_owned()]));
        assert_eq!(acked.completes_unknown, BTreeSet::from([(TaskId(2), LeaseId(3))]));
        assert_eq!((acked.logged[&(TaskId(2), LeaseId(3))], acked.acknowledged), (5, 5));
        assert_eq!((acked.completed[&TaskId(9)], acked.shown), (LeaseId(10), BTreeSet::from([TaskId(9)])));
    }

    #[test]
    fn the_latest_are_the_last_acknowledged_in_any_id_order() {
        let (_folder, ack_log) = ack_log();
        for task in [5, 9, 2] {
            ack_log.note(&AckEntry::Completed { task: TaskId(task), lease: LeaseId(20 + task) });
        }
        assert_eq!(ack_log.settle().unwrap().completed_order, [5, 9, 2].map(TaskId));
    }

    #[test]
    fn entries_that_contradict_each_other_are_found() {
        let pairs = [
            [AckEntry::Granted { lease: LeaseId(3) }, AckEntry::Granted { lease: LeaseId(3) }],
            [
                AckEntry::Completed { task: TaskId(2), lease: LeaseId(3) },
                AckEntry::Completed { task: TaskId(2), lease: LeaseId(5) },
            ],
            [
                AckEntry::Completed { task: TaskId(2), lease: LeaseId(3) },
                AckEntry::Stale { task: TaskId(2), lease: LeaseId(3) },
            ],
            [
                AckEntry::Stale { task: TaskId(2), lease: LeaseId(3) },
                AckEntry::Completed { task: TaskId(2), lease: LeaseId(3) },
            ],
            [
                AckEntry::Submitted { key: "a".to_owned(), task: TaskId(2) },
                AckEntry::Submitted { key: "a".to_owned(), task: TaskId(4) },
            ],
        ];
        for [one, other] in pairs {
            let (_folder, ack_log) = ack_log();
            ack_log.note(&one);
            assert!(ack_log.settle().is_ok());
            ack_log.note(&other);
            assert!(ack_log.settle().is_err(), "{one:?} {other:?}");
        }
    }
}
