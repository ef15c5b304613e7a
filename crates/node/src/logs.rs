//! The output of tasks: numbered lines over an engine's chunks, with caps per line and per task.

mod store;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minicbor::{Decode, Encode};
use orchestrix_core::limits::BATCH_ITEMS_MAX;
use orchestrix_core::wire::{LogAppend, LogAppended, LogLine, LogPage, LogStream, LogText};
use orchestrix_core::{LeaseId, Refusal, TaskId, Timestamp};
use orchestrix_engine::file::TASK_CHUNKS_MAX;
use orchestrix_engine::{LogChunk, Logged, Logs};
use tokio::sync::{Mutex as AsyncMutex, watch};

use self::store::Store;
use crate::clock::Clock;
use crate::options::Options;
use crate::request::Error;
use crate::stats::Stats;

/// Tasks whose line counts are kept in memory. The others are counted again when somebody asks.
const TASKS_KEPT: usize = 10_000;
/// Chunks with lines of a task. An engine takes more: the rest is for the marks about dropped lines, one for
/// each doubling of a number.
const LINE_CHUNKS_MAX: usize = TASK_CHUNKS_MAX - u64::BITS as usize;
/// Bytes of chunks read for one page, plus at most one chunk.
const PAGE_BYTES: usize = 1 << 20;

/// All output of all tasks.
pub(crate) struct TaskLogs {
    store: Arc<Store>,
    tasks: Mutex<BTreeMap<TaskId, Arc<TaskLog>>>,
    clock: Arc<dyn Clock>,
    stats: Arc<Stats>,
    line_bytes: usize,
    task_bytes: u64,
}

impl std::fmt::Debug for TaskLogs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskLogs").field("task_bytes", &self.task_bytes).finish_non_exhaustive()
    }
}

/// What is known of one task's output without reading it.
#[derive(Debug)]
struct TaskLog {
    /// `None` until somebody needed it. Held while lines are added, so that they stay in order.
    counted: Arc<AsyncMutex<Option<Counted>>>,
    lines: watch::Sender<u64>,
}

#[derive(Clone, Debug, Default)]
struct Counted {
    /// Stored lines after each chunk.
    lines: Vec<u64>,
    bytes: u64,
    dropped: u64,
    /// The last number of dropped lines that was stored.
    told: u64,
    /// Lines sent so far by each lease, dropped ones included.
    sent: BTreeMap<LeaseId, u64>,
}

/// One chunk, as the engine stores it.
#[derive(Debug, Encode, Decode)]
struct Chunk {
    #[n(0)]
    attempt: u32,
    #[n(1)]
    at: Timestamp,
    #[n(2)]
    lines: Vec<Line>,
    /// Lines of the task that were dropped so far.
    #[n(3)]
    dropped: u64,
    /// Lines of the lease that this chunk stands for: the stored ones and those dropped with them.
    #[n(4)]
    sent: u64,
}

#[derive(Debug, Encode, Decode)]
struct Line {
    #[n(0)]
    stream: u8,
    #[n(1)]
    text: String,
}

/// A chunk on its way, with what it changes.
#[derive(Debug)]
struct Addition {
    lease: LeaseId,
    offset: u64,
    chunk: Chunk,
    /// Lines that are dropped with it.
    dropped: u64,
}

impl TaskLogs {
    pub(crate) fn new(
        engine: Arc<dyn Logs>,
        options: &Options,
        clock: Arc<dyn Clock>,
        stats: Arc<Stats>,
    ) -> Self {
        Self {
            store: Store::new(engine),
            tasks: Mutex::default(),
            clock,
            stats,
            line_bytes: options.log_line_bytes,
            task_bytes: options.log_task_bytes,
        }
    }

