//! The output of tasks: numbered lines over an engine's chunks, with caps per line and per task.

mod count;
mod store;
mod sweep;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minicbor::{Decode, Encode};
use orchestrix_core::limits::{BATCH_ITEMS_MAX, PAGE_BYTES_MAX};
use orchestrix_core::wire::{LogAppend, LogAppended, LogLine, LogPage, LogStream, LogText};
use orchestrix_core::{Position, Refusal, TaskId, Timestamp, is_planted};
use orchestrix_engine::bus::EntryId;
use orchestrix_engine::file::TASK_CHUNKS_MAX;
use orchestrix_engine::{Clock, LogPlace, Logged, Logs};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, watch};

use self::count::{Counted, LINE_CHUNKS_MAX, Origin, count, count_on};
pub(crate) use self::store::Calls;
pub use self::store::OutputCall;
use self::store::Store;
pub(crate) use self::sweep::AskUnknown;
use self::sweep::Sweep;
use crate::options::Options;
use crate::request::Error;
use crate::stats::Stats;
use crate::write_guard::WriteGuard;

/// Bytes of a line in JSON beside its text, at most: number, attempt, time, stream.
const LINE_BYTES: usize = 128;
/// Tasks whose line counts are kept in memory. The others are counted again on request.
const TASKS_KEPT: usize = 10_000;
/// How often lines are added to what was counted anew. Each time another node has stored something meanwhile.
const TRIES: usize = 4;
/// What is read in place of lines that were stored, but are not there any more.
const MISSING: &str = "lines are missing here: a part of the output of this task is damaged";

/// All output of all tasks.
pub(crate) struct TaskLogs {
    store: Arc<Store>,
    tasks: Mutex<BTreeMap<TaskId, Arc<TaskLog>>>,
    clock: Arc<dyn Clock>,
    stats: Arc<Stats>,
    guard: WriteGuard,
    line_bytes: usize,
    task_bytes: u64,
    /// Owners on other nodes store lines, too.
    is_shared: bool,
}

impl std::fmt::Debug for TaskLogs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskLogs").field("task_bytes", &self.task_bytes).finish_non_exhaustive()
    }
}

/// What is known of one task's output without reading it.
#[derive(Debug)]
struct TaskLog {
    /// `None` until the first use. Held while lines are added, so that they stay in order.
    counted: Arc<AsyncMutex<Option<Counted>>>,
    lines: watch::Sender<u64>,
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
    /// Lines of the lease that this chunk stands for: the stored ones, those dropped with them, and those before them
    /// that never arrived.
    #[n(4)]
    sent: u64,
    /// The message of the bus that brought the lines, if one did.
    #[n(5)]
    message: Option<MessageId>,
}

/// Names a message of the bus in the channel of its lease. Later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub(crate) struct MessageId {
    #[n(0)]
    pub(crate) major: u64,
    #[n(1)]
    pub(crate) minor: u64,
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
    at: LogPlace,
    chunk: Chunk,
    /// Lines that came with it, and how many of them are dropped.
    new: u64,
    dropped: u64,
}

impl From<EntryId> for MessageId {
    fn from(EntryId { major, minor }: EntryId) -> Self {
        Self { major, minor }
    }
}

