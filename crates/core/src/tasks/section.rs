//! The section of tasks in a snapshot: keys of purged tasks in the order in which they were purged, then tasks in the order
//! of their ids.

use super::capture::Capture;
use super::keys::Remembered;
use super::{Task, TaskState, Tasks};
use crate::Timestamp;
use crate::entity::Moment;
use crate::limits::{ATTEMPTS_MAX, LEASE_MS_MAX, PRIORITY_MAX};
use crate::snapshot::{Header, Room, Section, SnapshotError, Step, encode_item};

/// A section that is being read.
#[derive(Debug)]
pub(super) struct Loading {
    /// Keys of purged tasks that are still to come.
    keys: usize,
    /// Keys that an earlier version has kept with their tasks.
    old_keys: Vec<Remembered>,
}

impl Section for Tasks {
    fn announce(&self, header: &mut Header) {
        header.keys = Some(self.remembered.len()).filter(|keys| *keys > 0);
    }

    fn expect(&mut self, header: &mut Header) -> Option<usize> {
        self.loading = Some(Loading { keys: header.keys.unwrap_or(0), old_keys: Vec::new() });
        None
    }

    fn load(&mut self, item: &[u8], here: Moment) -> Result<(), SnapshotError> {
        if let Some(loading) = self.loading.as_mut().filter(|loading| loading.keys > 0) {
            loading.keys -= 1;
            self.remembered.add(minicbor::decode(item)?);
            return Ok(());
        }
        let old_key = self.add(minicbor::decode(item)?, here)?;
        if let Some(loading) = &mut self.loading {
            loading.old_keys.extend(old_key);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SnapshotError> {
        self.bus_change = None;
        let Some(Loading { keys, mut old_keys }) = self.loading.take() else { return Ok(()) };
        if keys > 0 {
            return Err(SnapshotError::Short);
        }
        old_keys.sort_by_key(|key| (key.until(), key.task));
        old_keys.into_iter().for_each(|key| self.remembered.add(key));
        Ok(())
    }

    fn each_item(&self, write: &mut dyn FnMut(&[u8])) {
        let mut item = Vec::new();
        for key in self.remembered.iter() {
            item.clear();
            encode_item(key, &mut item);
            write(&item);
        }
        for task in self.all.after(None) {
            item.clear();
            encode_item(task, &mut item);
            write(&item);
        }
    }

    fn begin_capture(&mut self, here: Moment) {
        self.capture = Some(Capture::begin(here, &self.remembered));
    }

    fn step_capture(&mut self, room: Room, chunk: &mut Vec<u8>) -> Step {
        self.capture_some(room, chunk)
    }

    fn end_capture(&mut self) {
        self.capture = None;
    }
}

impl Tasks {
    /// Adds a task. Gives back its key, if that is all that is left of it.
    fn add(&mut self, mut task: Task, here: Moment) -> Result<Option<Remembered>, SnapshotError> {
        let id = task.id;
        if id.0 > here.position.0 || self.all.after(Some(id)).next().is_some() || self.all.get(id).is_some() {
            return Err(SnapshotError::Order);
        }
        if let Some(why) = self.flaw(&task, here) {
            return Err(SnapshotError::Impossible(id, why));
        }
        if task.purged {
            let until = task.past.as_ref().map_or(Timestamp(0), |past| past.key_until);
            let key = task.key().map(|claim| Remembered::new(&task.queue, claim, id, task.state, until));
            return Ok(key);
        }
        task.queue = self.shared_queue(&task.queue);
        if let Some(lease) = &mut task.lease {
            lease.worker = lease.worker.as_ref().map(|worker| self.shared_worker(worker));
        }
        self.all.insert(task);
        self.index(id, here.at);
        Ok(None)
    }

    /// What the rules rely on and this task does not keep, if anything. The reader of a snapshot has checked that its
    /// bytes are those that were written; this keeps a state that never was from stopping a node later.
    fn flaw(&self, task: &Task, here: Moment) -> Option<&'static str> {
        let leased = task.state == TaskState::Leased;
        if leased != task.lease.is_some() {
            return Some("it is leased without a lease, or the other way round");
        }
        if let Some(lease) = &task.lease {
            if lease.id.0 > here.position.0 || self.leases.get(lease.id).is_some() {
                return Some("its lease is of another task, or of later");
            }
            if lease.length_ms > LEASE_MS_MAX {
                return Some("its lease is longer than leases are");
            }
            if lease.is_offer() && (!lease.is_of_bus() || lease.timeout_at.is_some()) {
                return Some("its lease has no worker, and is not offered");
            }
        }
        if task.priority.unsigned_abs() > PRIORITY_MAX.unsigned_abs() {
            return Some("its priority is out of bounds");
        }
        if task.charged > task.max_attempts || task.max_attempts > ATTEMPTS_MAX {
            return Some("it had more attempts than there are");
        }
        if task.purged && !task.state.is_terminal() {
            return Some("it was purged before it ended");
        }
        if task.state.is_terminal() && !task.purged && task.ending().is_none() {
            return Some("it ended without an ending");
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{WITH_KEYS, WITH_TAGS};
    use crate::tasks::LiveLease;
    use crate::{Json, LeaseId, Name, Position, SnapshotLoader, State, TaskId};

    fn task(id: u64) -> Task {
        Task {
            id: TaskId(id),
            queue: Name::new("mail").unwrap(),
            payload: Json::null(),
            created_at: Timestamp(1),
            not_before: Timestamp(1),
            priority: 0,
            max_attempts: 3,
            charged: 0,
            state: TaskState::Waiting,
            purged: false,
            lease: None,
            terms: None,
            past: None,
        }
    }

    fn lease(id: u64) -> Option<Box<LiveLease>> {
        Some(Box::new(LiveLease {
            id: LeaseId(id),
            worker: Name::new("worker").ok(),
            attempt: 1,
            granted_at: Timestamp(1),
            length_ms: 1_000,
            expires_at: Timestamp(2),
            timeout_at: None,
            cancel_at: None,
            prolonged: false,
            request_id: None,
            progress: None,
            note: None,
            cancel_by: None,
            via: None,
        }))
    }

    fn load(header: &Header, tasks: &[Task]) -> Result<State, SnapshotError> {
        let mut loader = SnapshotLoader::new();
        loader.load(&header.encode())?;
        let mut chunk = Vec::new();
        tasks.iter().for_each(|task| encode_item(task, &mut chunk));
        loader.load(&chunk)?;
        loader.finish()
    }

    fn header() -> Header {
        Header { position: Position(9), ..Header::of(&State::new()) }
    }

    #[test]
    fn impossible_tasks_are_refused_and_stop_no_other() {
        let leased = |task: Task, id| Task { state: TaskState::Leased, lease: lease(id), ..task };
        assert!(load(&header(), &[task(1), leased(task(2), 3)]).is_ok());
        let impossible = [
            vec![Task { state: TaskState::Leased, ..task(1) }],
            vec![Task { lease: lease(2), ..task(1) }],
            vec![leased(task(1), 3), leased(task(2), 3)],
            vec![leased(task(1), 10)],
            vec![Task { priority: i32::MIN, ..task(1) }],
            vec![Task { charged: u32::MAX, ..task(1) }],
            vec![Task { state: TaskState::Completed, ..task(1) }],
            vec![Task { purged: true, ..task(1) }],
            vec![task(2), task(1)],
            vec![task(10)],
        ];
        for tasks in impossible {
            assert!(load(&header(), &tasks).is_err(), "{tasks:?}");
        }
    }

    #[test]
    fn a_key_stored_by_an_earlier_version_is_remembered() {
        let claim = |key: &str| crate::KeyClaim { key: crate::Key::new(key).unwrap(), request: [5; 16] };
        let purged = |id, key: &str, key_until| Task {
            state: TaskState::Completed,
            purged: true,
            terms: Some(Box::new(crate::Terms { key: Some(claim(key)), ..crate::Terms::default() })),
            past: Some(Box::new(crate::Past { key_until, ..crate::Past::default() })),
            ..task(id)
        };
        let tasks = [purged(1, "late", Timestamp(20)), task(2), purged(3, "early", Timestamp(10))];
        let state = load(&header(), &tasks).unwrap();
        assert_eq!((state.remembered_keys(), state.task(TaskId(1)), state.queues().count()), (2, None, 1));
        let find = |key: &str, at| {
            let key = crate::Key::new(key).unwrap();
            state
                .tasks
                .remembered
                .find(&Name::new("mail").unwrap(), &key, Timestamp(at))
                .map(|found| found.task.0)
        };
        assert_eq!((find("late", 19), find("late", 20), find("early", 9)), (Some(1), None, Some(3)));
        assert_eq!(state.tasks.remembered.first().unwrap().task, TaskId(3), "what is over first goes first");
        assert_eq!(Header::of(&state).snapshot, WITH_KEYS);
    }

    #[test]
    fn a_snapshot_without_some_of_its_keys_is_refused() {
        assert!(load(&Header { keys: Some(1), snapshot: WITH_KEYS, ..header() }, &[]).is_err());
        assert!(load(&Header { snapshot: WITH_TAGS + 1, ..header() }, &[]).is_err());
    }

    #[test]
    fn a_header_after_which_nothing_can_follow_is_refused() {
        assert!(load(&Header { position: Position(u64::MAX), ..header() }, &[]).is_err());
        assert!(load(&Header { epoch: u64::MAX, ..header() }, &[]).is_err());
    }
}