    /// Adds those lines of an attempt that are not a repeat; drops what is beyond the cap, and says so.
    pub(crate) async fn append(
        &self,
        task: TaskId,
        attempt: u32,
        body: LogAppend,
    ) -> Result<LogAppended, Error> {
        if body.lines.len() > BATCH_ITEMS_MAX {
            let problem =
                format!("has {} items, at most {BATCH_ITEMS_MAX} are accepted in one call", body.lines.len());
            return Err(Refusal::Invalid { field: "lines", problem }.into());
        }
        let log = self.task(task);
        let mut guard = Arc::clone(&log.counted).lock_owned().await;
        let counted = self.counted(task, &mut guard).await?;
        let LogAppend { lease_id: lease, mut lines, offset } = body;
        let sent = counted.sent(lease);
        let mut offset = offset.unwrap_or(sent);
        if offset < sent {
            let known = usize::try_from(sent - offset).unwrap_or(usize::MAX);
            if known >= lines.len() {
                return Ok(LogAppended { next: sent, dropped: 0 });
            }
            lines.drain(..known);
            offset = sent;
        }
        // Past the cap most of what was sent left no trace, so a later count does not know of it. A hole there
        // does no harm: the lines are dropped anyway.
        if offset > sent && !counted.is_full() {
            let problem = format!("is {offset}, but {sent} lines of this lease have arrived");
            return Err(Refusal::Invalid { field: "offset", problem }.into());
        }
        let chunk = self.chunk(counted, attempt, lines);
        let addition = Addition { lease, offset, dropped: chunk.dropped - counted.dropped, chunk };
        let stats = Arc::clone(&self.stats);
        if addition.chunk.lines.is_empty() {
            counted.arrived(lease, offset, &addition.chunk);
            return Ok(addition.tell(counted, &log, &stats));
        }
        // Storing and counting are one call on a thread that a caller who leaves does not stop: a chunk that
        // nobody counted would shift the numbers of all lines after it.
        self.store.call(move |engine| addition.store(engine, task, &mut guard, &log, &stats)).await
    }

    /// Lines from the `offset`-th on, of one attempt or of all.
    pub(crate) async fn read(
        &self,
        task: TaskId,
        offset: u64,
        limit: usize,
        attempt: Option<u32>,
    ) -> Result<LogPage, Error> {
        let log = self.task(task);
        let counted = {
            let mut guard = log.counted.lock().await;
            self.counted(task, &mut guard).await?.clone()
        };
        let mut page = LogPage { lines: Vec::new(), next_offset: offset, dropped: counted.dropped };
        let mut chunk = counted.lines.partition_point(|lines| *lines <= offset);
        while page.lines.len() < limit && chunk < counted.lines.len() {
            let chunks = self.store.call(move |engine| engine.read(task, chunk, PAGE_BYTES)).await?;
            if chunks.is_empty() {
                break;
            }
            // What came after the count belongs to the next page: its lines have no numbers here.
            for stored in chunks.iter().take(counted.lines.len() - chunk) {
                let first = if chunk == 0 { 0 } else { counted.lines[chunk - 1] };
                add_lines(&mut page, stored, first, limit, attempt)?;
                chunk += 1;
            }
        }
        Ok(page)
    }

    /// Changes whenever the number of lines does.
    pub(crate) fn changes(&self, task: TaskId) -> watch::Receiver<u64> {
        self.task(task).lines.subscribe()
    }

    /// Deletes the output of tasks that are purged, soon. Does not wait: who calls this has decisions to make
    /// durable.
    pub(crate) fn forget(&self, tasks: Vec<TaskId>) {
        if tasks.is_empty() {
            return;
        }
        let mut known = self.lock();
        tasks.iter().for_each(|task| drop(known.remove(task)));
        drop(known);
        self.store.delete(&tasks);
    }

    /// Lets go of the engine, after what was begun.
    pub(crate) fn close(&self) {
        self.store.close();
    }

    fn task(&self, task: TaskId) -> Arc<TaskLog> {
        let mut tasks = self.lock();
        if tasks.len() >= TASKS_KEPT && !tasks.contains_key(&task) {
            tasks.retain(|_, log| Arc::strong_count(log) > 1 || log.lines.receiver_count() > 0);
        }
        let fresh = || Arc::new(TaskLog { counted: Arc::default(), lines: watch::Sender::new(0) });
        Arc::clone(tasks.entry(task).or_insert_with(fresh))
    }

