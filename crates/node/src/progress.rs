//! Whether the loop, the journal and the threads of a follower make progress: they note times, which are read only
//! on request.
//!
//! An idle loop goes round twice a second, so one that is late stands still. A loop that waits for the journal is not
//! late while the journal answers, even if it answers that it cannot write. The same holds for a thread that follows,
//! only that it has to do with a server: every request to one ends within seconds, but a call may need several.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use orchestrix_core::Position;
use orchestrix_engine::{Clock, Error, Link, SnapshotReader, SnapshotWriter, Snapshots};

/// What takes longer than this is said: longer than a slow disk takes for a sync.
pub(crate) const LATE: Duration = Duration::from_secs(5);

/// What takes a thread that follows longer than this is said: longer than a call on a server may take, each of whose
/// requests ends after 5 seconds.
pub(crate) const FOLLOWS_LATE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Progress {
    clock: Arc<dyn Clock>,
    /// The loop has ended a round, or the journal has answered.
    beat: Moment,
    /// The journal was asked, and has not answered yet.
    asked: Moment,
    /// A batch was taken up that is not durable yet.
    batch: Moment,
    /// What is full, while a batch waits for room.
    full: Mutex<Option<String>>,
    /// Why the last try of a batch failed, until it is durable.
    why: Mutex<Option<String>>,
}

/// A time of the boot clock, or none.
#[derive(Debug, Default)]
struct Moment(AtomicU64);

impl Moment {
    const NONE: u64 = 0;

    fn set(&self, at: Duration) {
        // One more, so that no time is none.
        self.0.store(u64::try_from(at.as_micros()).map_or(u64::MAX, |us| us.saturating_add(1)), Relaxed);
    }

    fn clear(&self) {
        self.0.store(Self::NONE, Relaxed);
    }

    /// How long ago it is.
    fn ago(&self, now: Duration) -> Option<Duration> {
        let at = self.0.load(Relaxed).checked_sub(1)?;
        Some(now.saturating_sub(Duration::from_micros(at)))
    }

    /// How long ago it is, if that is too long.
    fn late(&self, now: Duration) -> Option<Duration> {
        self.ago(now).filter(|ago| *ago > LATE)
    }
}

impl Progress {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let (beat, asked, batch) = (Moment::default(), Moment::default(), Moment::default());
        beat.set(clock.boot());
        Self { clock, beat, asked, batch, full: Mutex::default(), why: Mutex::default() }
    }

    /// The loop has ended a round.
    pub(crate) fn beat(&self, now: Duration) {
        self.beat.set(now);
    }

    /// Asks the journal for something that may take long.
    pub(crate) fn asking<T>(&self, ask: impl FnOnce() -> T) -> T {
        self.asked.set(self.clock.boot());
        let answer = ask();
        self.asked.clear();
        self.beat.set(self.clock.boot());
        answer
    }

    pub(crate) fn batch_begins(&self, now: Duration) {
        self.batch.set(now);
    }

    pub(crate) fn batch_is_durable(&self) {
        self.batch.clear();
        self.why().take();
        if self.full().take().is_some() {
            tracing::info!("there is room again: the journal is written");
        }
    }

    /// A try to write the batch failed for a reason that may pass.
    pub(crate) fn batch_fails(&self, why: String) {
        *self.why() = Some(why);
    }

    /// A batch waits for room. Answers whether that is new.
    pub(crate) fn no_room(&self, what: String) -> bool {
        self.full().replace(what).is_none()
    }

    /// Whether a batch waits for disk space: later decisions wait behind it.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.full().is_some()
    }

    fn why(&self) -> MutexGuard<'_, Option<String>> {
        self.why.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn full(&self) -> MutexGuard<'_, Option<String>> {
        self.full.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the node stands still, if it does.
    pub(crate) fn stalled(&self) -> Option<String> {
        let now = self.clock.boot();
        let late = self.asked.late(now).or_else(|| self.beat.late(now))?;
        // A loop that writes itself began its round a little before the write that keeps it.
        if let Some(ago) = self.asked.ago(now).filter(|ago| *ago > LATE / 2) {
            let seconds = ago.as_secs();
            return Some(format!("the journal has not answered a write for {seconds} s: is the disk stuck?"));
        }
        Some(format!("the decision loop has made no progress for {} s", late.as_secs()))
    }

    /// Why nothing can be written, if so.
    pub(crate) fn unwritten(&self) -> Option<String> {
        if let Some(what) = &*self.full() {
            return Some(what.clone());
        }
        let ago = self.batch.late(self.clock.boot())?;
        let why = self.why().as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        Some(format!("nothing could be written to the journal for {} s{why}", ago.as_secs()))
    }
}

