//! The form of a snapshot: a header, then services in the order of their names, then keys of purged tasks in the order in
//! which they were purged, then tasks in the order of their ids. The indexes over them are made anew.
//!
//! The first chunk is the header: CBOR. Every other chunk is a sequence of `length u32` (little-endian) and
//! that many bytes of CBOR, one per service, key or task, which never cross a chunk.

use minicbor::{Decode, Encode};
use sha2::{Digest, Sha256};

use crate::event::FORMAT;
use crate::keys::Remembered;
use crate::limits::{ATTEMPTS_MAX, ID_MAX, LEASE_MS_MAX, PRIORITY_MAX};
use crate::shards::{Promises, Service, Stored};
use crate::{Name, Position, State, Task, TaskId, TaskState, Term, Timestamp};

/// The newest format of snapshots that this version knows. The first one has purged tasks among the tasks, for their keys.
const SNAPSHOT_FORMAT: u8 = 2;

/// What a state is besides its tasks.
#[derive(Debug, Encode, Decode)]
pub(crate) struct Header {
    /// The format of this snapshot.
    #[n(0)]
    snapshot: u8,
    #[n(1)]
    position: Position,
    #[n(2)]
    at: Timestamp,
    #[n(3)]
    term: Term,
    #[n(4)]
    epoch: u64,
    #[n(5)]
    format: u8,
    /// How many services come before the tasks.
    #[n(6)]
    services: Option<usize>,
    /// How many keys of purged tasks come before the tasks.
    #[n(7)]
    keys: Option<usize>,
    #[n(8)]
    promises: Option<Promises>,
}