    /// Counts what is stored, once.
    async fn counted<'a>(
        &self,
        task: TaskId,
        counted: &'a mut Option<Counted>,
    ) -> Result<&'a mut Counted, Error> {
        if counted.is_none() {
            *counted = Some(self.store.call(move |engine| count(engine, task)).await?);
        }
        Ok(counted.as_mut().expect("it was just counted"))
    }

    /// Turns lines into a chunk: cuts long ones, drops what is beyond the cap, and adds a line about that.
    fn chunk(&self, counted: &Counted, attempt: u32, lines: Vec<LogText>) -> Chunk {
        let sent = lines.len() as u64;
        let (mut kept, mut bytes, mut dropped) = (Vec::new(), 0, 0);
        for LogText { text, stream } in lines {
            let text = cut(text, self.line_bytes);
            let room = self.task_bytes.saturating_sub(counted.bytes + bytes);
            if dropped > 0 || counted.is_full() || text.len() as u64 > room {
                dropped += 1;
                continue;
            }
            bytes += text.len() as u64;
            kept.push(Line { stream: stream_code(stream), text });
        }
        let all = counted.dropped + dropped;
        // A mark for each doubling: the number told is right to a factor of two even after a crash, and the
        // marks of a flood stay few.
        let due = dropped > 0 && (counted.told == 0 || all >= counted.told * 2);
        // Lines may stand where marks should, in output that was not stored under this cap.
        if due && counted.lines.len() < TASK_CHUNKS_MAX {
            let (cap, unit) = self.cap(counted);
            let text = format!("{all} lines were dropped: the output of this task has reached {cap} {unit}");
            kept.push(Line { stream: stream_code(LogStream::System), text });
        }
        let at = Timestamp(u64::try_from(self.clock.wall().as_millis()).unwrap_or(u64::MAX));
        Chunk { attempt, at, lines: kept, dropped: all, sent }
    }

    /// What keeps lines out, in words for people.
    fn cap(&self, counted: &Counted) -> (u64, &'static str) {
        if counted.lines.len() >= LINE_CHUNKS_MAX {
            (LINE_CHUNKS_MAX as u64, "parts")
        } else {
            (self.task_bytes, "bytes")
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<TaskId, Arc<TaskLog>>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Addition {
    /// Stores the chunk and counts it; or counts all anew, if what was counted did not know of it.
    fn store(
        self,
        engine: &dyn Logs,
        task: TaskId,
        counted: &mut Option<Counted>,
        log: &TaskLog,
        stats: &Stats,
    ) -> Result<LogAppended, orchestrix_engine::Error> {
        let bytes = minicbor::to_vec(&self.chunk).expect("writing to memory cannot fail");
        match engine.append(task, self.lease, self.offset, &bytes)? {
            Logged::Stored => {
                let counted = counted.as_mut().expect("what follows was counted");
                counted.stored(self.lease, self.offset, &self.chunk);
                Ok(self.tell(counted, log, stats))
            }
            Logged::Existed => {
                *counted = None;
                let counted = counted.insert(count(engine, task)?);
                log.lines.send_replace(counted.total());
                Ok(LogAppended { next: counted.sent(self.lease), dropped: 0 })
            }
        }
    }

    /// Tells everybody what has become of the lines.
    fn tell(&self, counted: &Counted, log: &TaskLog, stats: &Stats) -> LogAppended {
        stats.log_lines.add(self.chunk.sent - self.dropped);
        stats.log_lines_dropped.add(self.dropped);
        log.lines.send_replace(counted.total());
        LogAppended { next: counted.sent(self.lease), dropped: self.dropped }
    }
}

impl Counted {
    fn total(&self) -> u64 {
        self.lines.last().copied().unwrap_or(0)
    }

    fn sent(&self, lease: LeaseId) -> u64 {
        self.sent.get(&lease).copied().unwrap_or(0)
    }

    /// Nothing but marks is stored any more.
    fn is_full(&self) -> bool {
        self.dropped > 0 || self.lines.len() >= LINE_CHUNKS_MAX
    }

    /// Counts lines that arrived, whatever is kept of them.
    fn arrived(&mut self, lease: LeaseId, offset: u64, chunk: &Chunk) {
        self.dropped = self.dropped.max(chunk.dropped);
        // The offset is whatever the worker said.
        self.sent.insert(lease, offset.saturating_add(chunk.sent));
    }

    /// Counts a chunk that is stored behind the others.
    fn stored(&mut self, lease: LeaseId, offset: u64, chunk: &Chunk) {
        self.lines.push(self.total() + chunk.lines.len() as u64);
        self.bytes += chunk.lines.iter().map(|line| line.text.len() as u64).sum::<u64>();
        self.arrived(lease, offset, chunk);
        self.told = self.dropped;
    }
}

fn count(engine: &dyn Logs, task: TaskId) -> Result<Counted, orchestrix_engine::Error> {
    let mut counted = Counted::default();
    loop {
        let chunks = engine.read(task, counted.lines.len(), PAGE_BYTES)?;
        if chunks.is_empty() {
            return Ok(counted);
        }
        for LogChunk { lease, offset, bytes } in chunks {
            let chunk: Chunk = minicbor::decode(&bytes).map_err(|error| unreadable(task, &error))?;
            counted.stored(lease, offset, &chunk);
        }
    }
}

fn add_lines(
    page: &mut LogPage,
    stored: &LogChunk,
    first: u64,
    limit: usize,
    attempt: Option<u32>,
) -> Result<(), Error> {
    let chunk: Chunk = minicbor::decode(&stored.bytes).map_err(|_| Error::Refused(Refusal::Internal))?;
    let wanted = attempt.is_none_or(|attempt| attempt == chunk.attempt);
    for (n, line) in (first..).zip(chunk.lines) {
        if n < page.next_offset || page.lines.len() >= limit {
            continue;
        }
        page.next_offset = n + 1;
        if wanted {
            let stream = stream_of(line.stream);
            page.lines.push(LogLine { n, attempt: chunk.attempt, at: chunk.at, stream, text: line.text });
        }
    }
    Ok(())
}

/// Cuts a line at a character's end, and says how much is missing.
fn cut(text: String, max: usize) -> String {
    if text.len() <= max {
        return text;
    }
    let end = (0..=max).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{} [{} bytes cut]", &text[..end], text.len() - end)
}

fn stream_code(stream: LogStream) -> u8 {
    match stream {
        LogStream::Stdout => 0,
        LogStream::Stderr => 1,
        LogStream::System => 2,
    }
}

fn stream_of(code: u8) -> LogStream {
    match code {
        1 => LogStream::Stderr,
        2 => LogStream::System,
        _ => LogStream::Stdout,
    }
}

fn unreadable(task: TaskId, error: &minicbor::decode::Error) -> orchestrix_engine::Error {
    let text = format!("a chunk of output cannot be read: {error}");
    orchestrix_engine::Error {
        operation: format!("read the output of task {task}"),
        retryable: false,
        source: orchestrix_engine::Cause::Io(std::io::Error::other(text)),
    }
}

#[cfg(test)]
mod tests {
    use orchestrix_engine::memory::MemoryLogs;

    use super::*;
    use crate::clock::SystemClock;

    fn logs(engine: &MemoryLogs) -> TaskLogs {
        let engine = Arc::new(engine.clone());
        TaskLogs::new(engine, &Options::default(), Arc::new(SystemClock), Arc::default())
    }

    fn lines(offset: u64, texts: &[&str]) -> LogAppend {
        let line = |text: &&str| LogText { text: (*text).to_owned(), stream: LogStream::Stdout };
        LogAppend { lease_id: LeaseId(2), lines: texts.iter().map(line).collect(), offset: Some(offset) }
    }

    #[tokio::test]
    async fn a_chunk_that_is_stored_but_was_not_counted_is_counted_with_its_repeat() {
        let engine = MemoryLogs::default();
        let (task, logs, before) = (TaskId(1), logs(&engine), logs(&engine));
        assert_eq!(logs.read(task, 0, 10, None).await.unwrap().next_offset, 0);
        before.append(task, 1, lines(0, &["one", "two"])).await.unwrap();
        assert_eq!(logs.append(task, 1, lines(0, &["one", "two"])).await.unwrap().next, 2);
        logs.append(task, 1, lines(2, &["three"])).await.unwrap();
        let page = logs.read(task, 0, 10, None).await.unwrap();
        assert_eq!(page.lines.iter().map(|line| line.n).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(page.lines[2].text, "three");
    }
}