/// The rounds of a thread that follows.
#[derive(Debug)]
pub(crate) struct Rounds {
    clock: Arc<dyn Clock>,
    /// Whose rounds they are, for people.
    thread: &'static str,
    now: Mutex<(Duration, Doing)>,
}

/// What a thread does since a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Round,
    /// It waits for an answer of the engine.
    Asks,
    /// It waits for a term to stop.
    Stops,
    /// It waits for a term to begin, which has a progress of its own.
    Begins,
}

impl Rounds {
    pub(crate) fn new(clock: Arc<dyn Clock>, thread: &'static str) -> Self {
        let now = Mutex::new((clock.boot(), Doing::Round));
        Self { clock, thread, now }
    }

    /// The thread has ended a round.
    pub(crate) fn beat(&self) {
        self.note(Doing::Round);
    }

    /// Asks the engine for something.
    pub(crate) fn asking<T>(&self, ask: impl FnOnce() -> T) -> T {
        self.during(Doing::Asks, ask)
    }

    /// Waits for a term to stop.
    pub(crate) fn stopping<T>(&self, stop: impl FnOnce() -> T) -> T {
        self.during(Doing::Stops, stop)
    }

    /// Waits for a term to begin.
    pub(crate) fn beginning<T>(&self, begin: impl FnOnce() -> T) -> T {
        self.during(Doing::Begins, begin)
    }

    fn during<T>(&self, doing: Doing, work: impl FnOnce() -> T) -> T {
        self.note(doing);
        let done = work();
        self.beat();
        done
    }

    fn note(&self, doing: Doing) {
        *self.now() = (self.clock.boot(), doing);
    }

    fn now(&self) -> MutexGuard<'_, (Duration, Doing)> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the thread stands still, if it does.
    pub(crate) fn stalled(&self) -> Option<String> {
        let (since, doing) = *self.now();
        let late = self.clock.boot().saturating_sub(since);
        if late <= FOLLOWS_LATE {
            return None;
        }
        let (thread, seconds) = (self.thread, late.as_secs());
        match doing {
            Doing::Round => Some(format!("{thread} has made no progress for {seconds} s")),
            Doing::Asks => Some(format!("the engine has not answered {thread} for {seconds} s")),
            Doing::Stops => Some(format!("the term that ended has not stopped for {seconds} s")),
            Doing::Begins => None,
        }
    }
}

/// Snapshots that a thread reads while it follows.
pub(crate) struct Watched<'a> {
    pub(crate) snapshots: Box<dyn Snapshots>,
    pub(crate) rounds: &'a Arc<Rounds>,
}

struct WatchedReader {
    reader: Box<dyn SnapshotReader>,
    rounds: Arc<Rounds>,
}

