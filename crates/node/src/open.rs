//! From a data folder to a running node: recover the state, start the term, start the threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use orchestrix_core::{Event, FORMAT, Position, Records, State, is_planted};
use orchestrix_engine::disk::{Disk, RealDisk};
use orchestrix_engine::file::{self, FileJournal, FileLogs, Recovery};
use orchestrix_engine::memory::{MemoryJournal, MemoryLogs};
use orchestrix_engine::{BatchRef, Cause, Clock, Journal, JournalId, Link, Logs, SystemClock};

use crate::clock::TermClock;
use crate::decision_loop::DecisionLoop;
use crate::events::EventFeed;
use crate::inbox::inbox;
use crate::loading::{Loaded, newest_snapshot};
use crate::logs::{Calls, TaskLogs};
use crate::node::Node;
use crate::options::Options;
use crate::progress::Progress;
use crate::runner::{Inline, Runner, Running, WRITER_IS_GONE};
use crate::snapshotter::{LastSnapshot, SnapshotJob, SnapshotPlan};
use crate::stats::Stats;
use crate::sync::Mutex;
use crate::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use crate::write_guard::WriteGuard;
use crate::writer::{self, Ack, Unsettled, Work, Writer};

/// Works that may wait for the writer: a group, and a truncation beside it.
const WORKS_MAX: usize = 2;

/// What the journal and the logs stand on.
#[derive(Clone, Debug)]
pub enum Storage {
    /// Files in a folder. Survives a crash of the process and of the machine.
    File(PathBuf),
    /// Nothing survives the process.
    Memory,
}

/// Why a node stopped, or did not start.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    message: String,
    /// Whether the same may succeed later.
    retryable: bool,
    /// Whether a node that runs waits for it to pass.
    passes: bool,
    /// Whether stored bytes are not what was written.
    damage: bool,
}

impl Failure {
    pub(crate) fn new(message: String) -> Self {
        Self { message, retryable: false, passes: false, damage: false }
    }

    /// The same, for callers that can start again.
    pub(crate) fn retry(self) -> Self {
        Self { retryable: true, passes: true, ..self }
    }

    /// Whether the same may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.retryable
    }

    /// Whether a node that runs waits for it to pass, as it does not where it starts.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        self.passes
    }

    /// Whether stored bytes are not what was written. A backup must be restored.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        self.damage
    }
}

impl From<orchestrix_engine::Error> for Failure {
    fn from(error: orchestrix_engine::Error) -> Self {
        let passes = error.may_pass() && (error.retryable || !is_planted("refusal-ends-a-node"));
        let damage = matches!(error.source, Cause::Damaged { .. });
        Self { message: error.to_string(), retryable: error.retryable, passes, damage }
    }
}

/// What opening a node found.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// Events of the journal at start.
    pub position: Position,
    /// The snapshot that was used.
    pub snapshot: Option<Position>,
    /// Snapshots that were damaged and passed over.
    pub damaged_snapshots: Vec<String>,
    pub journal: Recovery,
    pub took: Duration,
}

/// Recovers what is stored and starts a node on it.
///
/// # Errors
/// When the folder cannot be used or what is in it is damaged: names file and place.
pub fn open(storage: &Storage, options: Options) -> Result<(Node, Recovered), Failure> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let start = clock.boot();
    let mut stored = match storage {
        Storage::File(folder) => open_files(folder)?,
        Storage::Memory => open_memory(),
    };
    stored.recovered.took = clock.boot().saturating_sub(start);
    let recovered = stored.recovered.clone();
    let surroundings = Surroundings::new(clock, recovered.position, &options);
    Ok((start_node(stored, options, WriteGuard::default(), surroundings)?, recovered))
}

/// What a node is started from.
pub(crate) struct Stored {
    pub(crate) state: State,
    pub(crate) journal: Box<dyn Journal>,
    /// The last batch that the state follows. What a handle of a shared journal takes for the end may be older, or
    /// newer if another node has written meanwhile.
    pub(crate) end: Link,
    pub(crate) logs: Arc<dyn Logs>,
    pub(crate) last_snapshot: LastSnapshot,
    pub(crate) recovered: Recovered,
}

pub(crate) fn open_memory() -> Stored {
    let recovered = Recovered {
        position: Position(0),
        snapshot: None,
        damaged_snapshots: Vec::new(),
        journal: Recovery::default(),
        took: Duration::ZERO,
    };
    let journal = Box::new(MemoryJournal::new(new_id()));
    let (end, last_snapshot) = (Link::default(), LastSnapshot::default());
    let logs = Arc::new(MemoryLogs::default());
    Stored { state: State::new(), journal, end, logs, last_snapshot, recovered }
}