impl TaskLogs {
    pub(crate) fn new(
        engine: Arc<dyn Logs>,
        options: &Options,
        clock: Arc<dyn Clock>,
        stats: Arc<Stats>,
        guard: WriteGuard,
        calls: Calls,
    ) -> Self {
        Self {
            store: Store::new(engine, calls),
            tasks: Mutex::default(),
            clock,
            stats,
            guard,
            line_bytes: options.log_line_bytes,
            task_bytes: options.log_task_bytes,
            is_shared: options.bus.is_some(),
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
        if body.skipped > 0 && body.offset.is_none() {
            let problem = "has no effect without an offset".to_owned();
            return Err(Refusal::Invalid { field: "skipped", problem }.into());
        }
        self.append_once(task, attempt, body, None).await
    }

    /// The same for lines of a message of the bus, which are stored once, however often it is read.
    pub(crate) async fn append_once(
        &self,
        task: TaskId,
        attempt: u32,
        body: LogAppend,
        message: Option<MessageId>,
    ) -> Result<LogAppended, Error> {
        let log = self.task(task);
        for _ in 0..TRIES {
            let guard = Arc::clone(&log.counted).lock_owned().await;
            if let Some(appended) = self.try_append(task, attempt, &body, message, &log, guard).await? {
                return if self.may_acknowledge() { Ok(appended) } else { Err(Error::OutcomeUnknown) };
            }
        }
        tracing::warn!(%task, "different lines are already stored under these numbers");
        Err(Error::OutcomeUnknown)
    }

    /// Whether the next leader will count what is stored by now. After the end of a term it may have counted before, and
    /// would not show what was acknowledged.
    fn may_acknowledge(&self) -> bool {
        self.guard.holds() || is_planted("output-acknowledged-late")
    }

    /// Adds what is new of some lines, as far as it is known what is stored. `None` if more was stored than that, or
    /// something else: it is to be counted again.
    async fn try_append(
        &self,
        task: TaskId,
        attempt: u32,
        body: &LogAppend,
        message: Option<MessageId>,
        log: &Arc<TaskLog>,
        mut guard: OwnedMutexGuard<Option<Counted>>,
    ) -> Result<Option<LogAppended>, Error> {
        let counted = self.counted(task, &mut guard).await?;
        log.lines.send_if_modified(|lines| std::mem::replace(lines, counted.total()) != counted.total());
        let LogAppend { lease_id: lease, ref lines, offset, skipped } = *body;
        let sent = counted.sent(lease);
        if message.is_some_and(|message| counted.has_message(lease, message)) {
            return Ok(Some(LogAppended { next: sent, dropped: 0 }));
        }
        let offset = offset.unwrap_or_else(|| counted.next_offset(lease));
        let known = usize::try_from(sent.saturating_sub(offset)).unwrap_or(usize::MAX);
        let (lines, offset) = (lines.get(known..).unwrap_or_default(), offset.max(sent));
        if lines.is_empty() && skipped == 0 {
            return Ok(Some(LogAppended { next: sent, dropped: 0 }));
        }
        let gap = counted.gap(lease, offset, skipped);
        if !counted.may_follow(lease, offset - gap) {
            let problem = format!("is {offset}, but {sent} lines of this lease have arrived");
            return Err(Refusal::Invalid { field: "offset", problem }.into());
        }
        if lines.is_empty() && gap == 0 {
            return Ok(Some(LogAppended { next: sent, dropped: 0 }));
        }
        let (mut chunk, dropped) = self.chunk(counted, attempt, gap, lines);
        chunk.message = message;
        // The chunk stands for the gap before its lines too, so no other one gets the place of those in the gap.
        let at = LogPlace { task, number: counted.chunks(), lease, offset: offset - gap };
        let mut addition = Addition { at, chunk, new: lines.len() as u64, dropped };
        let (log, stats) = (Arc::clone(log), Arc::clone(&self.stats));
        if addition.chunk.lines.is_empty() {
            if is_planted("drops-forgotten") {
                addition.chunk.dropped = counted.dropped;
            }
            counted.arrived(lease, at.offset, &addition.chunk);
            return Ok(Some(addition.tell(counted, &log, &stats)));
        }
        self.store.expect_output(task);
        // Storing and counting are one call on a thread that a caller who leaves does not stop: a chunk that
        // that was not counted would shift the numbers of all later lines.
        let stored = self.store.call(move |engine| addition.store(engine, &mut guard, &log, &stats)).await;
        // An engine that did not answer may have stored them.
        stored.map_err(|error| if error == Error::Unavailable { Error::OutcomeUnknown } else { error })
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
            self.counted_now(task, &mut guard).await?.clone()
        };
        let mut page = LogPage { lines: Vec::new(), next_offset: offset, dropped: counted.dropped };
        let mut chunk = counted.chunk_of(offset);
        let mut room = PageRoom { lines: limit, bytes: PAGE_BYTES_MAX, is_full: false };
        while !room.is_full && chunk < counted.chunks() {
            let chunks = self.store.call(move |engine| count::read(engine, task, chunk)).await?;
            if chunks.is_empty() {
                break;
            }
            // What came after the count belongs to the next page: its lines have no numbers here.
            for stored in chunks.into_iter().take(counted.chunks() - chunk) {
                add_lines(&mut page, &counted, chunk, stored.map(|stored| stored.chunk), &mut room, attempt);
                chunk += 1;
            }
        }
        Ok(page)
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
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
        self.store.delete(tasks);
    }