impl Snapshots for Watched<'_> {
    fn list(&self) -> Result<Vec<Position>, Error> {
        self.rounds.asking(|| self.snapshots.list())
    }

    fn create(&self, at: Link) -> Result<Box<dyn SnapshotWriter>, Error> {
        self.rounds.asking(|| self.snapshots.create(at))
    }

    fn open(&self, at: Position) -> Result<Box<dyn SnapshotReader>, Error> {
        let reader = self.rounds.asking(|| self.snapshots.open(at))?;
        Ok(Box::new(WatchedReader { reader, rounds: Arc::clone(self.rounds) }))
    }

    fn prune(&self) -> Result<(), Error> {
        self.rounds.asking(|| self.snapshots.prune())
    }
}

impl SnapshotReader for WatchedReader {
    fn link(&self) -> Link {
        self.reader.link()
    }

    fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        self.rounds.asking(|| self.reader.next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock in milliseconds that a test sets.
    #[derive(Debug, Default)]
    struct Set(AtomicU64);

    impl Clock for Set {
        fn boot(&self) -> Duration {
            Duration::from_millis(self.0.load(Relaxed))
        }
        fn busy(&self) -> Duration {
            Duration::ZERO
        }
        fn wall(&self) -> Duration {
            Duration::ZERO
        }
        fn pause(&self, _: Duration) {}
    }

    fn started() -> (Arc<Set>, Progress, impl Fn(u64)) {
        let clock = Arc::new(Set::default());
        let progress = Progress::new(clock.clone());
        let set = Arc::clone(&clock);
        (clock, progress, move |ms| set.0.store(ms, Relaxed))
    }

    #[test]
    fn a_loop_that_is_late_by_more_than_the_limit_stands_still() {
        let (clock, progress, set) = started();
        set(5_000);
        assert_eq!(progress.stalled(), None);
        set(5_001);
        assert_eq!(progress.stalled().unwrap(), "the decision loop has made no progress for 5 s");
        progress.beat(clock.boot());
        assert_eq!(progress.stalled(), None);
    }

    #[test]
    fn a_write_that_does_not_return_is_a_stall() {
        let (clock, progress, set) = started();
        progress.asking(|| {
            set(5_001);
            progress.beat(clock.boot());
            assert!(progress.stalled().unwrap().contains("the journal has not answered a write for 5 s"));
        });
        assert_eq!(progress.stalled(), None, "it has returned");
    }

    #[test]
    fn tries_that_fail_are_no_stall_and_yet_nothing_is_written() {
        let (clock, progress, set) = started();
        progress.batch_begins(clock.boot());
        for try_at in 0..10 {
            progress.asking(|| set(try_at * 1_000));
        }
        assert_eq!(progress.stalled(), None);
        assert_eq!(progress.unwritten().unwrap(), "nothing could be written to the journal for 9 s");
        progress.batch_fails("max number of clients reached".to_owned());
        let said = "nothing could be written to the journal for 9 s: max number of clients reached";
        assert_eq!(progress.unwritten().unwrap(), said);
        progress.batch_is_durable();
        assert_eq!(progress.unwritten(), None);
    }

    #[test]
    fn a_thread_that_follows_says_what_it_stands_still_in() {
        let clock = Arc::new(Set::default());
        let rounds = Rounds::new(clock.clone(), "the thread");
        let later = |seconds: u64| clock.0.fetch_add(seconds * 1_000, Relaxed);
        later(30);
        assert_eq!(rounds.stalled(), None);
        later(1);
        assert_eq!(rounds.stalled().unwrap(), "the thread has made no progress for 31 s");
        rounds.beat();
        assert_eq!(rounds.stalled(), None);
        rounds.asking(|| {
            later(31);
            assert_eq!(rounds.stalled().unwrap(), "the engine has not answered the thread for 31 s");
        });
        assert_eq!(rounds.stalled(), None, "it has answered");
        rounds.stopping(|| {
            later(31);
            assert_eq!(rounds.stalled().unwrap(), "the term that ended has not stopped for 31 s");
        });
        rounds.beginning(|| {
            later(31);
            assert_eq!(rounds.stalled(), None, "a term that begins has a progress of its own");
        });
        assert_eq!(rounds.stalled(), None);
    }
}