/// A journal in memory is another one each time: a bus that knows the one before does not take it for the same.
fn new_id() -> JournalId {
    let mut id = [0; 16];
    // Without random numbers a bus cannot tell two such journals apart; nothing else looks at the id.
    let _ = rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty());
    JournalId(id)
}

fn open_files(folder: &Path) -> Result<Stored, Failure> {
    let disk = RealDisk::open(folder).map_err(|error| {
        let folder = folder.display();
        Failure::new(format!("cannot use {folder} as the data folder: {error}; choose another with --data"))
    })?;
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let mut stored = open_journal(Arc::clone(&disk), file::Options::default())?;
    stored.logs = Arc::new(FileLogs::open(disk)?);
    forget_orphans(&*stored.logs, &stored.state);
    Ok(stored)
}

/// Recovers the state from the journal of a disk; output of tasks goes to memory.
pub(crate) fn open_journal(disk: Arc<dyn Disk>, options: file::Options) -> Result<Stored, Failure> {
    let opening = FileJournal::start(disk, options)?;
    let mut damaged_snapshots = Vec::new();
    // That the journal goes on from there is checked when it is replayed.
    let loaded = newest_snapshot(
        &*opening.snapshots(),
        opening.floor(),
        FORMAT,
        &mut |_| Ok(true),
        &mut damaged_snapshots,
    )?;
    let snapshot = loaded.as_ref().map(|loaded| loaded.link.position);
    let Loaded { mut state, link, bytes } = loaded.unwrap_or_default();
    let journal = opening.replay(link, |batch| replay(&mut state, &batch, FORMAT, |_, _| {}))?;
    let recovered = Recovered {
        position: state.position(),
        snapshot,
        damaged_snapshots,
        journal: journal.recovery().clone(),
        took: Duration::ZERO,
    };
    let (journal, logs) = (Box::new(journal), Arc::new(MemoryLogs::default()));
    let last_snapshot = LastSnapshot { since_bytes: recovered.journal.bytes, bytes };
    Ok(Stored { state, end: journal.end(), journal, logs, last_snapshot, recovered })
}

/// Deletes output that a crash between a purge and the deletion has left behind.
fn forget_orphans(logs: &dyn Logs, state: &State) {
    let deleted = logs.tasks().and_then(|mut tasks| {
        tasks.retain(|id| state.task(*id).is_none());
        logs.delete(&tasks)
    });
    if let Err(error) = deleted {
        tracing::warn!(%error, "cannot delete the output of purged tasks; it is tried again at the next start");
    }
}

/// Folds a batch into the state. Every event is shown with the state before it.
pub(crate) fn replay(
    state: &mut State,
    batch: &BatchRef<'_>,
    reads: u8,
    mut before_event: impl FnMut(&State, &Event),
) -> Result<(), Failure> {
    let before = state.position();
    let folded = catch_unwind(AssertUnwindSafe(|| {
        for record in Records::up_to(reads, batch.records) {
            let (at, event) = record.map_err(|error| (state.position().next(), error.to_string()))?;
            before_event(state, &event);
            state.apply(at, event);
        }
        let (found, last) = (state.position(), batch.last());
        if found == last { Ok(()) } else { Err((found, format!("the batch should end at {last}"))) }
    }));
    let (position, what) = match folded {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(failed)) => failed,
        Err(_) => (state.position(), "it cannot follow what came before".to_owned()),
    };
    Err(Failure::new(format!(
        "the event at position {position} (batch after {before}) cannot be replayed: {what}"
    )))
}

/// A node whose threads have not started.
pub(crate) struct Parts {
    pub(crate) node: Node,
    pub(crate) runner: Runner,
    pub(crate) writer: Arc<Mutex<Writer>>,
    /// What the loop gives to the writer, and what it hears from it.
    pub(crate) handed: Receiver<Work>,
    pub(crate) acks: Sender<Ack>,
}

/// What a node shares with those before and after it in the same process.
#[derive(Clone, Debug)]
pub(crate) struct Surroundings {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) events: Arc<EventFeed>,
    pub(crate) unsettled: Arc<Unsettled>,
}

impl Surroundings {
    pub(crate) fn new(clock: Arc<dyn Clock>, end: Position, options: &Options) -> Self {
        let events = Arc::new(EventFeed::new(end, options.event_ring_bytes));
        Self { clock, stats: Arc::default(), events, unsettled: Arc::default() }
    }
}