    /// Deletes, slowly, the output of tasks that were purged before a term began, if the earlier leader did not get
    /// to it.
    pub(crate) fn sweep(&self, began_after: Position, ask: AskUnknown) {
        self.store.sweep(Sweep::new(began_after, ask));
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

    /// The same as it is now, if other nodes store output, too.
    async fn counted_now<'a>(
        &self,
        task: TaskId,
        counted: &'a mut Option<Counted>,
    ) -> Result<&'a mut Counted, Error> {
        if self.is_shared
            && let Some(known) = counted.take()
        {
            let now = self.now();
            let more = self.store.call(move |engine| count_on(known, engine, task, now)).await?;
            *counted = Some(more);
        }
        self.counted(task, counted).await
    }

    /// Counts what is stored, once. If others have stored more since, the next chunk has no place and it is counted again.
    async fn counted<'a>(
        &self,
        task: TaskId,
        counted: &'a mut Option<Counted>,
    ) -> Result<&'a mut Counted, Error> {
        if counted.is_none() {
            let now = self.now();
            let stored = self.store.call(move |engine| count(engine, task, now)).await?;
            if stored.chunks() > 0 {
                self.store.expect_output(task);
            }
            *counted = Some(stored);
        }
        Ok(counted.as_mut().expect("it was just counted"))
    }

    /// Turns lines, and what has to be said about a gap before them, into a chunk: cuts long ones, drops what is beyond
    /// the cap, and adds a line about that. With the number of lines that it drops.
    fn chunk(&self, counted: &Counted, attempt: u32, gap: u64, lines: &[LogText]) -> (Chunk, u64) {
        let (mut kept, mut bytes, mut dropped) = (Vec::new(), 0, 0);
        let has_room = |text: &str, bytes: u64| {
            let room = self.task_bytes.saturating_sub(counted.bytes + bytes);
            !counted.is_full() && text.len() as u64 <= room
        };
        let notice = (gap > 0).then(|| not_taken(gap)).filter(|text| has_room(text, 0));
        let unreported = if notice.is_some() { 0 } else { gap };
        if let Some(text) = notice {
            bytes += text.len() as u64;
            kept.push(Line { stream: stream_code(LogStream::System), text });
        }
        for LogText { text, stream } in lines {
            let text = cut(text, self.line_bytes);
            if dropped > 0 || unreported > 0 || !has_room(&text, bytes) {
                dropped += 1;
                continue;
            }
            bytes += text.len() as u64;
            kept.push(Line { stream: stream_code(*stream), text });
        }
        // A gap is as wide as a worker says.
        let all = counted.dropped.saturating_add(dropped).saturating_add(unreported);
        // A mark for each doubling: the number told is right to a factor of two even after a crash, and the
        // marks of a flood stay few.
        let due =
            all > counted.reported && (counted.reported == 0 || all >= counted.reported.saturating_mul(2));
        // Lines may stand where marks should, in output that was not stored under this cap.
        if due && counted.chunks() < TASK_CHUNKS_MAX {
            let (cap, unit) = self.cap(counted);
            let text = format!("{all} lines were dropped: the output of this task has reached {cap} {unit}");
            kept.push(Line { stream: stream_code(LogStream::System), text });
        }
        let sent = gap.saturating_add(lines.len() as u64);
        (Chunk { attempt, at: self.now(), lines: kept, dropped: all, sent, message: None }, dropped)
    }

    fn now(&self) -> Timestamp {
        Timestamp(u64::try_from(self.clock.wall().as_millis()).unwrap_or(u64::MAX))
    }

    /// What keeps lines out, in words for people.
    fn cap(&self, counted: &Counted) -> (u64, &'static str) {
        if counted.chunks() >= LINE_CHUNKS_MAX {
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
    /// Stores the chunk and counts it. `None` if it has to be counted again what is stored.
    fn store(
        self,
        engine: &dyn Logs,
        counted: &mut Option<Counted>,
        log: &TaskLog,
        stats: &Stats,
    ) -> Result<Option<LogAppended>, orchestrix_engine::Error> {
        let bytes = minicbor::to_vec(&self.chunk).expect("writing to memory cannot fail");
        // What is stored is not known any more, if the answer does not come: it is counted again on the next request.
        let logged = engine.append(self.at, &bytes).inspect_err(|_| *counted = None)?;
        match logged {
            Logged::Stored => {
                let counted = counted.as_mut().expect("what follows was counted");
                counted.stored(self.at.lease, self.at.offset, &self.chunk);
                Ok(Some(self.tell(counted, log, stats)))
            }
            Logged::Existed | Logged::Conflict => {
                *counted = None;
                Ok(None)
            }
        }
    }

    /// Answers all callers about their lines.
    fn tell(&self, counted: &Counted, log: &TaskLog, stats: &Stats) -> LogAppended {
        stats.log_lines.add(self.new - self.dropped);
        stats.log_lines_dropped.add(self.dropped);
        log.lines.send_replace(counted.total());
        LogAppended { next: counted.sent(self.at.lease), dropped: self.dropped }
    }
}

/// What still fits into a page.
struct PageRoom {
    lines: usize,
    bytes: usize,
    is_full: bool,
}

impl PageRoom {
    /// Takes the place of a line as JSON, if there is one; the first line of a page has one.
    fn take(&mut self, text: &str, is_first: bool) -> bool {
        let bytes = serde_json::to_vec(text).map_or(text.len(), |json| json.len()) + LINE_BYTES;
        self.is_full = self.lines == 0 || (bytes > self.bytes && !is_first);
        if !self.is_full {
            (self.lines, self.bytes) = (self.lines - 1, self.bytes.saturating_sub(bytes));
            self.is_full = self.lines == 0;
            return true;
        }
        false
    }
}

/// Adds the lines of a chunk, or one line in place of those that cannot be read.
fn add_lines(
    page: &mut LogPage,
    counted: &Counted,
    nth: usize,
    chunk: Option<Chunk>,
    room: &mut PageRoom,
    attempt: Option<u32>,
) {
    if room.is_full {
        return;
    }
    let Range { start, end } = counted.numbers(nth);
    let hole = Line { stream: stream_code(LogStream::System), text: MISSING.to_owned() };
    let (origin, lines, first, skipped) = match chunk {
        Some(Chunk { attempt, at, mut lines, .. }) => {
            if counted.begins_with_hole(nth) {
                lines.insert(0, hole);
            }
            (Origin { attempt, at }, lines, start, start)
        }
        // At the last count it may have had lines, and a reader may have seen the first ones.
        None => (counted.near(nth), vec![hole], start.max(page.next_offset), end),
    };
    let wanted = attempt.is_none_or(|attempt| attempt == origin.attempt);
    for (n, line) in (first..end).zip(lines) {
        if n < page.next_offset {
            continue;
        }
        if room.is_full || (wanted && !room.take(&line.text, page.lines.is_empty())) {
            return;
        }
        page.next_offset = n + 1;
        if wanted {
            let Origin { attempt, at } = origin;
            page.lines.push(LogLine { n, attempt, at, stream: stream_of(line.stream), text: line.text });
        }
    }
    page.next_offset = page.next_offset.max(skipped);
}

/// Cuts a line at a character's end, and says how much is missing.
fn cut(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let end = (0..=max).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{} [{} bytes cut]", &text[..end], text.len() - end)
}

/// What is read in place of lines that a worker sent, but that never arrived.
fn not_taken(lines: u64) -> String {
    match lines {
        1 => "1 line is missing here: the coordinator did not take it in time".to_owned(),
        _ => format!("{lines} lines are missing here: the coordinator did not take them in time"),
    }
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

#[cfg(test)]
mod tests;
