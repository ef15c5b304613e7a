//! A node loads a snapshot from a real Redis while the leader takes others, prunes, and truncates the journal.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use orchestrix_core::{
    Event, FIRST_FORMAT, Position, State, Term, TermEvent, TermStarted, Timestamp, encode_record,
};
use orchestrix_engine::redis::RedisPlace;
use orchestrix_engine::{
    Appended, Batch, Error, Journal, JournalId, Link, Logs, Read, Register, Shared, SnapshotReader,
    SnapshotWriter, Snapshots, Space,
};
use orchestrix_node::{Failure, Follower, Following, HighWater, Options, Progress, SystemClock};
use orchestrix_testbed::{Server, redis};

const PATIENT: Duration = Duration::from_secs(30);

/// When the leader takes two more snapshots and prunes.
#[derive(Clone, Copy, Debug)]
enum When {
    /// Before a snapshot is opened that was listed.
    Listed,
    /// Before a snapshot is read that was opened.
    Opened,
}

/// An engine whose leader goes on while a snapshot is loaded, so many times.
#[derive(Clone)]
struct Busy {
    place: Arc<RedisPlace>,
    when: When,
    times: Arc<AtomicUsize>,
}

struct BusyJournal {
    inner: Box<dyn Journal>,
    busy: Busy,
}

struct BusySnapshots {
    inner: Box<dyn Snapshots>,
    busy: Busy,
}

impl Busy {
    /// Appends two terms with a snapshot of each; older snapshots and what they replace are removed.
    fn go_on(&self) {
        let mut journal = self.place.journal().unwrap();
        for _ in 0..2 {
            let previous = journal.refresh().unwrap();
            let epoch = previous.position.0 + 1;
            let mut records = Vec::new();
            let event = Event::Term(TermEvent::TermStarted(began(epoch)));
            encode_record(FIRST_FORMAT, Timestamp(1), &event, &mut records);
            let batch = Batch { previous, term: Term(epoch), count: 1, records };
            assert!(matches!(journal.append(&batch).unwrap(), Appended::Done(_)));
            let mut state = State::new();
            for epoch in 1..=epoch {
                state.apply(Timestamp(1), Event::Term(TermEvent::TermStarted(began(epoch))));
            }
            let mut writer = journal.snapshots().create(journal.end()).unwrap();
            writer.chunk(&state.begin_capture()).unwrap();
            writer.finish().unwrap();
        }
        journal.snapshots().prune().unwrap();
        journal.truncate().unwrap();
    }

    fn is_next(&self) -> bool {
        self.times.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
    }
}

fn began(epoch: u64) -> TermStarted {
    TermStarted { epoch, node: "leader".to_owned(), actor: None, shard_lease_ms: None }
}

impl Shared for Busy {
    fn journal(&self) -> Result<Box<dyn Journal>, Error> {
        Ok(Box::new(BusyJournal { inner: self.place.journal()?, busy: self.clone() }))
    }

    fn register(&self) -> Arc<dyn Register> {
        self.place.register()
    }

    fn logs(&self) -> Arc<dyn Logs> {
        self.place.logs()
    }

    fn place(&self) -> String {
        self.place.place()
    }

    fn warnings(&self) -> Vec<String> {
        self.place.warnings()
    }
}

impl Journal for BusyJournal {
    fn id(&self) -> JournalId {
        self.inner.id()
    }

    fn end(&self) -> Link {
        self.inner.end()
    }

    fn refresh(&mut self) -> Result<Link, Error> {
        self.inner.refresh()
    }

    fn append(&mut self, batch: &Batch) -> Result<Appended, Error> {
        self.inner.append(batch)
    }

    fn read(&self, after: Position, limit_bytes: usize) -> Result<Read, Error> {
        self.inner.read(after, limit_bytes)
    }

    fn rest(&mut self) -> Result<(), Error> {
        self.inner.rest()
    }

    fn space(&self) -> Space {
        self.inner.space()
    }

    fn snapshots(&self) -> Box<dyn Snapshots> {
        Box::new(BusySnapshots { inner: self.inner.snapshots(), busy: self.busy.clone() })
    }

    fn truncate(&mut self) -> Result<Position, Error> {
        self.inner.truncate()
    }
}

impl Snapshots for BusySnapshots {
    fn list(&self) -> Result<Vec<Position>, Error> {
        self.inner.list()
    }

    fn create(&self, at: Link) -> Result<Box<dyn SnapshotWriter>, Error> {
        self.inner.create(at)
    }

    fn open(&self, at: Position) -> Result<Box<dyn SnapshotReader>, Error> {
        let is_next = self.busy.is_next();
        match self.busy.when {
            When::Listed if is_next => {
                self.busy.go_on();
                self.inner.open(at)
            }
            When::Opened if is_next => {
                let reader = self.inner.open(at)?;
                self.busy.go_on();
                Ok(reader)
            }
            When::Listed | When::Opened => self.inner.open(at),
        }
    }

    fn prune(&self) -> Result<(), Error> {
        self.inner.prune()
    }
}

/// Loads from an engine with two snapshots, whose leader goes on so many times meanwhile.
fn load(when: When, times: usize) -> Result<(Position, u64), Failure> {
    let server = Server::start(redis(&[])).unwrap();
    let url = format!("redis://127.0.0.1:{}", server.port());
    let place = Arc::new(RedisPlace::connect(&url, PATIENT)?);
    let busy = Busy { place, when, times: Arc::default() };
    busy.go_on();
    busy.times.store(times, SeqCst);
    let following = Following::new(Arc::new(SystemClock), HighWater::in_memory(), &Options::default());
    let mut follower = Follower::load(Arc::new(busy), Options::default(), following)?;
    while follower.advance()? == Progress::Moved {}
    Ok((follower.link().position, follower.state().epoch()))
}

#[test]
fn a_snapshot_pruned_on_redis_while_it_is_loaded_is_no_damage() {
    for when in [When::Listed, When::Opened] {
        for times in [0, 1, 4] {
            let end = 2 * (times as u64 + 1);
            assert_eq!(load(when, times).unwrap(), (Position(end), end), "{when:?} {times}");
        }
        let failure = load(when, 5).unwrap_err();
        assert!(failure.is_retryable(), "{when:?}: {failure}");
    }
}
