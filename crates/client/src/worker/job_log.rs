//! The log of a job: lines and progress that a handler writes, until whoever sends them takes them.
//!
//! **Invariant:** no more bytes of lines wait than there is room for. Lines without room are dropped and counted.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use orchestrix_core::limits::NOTE_BYTES_MAX;
use orchestrix_core::wire::{LogStream, LogText};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

use super::held::lock;

/// Bytes of one line; longer ones are cut into pieces.
pub(crate) const LINE_BYTES_MAX: usize = 16 << 10;
/// Bytes of lines that wait to be sent or are on their way. Bounds the memory of a job whose coordinator is slow.
pub(crate) const WAITING_BYTES_MAX: usize = 1 << 20;
/// What a line takes besides its text.
pub(crate) const LINE_BYTES_MORE: usize = 64;
/// Lines and bytes of one request. Well below what a coordinator takes.
pub(crate) const BATCH_LINES_MAX: usize = 500;
pub(crate) const BATCH_BYTES_MAX: usize = 256 << 10;
/// How long a line waits for others to share a request with.
pub(crate) const GATHER: Duration = Duration::from_millis(200);

/// Where a job writes its log. Clones write to the same log.
#[derive(Clone, Debug)]
pub(crate) struct JobLog {
    items: mpsc::UnboundedSender<LogItem>,
    pub(crate) shared: Arc<Shared>,
}

/// What a log and its sender share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Bytes of lines that may still wait.
    pub(crate) room: Arc<Semaphore>,
    /// Lines that found no room since the last one that did.
    dropped: AtomicU64,
    progress: Mutex<Option<(u8, Option<String>)>>,
    /// The handler has ended.
    ended: AtomicBool,
}

#[derive(Debug)]
pub(crate) enum LogItem {
    /// With its room.
    Line(LogText, OwnedSemaphorePermit),
    /// So many lines found no room here.
    Dropped(u64),
    /// There is progress to tell.
    Progress,
    /// The handler has ended; what was said before is still sent.
    Last,
}

/// The other end of a log.
#[derive(Debug)]
pub(crate) struct LogItems {
    items: mpsc::UnboundedReceiver<LogItem>,
    shared: Arc<Shared>,
}

/// What goes into one round of requests.
#[derive(Debug, Default)]
pub(crate) struct Round {
    pub(crate) lines: Vec<LogText>,
    /// Lines of the job that this round stands for.
    pub(crate) given: u64,
    pub(crate) bytes: usize,
    pub(crate) room: Option<OwnedSemaphorePermit>,
    pub(crate) progress: bool,
    pub(crate) last: bool,
}

impl JobLog {
    /// A log, and what is written to it.
    pub(crate) fn open() -> (Self, LogItems) {
        let (sender, items) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            room: Arc::new(Semaphore::new(WAITING_BYTES_MAX)),
            dropped: AtomicU64::new(0),
            progress: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        (Self { items: sender, shared: Arc::clone(&shared) }, LogItems { items, shared })
    }

    pub(crate) fn progress(&self, percent: u8, note: &str) {
        let note = Some(cut(note, NOTE_BYTES_MAX).0).filter(|note| !note.is_empty());
        let before = lock(&self.shared.progress).replace((percent, note.map(str::to_owned)));
        if before.is_none() {
            drop(self.items.send(LogItem::Progress));
        }
    }

    pub(crate) fn line(&self, stream: LogStream, text: &str) {
        for line in pieces(text) {
            match Arc::clone(&self.shared.room).try_acquire_many_owned(room_of(&line)) {
                Ok(room) => self.put(stream, line, room),
                Err(_) => drop(self.shared.dropped.fetch_add(1, Ordering::Relaxed)),
            }
        }
    }

    pub(crate) async fn line_when_there_is_room(&self, stream: LogStream, text: &str) {
        for line in pieces(text) {
            match Arc::clone(&self.shared.room).acquire_many_owned(room_of(&line)).await {
                Ok(room) => self.put(stream, line, room),
                Err(_) => drop(self.shared.dropped.fetch_add(1, Ordering::Relaxed)),
            }
        }
    }

