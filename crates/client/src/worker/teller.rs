//! Tells the coordinator what a job writes and how far it is: lines in batches, progress when it changed.
//!
//! **Invariant:** lines arrive once and in order. Each batch names how many lines of the lease went before it,
//! so a repeat after a broken connection is recognised.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use orchestrix_core::limits::NOTE_BYTES_MAX;
use orchestrix_core::wire::{Heartbeat, Leased, LogAppend, LogStream, LogText};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::held::{Held, Signal, Stop, trusted_until};
use super::persist;
use crate::client::Client;

/// Bytes of one line; longer ones are cut into pieces.
const LINE_BYTES_MAX: usize = 16 << 10;
/// Lines that wait to be sent. Bounds memory when the coordinator is slow.
const WAITING_LINES_MAX: usize = 2_000;
/// Lines and bytes of one request. Well below what a coordinator takes.
const BATCH_LINES_MAX: usize = 500;
const BATCH_BYTES_MAX: usize = 256 << 10;
/// How long a line waits for others to share a request with.
const GATHER: Duration = Duration::from_millis(200);

/// The mouth of a job. Clones speak for the same job.
#[derive(Clone, Debug)]
pub(crate) struct Teller {
    words: mpsc::Sender<Word>,
    dropped: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Word {
    Line(LogText),
    Progress(u8, Option<String>),
    /// The handler has ended; what was said before is still sent.
    Last,
}

/// The other end: gathers and sends.
#[derive(Debug)]
pub(crate) struct Listener {
    words: mpsc::Receiver<Word>,
    dropped: Arc<AtomicU64>,
    client: Client,
    held: Arc<Held>,
    signal: Arc<Signal>,
    leased: Arc<Leased>,
    sent: u64,
}

/// What goes into one round of requests.
#[derive(Debug, Default)]
struct Round {
    lines: Vec<LogText>,
    bytes: usize,
    progress: Option<(u8, Option<String>)>,
    last: bool,
}

impl Teller {
    pub(crate) fn new(
        client: Client,
        held: Arc<Held>,
        signal: Arc<Signal>,
        leased: Arc<Leased>,
    ) -> (Self, Listener) {
        let (sender, words) = mpsc::channel(WAITING_LINES_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let teller = Self { words: sender, dropped: Arc::clone(&dropped) };
        (teller, Listener { words, dropped, client, held, signal, leased, sent: 0 })
    }

    pub(crate) fn progress(&self, percent: u8, note: &str) {
        let note = Some(cut(note, NOTE_BYTES_MAX).0).filter(|note| !note.is_empty());
        // When there is no room, lines are on their way and a later progress will be, too.
        drop(self.words.try_send(Word::Progress(percent, note.map(str::to_owned))));
    }

    pub(crate) fn line(&self, stream: LogStream, text: &str) {
        for line in pieces(text) {
            if self.words.try_send(Word::Line(LogText { text: line, stream })).is_err() {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(crate) async fn line_when_there_is_room(&self, stream: LogStream, text: &str) {
        for line in pieces(text) {
            if self.words.send(Word::Line(LogText { text: line, stream })).await.is_err() {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Nothing that is said afterwards is heard.
    pub(crate) async fn last(&self) {
        drop(self.words.send(Word::Last).await);
    }
}

impl Listener {
    /// Sends until the last word, or until nobody wants to hear it.
    pub(crate) async fn run(mut self) {
        loop {
            let round = self.gather().await;
            if let Some((percent, note)) = round.progress {
                self.send_progress(percent, note).await;
            }
            if !round.lines.is_empty() && !self.send_lines(round.lines).await {
                return;
            }
            if round.last {
                return;
            }
        }
    }

    async fn gather(&mut self) -> Round {
        let mut round = Round::default();
        let Some(first) = self.words.recv().await else { return Round { last: true, ..round } };
        let until = Instant::now() + GATHER;
        round.take(first);
        while !round.is_full() {
            match tokio::time::timeout_at(until, self.words.recv()).await {
                Ok(Some(word)) => round.take(word),
                Ok(None) => round.last = true,
                Err(_) => break,
            }
        }
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let text = format!("{dropped} lines were dropped here: they came faster than they could be sent");
            round.lines.push(LogText { text, stream: LogStream::System });
        }
        round
    }

    async fn send_progress(&self, percent: u8, note: Option<String>) {
        let Leased { task_id, lease_id, .. } = *self.leased;
        let heartbeat = Heartbeat { lease_id, worker: None, progress: Some(percent), note };
        let sent = self.held.now();
        match self.client.heartbeat(task_id, &heartbeat).await {
            Ok(extended) => {
                self.held.extend(lease_id, trusted_until(sent, 0, extended.lease_ms));
                if extended.cancel_requested {
                    self.held.tell(lease_id, Stop::CancelRequested);
                }
            }
            Err(error) if error.code() == "stale_lease" => self.held.tell(lease_id, Stop::LeaseLost),
            Err(error) => tracing::debug!(task = task_id.0, %error, "progress was not told"),
        }
    }

    /// Answers whether more lines are of any use.
    async fn send_lines(&mut self, lines: Vec<LogText>) -> bool {
        let Leased { task_id, lease_id, .. } = *self.leased;
        let count = lines.len() as u64;
        let append = LogAppend { lease_id, lines, offset: Some(self.sent) };
        let sent = persist(&self.signal.gone, || self.client.append_logs(task_id, &append)).await;
        match sent {
            Ok(_) => {
                self.sent += count;
                true
            }
            Err(error) => {
                tracing::warn!(task = task_id.0, lease = lease_id.0, %error, "log lines were not taken");
                false
            }
        }
    }
}

impl Round {
    fn take(&mut self, word: Word) {
        match word {
            Word::Line(line) => {
                self.bytes += line.text.len();
                self.lines.push(line);
            }
            Word::Progress(percent, note) => self.progress = Some((percent, note)),
            Word::Last => self.last = true,
        }
    }

    fn is_full(&self) -> bool {
        self.last || self.lines.len() >= BATCH_LINES_MAX || self.bytes >= BATCH_BYTES_MAX
    }
}

/// A text as lines that a coordinator takes.
fn pieces(text: &str) -> Vec<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_becomes_lines_and_long_ones_are_cut_between_characters() {
        assert_eq!(pieces("a\r\nb"), ["a", "b"]);
        assert_eq!(pieces(""), [""]);
        let long = "ä".repeat(LINE_BYTES_MAX);
        let cut = pieces(&long);
        assert_eq!(cut.len(), 2);
        assert!(cut.iter().all(|piece| piece.len() <= LINE_BYTES_MAX));
        assert_eq!(cut.concat(), long);
    }

    #[test]
    fn a_round_is_full_by_lines_by_bytes_or_at_the_end() {
        let line = |bytes| Word::Line(LogText { text: "x".repeat(bytes), stream: LogStream::Stdout });
        let mut by_lines = Round::default();
        (0..BATCH_LINES_MAX).for_each(|_| by_lines.take(line(1)));
        assert!(by_lines.is_full());
        let mut by_bytes = Round::default();
        (0..16).for_each(|_| by_bytes.take(line(LINE_BYTES_MAX)));
        assert!(by_bytes.is_full());
        let mut ended = Round::default();
        assert!(!ended.is_full());
        ended.take(Word::Last);
        assert!(ended.is_full());
    }

    #[test]
    fn only_the_latest_progress_of_a_round_is_kept() {
        let mut round = Round::default();
        round.take(Word::Progress(10, None));
        round.take(Word::Progress(20, Some("half".to_owned())));
        assert_eq!(round.progress, Some((20, Some("half".to_owned()))));
    }
}