impl Header {
    pub(crate) fn of(state: &State) -> Self {
        Self {
            snapshot: if state.remembered.len() == 0 { FORMAT } else { SNAPSHOT_FORMAT },
            position: state.position,
            at: state.at,
            term: state.term,
            epoch: state.epoch,
            format: state.format,
            services: (!state.services.is_empty()).then_some(state.services.len()),
            keys: Some(state.remembered.len()).filter(|keys| *keys > 0),
            promises: (state.promises != Promises::default()).then_some(state.promises),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        minicbor::to_vec(self).expect("writing to memory cannot fail")
    }
}

pub(crate) fn encode_task(task: &Task, out: &mut Vec<u8>) {
    encode_item(task, out);
}

pub(crate) fn encode_key(key: &Remembered, out: &mut Vec<u8>) {
    encode_item(key, out);
}

pub(crate) fn encode_service(name: &Name, service: &Service) -> Vec<u8> {
    let mut out = Vec::new();
    encode_item(Stored::of(name, service), &mut out);
    out
}

fn encode_item(item: impl Encode<()>, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    minicbor::encode(item, &mut *out).expect("writing to memory cannot fail");
    let length = u32::try_from(out.len() - start - 4).expect("an item is far smaller than 4 GiB");
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Builds a state from the chunks of a snapshot.
#[derive(Debug, Default)]
pub struct SnapshotLoader {
    state: Option<State>,
    /// Services that are still to come.
    services: usize,
    /// Keys of purged tasks that are still to come.
    keys: usize,
    /// Keys that an earlier version has kept with their tasks.
    old_keys: Vec<Remembered>,
}

impl SnapshotLoader {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next chunk.
    ///
    /// # Errors
    /// When it is not a chunk that follows here.
    pub fn load(&mut self, chunk: &[u8]) -> Result<(), SnapshotError> {
        let Some(state) = &mut self.state else {
            let header: Header = minicbor::decode(chunk)?;
            self.services = header.services.unwrap_or(0);
            self.keys = header.keys.unwrap_or(0);
            self.state = Some(state_of(header)?);
            return Ok(());
        };
        let mut rest = chunk;
        while !rest.is_empty() {
            let (length, after) = rest.split_at_checked(4).ok_or(SnapshotError::Short)?;
            let length = u32::from_le_bytes(length.try_into().expect("four bytes"));
            let length = usize::try_from(length).expect("an address has at least 32 bits");
            let (body, after) = after.split_at_checked(length).ok_or(SnapshotError::Short)?;
            if self.services > 0 {
                self.services -= 1;
                add_service(state, minicbor::decode(body)?)?;
            } else if self.keys > 0 {
                self.keys -= 1;
                state.remembered.add(minicbor::decode(body)?);
            } else {
                self.old_keys.extend(add(state, minicbor::decode(body)?)?);
            }
            rest = after;
        }
        Ok(())
    }

    /// The whole state.
    ///
    /// # Errors
    /// When there was not even a header.
    pub fn finish(mut self) -> Result<State, SnapshotError> {
        let whole = self.services == 0 && self.keys == 0;
        let mut state = self.state.filter(|_| whole).ok_or(SnapshotError::Short)?;
        self.old_keys.sort_by_key(|key| (key.until(), key.task));
        self.old_keys.into_iter().for_each(|key| state.remembered.add(key));
        Ok(state)
    }
}

/// Why a snapshot cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("the snapshot ends too early")]
    Short,
    #[error("the snapshot has format {0}, this version reads up to {SNAPSHOT_FORMAT}; use a newer version")]
    UnknownFormat(u8),
    #[error("the snapshot has a task out of order")]
    Order,
    #[error("the snapshot is at position {0} of epoch {1}, after which nothing can follow")]
    Last(Position, u64),
    #[error("the snapshot has task {0}, which cannot be: {1}")]
    Impossible(TaskId, &'static str),
    #[error("the snapshot has a service that cannot be: {0}")]
    ImpossibleService(&'static str),
    #[error("the snapshot is not readable: {0}")]
    Body(#[from] minicbor::decode::Error),
}

impl State {
    /// Sixteen bytes that are equal for equal states.
    ///
    /// # Panics
    /// While a capture is under way.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 16] {
        let mut digest = Sha256::new();
        digest.update(Header::of(self).encode());
        for (name, service) in &self.services {
            digest.update(encode_service(name, service));
        }
        let mut bytes = Vec::new();
        for key in self.remembered.iter() {
            bytes.clear();
            encode_key(key, &mut bytes);
            digest.update(&bytes);
        }
        for task in self.tasks.after(None) {
            bytes.clear();
            encode_task(task, &mut bytes);
            digest.update(&bytes);
        }
        let mut fingerprint = [0; 16];
        fingerprint.copy_from_slice(&digest.finalize()[..16]);
        fingerprint
    }
}

fn state_of(header: Header) -> Result<State, SnapshotError> {
    if header.snapshot > SNAPSHOT_FORMAT || header.format > FORMAT {
        return Err(SnapshotError::UnknownFormat(header.snapshot.max(header.format)));
    }
    let Header { position, at, term, epoch, format, .. } = header;
    if position.0 > ID_MAX || epoch == u64::MAX {
        return Err(SnapshotError::Last(position, epoch));
    }
    let promises = header.promises.unwrap_or_default();
    Ok(State { position, at, term, epoch, format, promises, ..State::default() })
}

fn add_service(state: &mut State, stored: Stored) -> Result<(), SnapshotError> {
    let (name, service) = stored.service(state.position).map_err(SnapshotError::ImpossibleService)?;
    if state.services.last_key_value().is_some_and(|(last, _)| *last >= name) {
        return Err(SnapshotError::ImpossibleService("it is out of order"));
    }
    state.services.insert(name, service);
    Ok(())
}

/// Adds a task. Gives back its key, if that is all that is left of it.
fn add(state: &mut State, mut task: Task) -> Result<Option<Remembered>, SnapshotError> {
    let id = task.id;
    if id.0 > state.position.0
        || state.tasks.after(Some(id)).next().is_some()
        || state.tasks.get(id).is_some()
    {
        return Err(SnapshotError::Order);
    }
    if let Some(why) = flaw(state, &task) {
        return Err(SnapshotError::Impossible(id, why));
    }
    if task.purged {
        let until = task.past.as_ref().map_or(Timestamp(0), |past| past.key_until);
        let key = task.key().map(|claim| Remembered::new(&task.queue, claim, id, task.state, until));
        return Ok(key);
    }
    task.queue = state.shared_queue(&task.queue);
    if let Some(lease) = &mut task.lease {
        lease.worker = state.shared_worker(&lease.worker);
    }
    state.tasks.insert(task);
    state.index(id);
    Ok(None)
}

/// What the rules rely on and this task does not keep, if anything. Whoever reads a snapshot has checked that its
/// bytes are those that were written; this keeps a state that never was from stopping a node later.
fn flaw(state: &State, task: &Task) -> Option<&'static str> {
    let leased = task.state == TaskState::Leased;
    if leased != task.lease.is_some() {
        return Some("it is leased without a lease, or the other way round");
    }
    if let Some(lease) = &task.lease {
        if lease.id.0 > state.position.0 || state.leases.get(lease.id).is_some() {
            return Some("its lease is of another task, or of later");
        }
        if lease.length_ms > LEASE_MS_MAX {
            return Some("its lease is longer than leases are");
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Json, LeaseId, LiveLease, Name};

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
            worker: Name::new("worker").unwrap(),
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
        }))
    }

    fn load(header: &Header, tasks: &[Task]) -> Result<State, SnapshotError> {
        let mut loader = SnapshotLoader::new();
        loader.load(&header.encode())?;
        let mut chunk = Vec::new();
        tasks.iter().for_each(|task| encode_task(task, &mut chunk));
        loader.load(&chunk)?;
        loader.finish()
    }

    fn header() -> Header {
        Header { position: Position(9), ..Header::of(&State::new()) }
    }

    #[test]
    fn tasks_that_cannot_be_are_refused_and_stop_nobody() {
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
    fn a_key_that_an_earlier_version_kept_with_its_task_is_remembered() {
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
            state.remembered.find(&Name::new("mail").unwrap(), &key, Timestamp(at)).map(|found| found.task.0)
        };
        assert_eq!((find("late", 19), find("late", 20), find("early", 9)), (Some(1), None, Some(3)));
        assert_eq!(state.remembered.first().unwrap().task, TaskId(3), "what is over first goes first");
        assert_eq!(Header::of(&state).snapshot, SNAPSHOT_FORMAT);
    }

    #[test]
    fn a_snapshot_without_some_of_its_keys_is_refused() {
        assert!(load(&Header { keys: Some(1), snapshot: SNAPSHOT_FORMAT, ..header() }, &[]).is_err());
        assert!(load(&Header { snapshot: SNAPSHOT_FORMAT + 1, ..header() }, &[]).is_err());
    }

    #[test]
    fn a_header_after_which_nothing_can_follow_is_refused() {
        assert!(load(&Header { position: Position(u64::MAX), ..header() }, &[]).is_err());
        assert!(load(&Header { epoch: u64::MAX, ..header() }, &[]).is_err());
    }
}