pub(crate) fn assemble(
    stored: Stored,
    options: Options,
    guard: WriteGuard,
    surroundings: Surroundings,
    calls: Calls,
) -> Parts {
    let Stored { state, journal, end, logs, last_snapshot, .. } = stored;
    let id = journal.id();
    let Surroundings { clock, stats, events, unsettled } = surroundings;
    let (running, progress) = (Arc::new(Running::new()), Arc::new(Progress::new(Arc::clone(&clock))));
    let (of_logs, counts) = (Arc::clone(&clock), Arc::clone(&stats));
    let logs = Arc::new(TaskLogs::new(logs, &options, of_logs, counts, guard.clone(), calls));
    let (inputs, asked) = inbox(options.queue_max);
    let (works, handed) = sync_channel(WORKS_MAX);
    let (acks, heard) = channel();

    let mut term_clock = TermClock::start(Arc::clone(&clock), state.at());
    let snapshot = SnapshotPlan::new(options.snapshot_bytes, last_snapshot);
    let mut epoch = guard.epoch.max(state.epoch() + 1);
    if is_planted("epoch-not-raised") {
        epoch = guard.epoch;
    }
    let mut decisions = DecisionLoop::new(state, options, Arc::clone(&stats));
    decisions.set_space(journal.space());
    if !is_planted("term-unstarted") {
        decisions.start_term(epoch, guard.actor.clone(), term_clock.now());
    }
    decisions.tick_every(guard.tick_ms);
    if guard.leader_lease.is_some() {
        decisions.admit_slowly(term_clock.now());
    } else {
        // Nobody else reads this journal.
        decisions.raise_format(FORMAT, term_clock.now());
    }

    stats.durable.set(end.position.0);
    stats.position.set(end.position.0);
    let (snapshots, linger) = (Some(journal.snapshots()), journal.linger());
    // A leader with a leader lease uses a shared engine, which is a server.
    let offers = guard.leader_lease.is_some();
    let writer = Arc::new(Mutex::new(Writer {
        end,
        journal,
        events: Arc::clone(&events),
        logs: Arc::clone(&logs),
        running: Arc::clone(&running),
        progress: Arc::clone(&progress),
        stats: Arc::clone(&stats),
        clock: Arc::clone(&clock),
        guard,
        unsettled,
    }));
    let runner = Runner {
        decisions,
        term_clock,
        clock,
        inputs: asked,
        wake: inputs.clone(),
        writer: Arc::clone(&writer),
        works,
        offer: Arc::default(),
        acks: heard,
        running: Arc::clone(&running),
        progress: Arc::clone(&progress),
        snapshots,
        snapshot,
        start_snapshot: Box::new(SnapshotJob::spawn),
        inline: Inline::OneCaller,
        offers,
        at_writer: 0,
        unmarked: None,
        linger,
        next_batch: Duration::ZERO,
    };
    let node = Node { journal: id, inputs, events, logs, stats, running, progress };
    Parts { node, runner, writer, handed, acks }
}

pub(crate) fn start_node(
    stored: Stored,
    options: Options,
    guard: WriteGuard,
    surroundings: Surroundings,
) -> Result<Node, Failure> {
    // A single node has checked this when it opened its files.
    let leads = guard.leader_lease.is_some().then_some(stored.end.position);
    let parts = assemble(stored, options, guard, surroundings, Calls::Threads);
    let Parts { node, mut runner, writer, handed, acks } = parts;
    if !runner.offers {
        runner.inline = Inline::Small;
    }
    let (wake, offer) = (node.inputs.clone(), Arc::clone(&runner.offer));
    let (ended, open_logs) = (Arc::clone(&node.running), Arc::clone(&node.logs));
    spawn("orchestrix-journal", move || {
        let result = guarded("the journal's thread", || writer::run(&writer, &handed, &offer, &acks, &wake));
        // Callers whose answers are still in the channel hear that the outcome is unknown.
        drop((handed, acks));
        drop(writer);
        open_logs.close();
        ended.end(result);
    })?;
    // Before anything can be purged.
    if let Some(began_after) = leads {
        node.logs.sweep(began_after, node.asks_unknown());
    }
    let ended = Arc::clone(&node.running);
    spawn("orchestrix-loop", move || {
        // The reason is set before the runner and the writer's thread end: the first reason counts.
        match guarded("the decision loop", || runner.run()) {
            Err(failure) if failure.message != WRITER_IS_GONE => ended.end(Err(failure)),
            Ok(()) | Err(_) => {}
        }
        drop(runner);
    })?;
    Ok(node)
}

pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(body);
    spawned.map(drop).map_err(|error| Failure::new(format!("cannot start the thread {name}: {error}")))
}

/// A panic in a thread of the node is a bug: the node ends, and no answer was sent before it was durable.
pub(crate) fn guarded(what: &str, body: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Failure::new(format!("{what} stopped because of a bug: {}", text.unwrap_or("no further word"))))
    })
}

#[cfg(test)]
mod full_disk;
#[cfg(test)]
mod tests;