    fn put(&self, stream: LogStream, text: String, room: OwnedSemaphorePermit) {
        self.put_dropped();
        drop(self.items.send(LogItem::Line(LogText { text, stream }, room)));
    }

    fn put_dropped(&self) {
        let dropped = self.shared.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            drop(self.items.send(LogItem::Dropped(dropped)));
        }
    }

    /// Nothing that is said afterwards is heard.
    pub(crate) fn last(&self) {
        self.put_dropped();
        self.shared.ended.store(true, Ordering::Relaxed);
        drop(self.items.send(LogItem::Last));
    }
}

impl LogItems {
    pub(crate) fn has_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Relaxed)
    }

    pub(crate) async fn gather(&mut self) -> Round {
        let mut round = Round::default();
        let Some(first) = self.items.recv().await else { return Round { last: true, ..round } };
        let until = Instant::now() + GATHER;
        round.take(first);
        while !round.is_full() {
            match tokio::time::timeout_at(until, self.items.recv()).await {
                Ok(Some(word)) => round.take(word),
                Ok(None) => round.last = true,
                Err(_) => break,
            }
        }
        round
    }

    /// What nobody has gathered yet.
    pub(crate) fn rest(&mut self) -> Option<LogItem> {
        self.items.try_recv().ok()
    }

    pub(crate) fn progress(&self) -> Option<(u8, Option<String>)> {
        lock(&self.shared.progress).take()
    }

    /// Whether a handler waits for room.
    pub(crate) fn is_full(&self) -> bool {
        self.shared.room.available_permits() < LINE_BYTES_MAX
    }
}

impl LogItem {
    /// Lines of the job that it stands for.
    pub(crate) fn given(&self) -> u64 {
        match self {
            Self::Line(..) => 1,
            Self::Dropped(lines) => *lines,
            Self::Progress | Self::Last => 0,
        }
    }
}

impl Round {
    pub(crate) fn take(&mut self, word: LogItem) {
        self.given += word.given();
        match word {
            LogItem::Line(line, room) => {
                self.bytes += json_bytes(&line.text);
                self.lines.push(line);
                match &mut self.room {
                    Some(taken) => taken.merge(room),
                    None => self.room = Some(room),
                }
            }
            LogItem::Dropped(1) => {
                self.lines
                    .push(mark("1 line was dropped here: it came faster than it could be sent".to_owned()));
            }
            LogItem::Dropped(lines) => self.lines.push(mark(format!(
                "{lines} lines were dropped here: they came faster than they could be sent"
            ))),
            LogItem::Progress => self.progress = true,
            LogItem::Last => self.last = true,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.last || self.lines.len() >= BATCH_LINES_MAX || self.bytes >= BATCH_BYTES_MAX
    }
}

pub(crate) fn mark(text: String) -> LogText {
    LogText { text, stream: LogStream::System }
}

/// What a text takes in JSON: a line of control characters takes six times as much as it has.
pub(crate) fn json_bytes(text: &str) -> usize {
    let bytes = |byte: u8| match byte {
        b'"' | b'\\' => 2,
        0..0x20 => 6,
        _ => 1,
    };
    text.bytes().map(bytes).sum()
}

pub(crate) fn room_of(line: &str) -> u32 {
    u32::try_from(line.len() + LINE_BYTES_MORE).expect("a line is at most LINE_BYTES_MAX long")
}

/// A text as lines that a coordinator takes.
pub(crate) fn pieces(text: &str) -> Vec<String> {
    let mut pieces = Vec::new();
    for line in text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line)) {
        let (mut piece, mut rest) = cut(line, LINE_BYTES_MAX);
        pieces.push(piece.to_owned());
        while !rest.is_empty() {
            (piece, rest) = cut(rest, LINE_BYTES_MAX);
            pieces.push(piece.to_owned());
        }
    }
    pieces
}

/// The first bytes of a text, up to a whole character, and the rest.
pub(crate) fn cut(text: &str, bytes: usize) -> (&str, &str) {
    let fits = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.split_at(fits.unwrap_or(0))
}
