//! Tells the coordinator what a job writes and how far it is: lines in batches, progress when it changed.
//!
//! **Invariant:** lines arrive once and in order, or the log says how many are missing. Each batch names how
//! many lines of the lease went before it, so a repeat after a broken connection is recognised.
//!
//! **Invariant:** nobody waits for ever for the log. A job is worth more than its lines: those that are not taken
//! for some seconds are dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use orchestrix_core::limits::NOTE_BYTES_MAX;
use orchestrix_core::wire::{Heartbeat, Leased, LogAppend, LogAppended, LogStream, LogText};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::held::{Held, Signal, Stop, trusted_until};
use crate::client::Client;
use crate::error::Error;
use crate::retry::Backoff;

/// Bytes of one line; longer ones are cut into pieces.
const LINE_BYTES_MAX: usize = 16 << 10;
/// Lines that wait to be sent. Bounds memory when the coordinator is slow.
const WAITING_LINES_MAX: usize = 2_000;
/// Lines and bytes of one request. Well below what a coordinator takes.
const BATCH_LINES_MAX: usize = 500;
const BATCH_BYTES_MAX: usize = 256 << 10;
/// How long a line waits for others to share a request with.
const GATHER: Duration = Duration::from_millis(200);
/// How long the coordinator may take to accept a batch, all tries together, and twice what one of them may take.
/// Long enough for its restart, short enough for a command that waits for room.
const PATIENCE: Duration = Duration::from_secs(10);

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
    patience: Duration,
    /// Lines of the lease that the coordinator has.
    arrived: u64,
    /// Lines of the job that are not in its log, while the log does not say so.
    missing: u64,
    /// A batch was sent without an answer. If it has arrived, so many of `missing` are not.
    unsure: Option<u64>,
}

/// What goes into one round of requests.
#[derive(Debug, Default)]
struct Round {
    lines: Vec<LogText>,
    bytes: usize,
    /// Lines that came after these and found no room.
    dropped: u64,
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
        let listener = Listener {
            words,
            dropped,
            client,
            held,
            signal,
            leased,
            patience: PATIENCE,
            arrived: 0,
            missing: 0,
            unsure: None,
        };
        (teller, listener)
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
            let mut round = self.gather().await;
            if let Some((percent, note)) = round.progress.take() {
                self.send_progress(percent, note).await;
            }
            let last = round.last;
            let of_use = !self.has_to_tell(&round) || self.send_lines(round).await;
            if last || !of_use {
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
        round.dropped = self.dropped.swap(0, Ordering::Relaxed);
        round
    }

    /// What is missing is told with the next line, or at the end.
    fn has_to_tell(&self, round: &Round) -> bool {
        round.given() > 0 || round.last && self.missing > 0
    }

    async fn send_progress(&self, percent: u8, note: Option<String>) {
        let Leased { task_id, lease_id, .. } = *self.leased;
        let heartbeat = Heartbeat { lease_id, worker: None, progress: Some(percent), note };
        let sent = self.held.now();
        let told = self.client.heartbeat(task_id, &heartbeat);
        match tokio::time::timeout(self.patience, told).await.unwrap_or_else(|_| Err(late())) {
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

    /// Sends lines, or drops and counts them. Answers whether more lines are of any use.
    async fn send_lines(&mut self, round: Round) -> bool {
        let Leased { task_id, lease_id, .. } = *self.leased;
        let given = round.given();
        let (gone, patience) = (self.signal.gone.clone(), self.patience);
        let delivery = tokio::time::timeout(patience, self.deliver(round));
        let Some(delivered) = gone.run_until_cancelled(delivery).await else { return false };
        let Err(error) = delivered.unwrap_or_else(|_| Err(late())) else {
            self.missing = 0;
            return true;
        };
        if self.missing == 0 {
            tracing::warn!(task = task_id.0, lease = lease_id.0, %error, "log lines were not taken");
        }
        self.missing += given;
        !is_about_the_lease(&error)
    }

    /// Can be dropped at any time: what it has sent without an answer is asked for by the next one.
    async fn deliver(&mut self, round: Round) -> Result<(), Error> {
        self.find_place().await?;
        let given = round.given();
        let lines = with_marks(self.missing, round);
        let end = self.arrived + lines.len() as u64;
        let append = LogAppend { lease_id: self.leased.lease_id, lines, offset: Some(self.arrived) };
        self.unsure = Some(self.missing + given);
        self.arrived = self.insist(&append).await?.next;
        self.unsure = None;
        if self.arrived != end {
            return Err(Error::invalid("an earlier batch has taken the place of these lines"));
        }
        Ok(())
    }

    /// Asks how many lines have arrived, if that is not known. Otherwise the next batch could be taken for a
    /// repeat of one that was given up.
    async fn find_place(&mut self) -> Result<(), Error> {
        let Some(not_missing) = self.unsure else { return Ok(()) };
        let nothing = LogAppend { lease_id: self.leased.lease_id, lines: Vec::new(), offset: None };
        let next = self.insist(&nothing).await?.next;
        if next > self.arrived {
            self.missing -= not_missing;
        }
        self.arrived = next;
        self.unsure = None;
        Ok(())
    }

    /// Asks again while that may help. When lines are missing already and somebody waits for room, there is no
    /// second try: the job goes on at the price of more lines.
    async fn insist(&self, append: &LogAppend) -> Result<LogAppended, Error> {
        let mut backoff = Backoff::endless();
        loop {
            let told = self.client.append_logs_once(self.leased.task_id, append, self.patience / 2);
            let error = match told.await {
                Ok(appended) => return Ok(appended),
                Err(error) => error,
            };
            let in_the_way = self.missing > 0 && self.words.capacity() == 0;
            match backoff.next(error.clone())? {
                _ if in_the_way => return Err(error),
                wait => tokio::time::sleep(wait).await,
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

    /// Lines of the job that this round stands for.
    fn given(&self) -> u64 {
        self.lines.len() as u64 + self.dropped
    }

    fn is_full(&self) -> bool {
        self.last || self.lines.len() >= BATCH_LINES_MAX || self.bytes >= BATCH_BYTES_MAX
    }
}

/// The lines of a round between what has to be said about those before and after them.
fn with_marks(missing: u64, round: Round) -> Vec<LogText> {
    let mark = |text| LogText { text, stream: LogStream::System };
    let before = (missing > 0)
        .then(|| mark(format!("{missing} lines are missing here: the coordinator did not take them")));
    let dropped = round.dropped;
    let after = (dropped > 0).then(|| {
        mark(format!("{dropped} lines were dropped here: they came faster than they could be sent"))
    });
    before.into_iter().chain(round.lines).chain(after).collect()
}

/// Under a lease that is over, no line will ever be taken.
fn is_about_the_lease(error: &Error) -> bool {
    matches!(error.code(), "stale_lease" | "not_found")
}

fn late() -> Error {
    Error::invalid("the coordinator took too long")
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
    use std::sync::Mutex;

    use orchestrix_core::{Json, LeaseId, Name, TaskId};
    use serde_json::{Value, json};

    use super::*;
    use crate::clock::manual::ManualClock;
    use crate::fake::{Answer, Asked, coordinator, in_time};

    /// The log of a task, as a coordinator keeps it.
    #[derive(Default)]
    struct Log(Mutex<Vec<String>>);

    impl Log {
        fn append(&self, body: &Value) -> Answer {
            let mut stored = self.0.lock().unwrap();
            if body["offset"].as_u64().is_none_or(|offset| offset == stored.len() as u64) {
                let texts =
                    body["lines"].as_array().unwrap().iter().map(|line| line["text"].as_str().unwrap());
                stored.extend(texts.map(str::to_owned));
            }
            Answer::ok(json!({"next": stored.len(), "dropped": 0}))
        }

        fn lines(&self) -> Vec<String> {
            self.0.lock().unwrap().clone()
        }
    }

    /// The mouth of a job whose coordinator answers like this, and its listener.
    async fn talk(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> (Teller, Listener) {
        let leased = Leased {
            task_id: TaskId(1),
            lease_id: LeaseId(2),
            queue: Name::new("q").unwrap(),
            attempt: 1,
            payload: Json::null(),
            lease_ms: 60_000,
        };
        let held = Arc::new(Held::new(Arc::new(ManualClock::default())));
        let signal = held.add(leased.lease_id, Duration::from_secs(60));
        let (teller, listener) = Teller::new(coordinator(answer).await, held, signal, Arc::new(leased));
        (teller, Listener { patience: Duration::from_secs(1), ..listener })
    }

    #[tokio::test]
    async fn lines_that_found_no_room_are_dropped_and_the_next_ones_say_how_many() {
        let log = Arc::new(Log::default());
        let (asked, mut refused) = mpsc::unbounded_channel();
        let (teller, listener) = talk({
            let log = Arc::clone(&log);
            move |request| match asked.send(()) {
                // Room comes back when the test has seen the refusal.
                Ok(()) => Answer::problem(507, "storage_full"),
                Err(_) => log.append(&request.body),
            }
        })
        .await;
        let listening = tokio::spawn(listener.run());
        teller.line(LogStream::Stdout, "one\ntwo");
        in_time(refused.recv()).await.unwrap();
        drop(refused);
        teller.line(LogStream::Stdout, "three");
        teller.last().await;
        in_time(listening).await.unwrap();
        assert_eq!(log.lines(), ["2 lines are missing here: the coordinator did not take them", "three"]);
    }

    #[tokio::test]
    async fn what_is_missing_at_the_end_is_told_without_another_line() {
        let log = Arc::new(Log::default());
        let (asked, mut refused) = mpsc::unbounded_channel();
        let (teller, listener) = talk({
            let log = Arc::clone(&log);
            move |request| match asked.send(()) {
                Ok(()) => Answer::problem(507, "storage_full"),
                Err(_) => log.append(&request.body),
            }
        })
        .await;
        let listening = tokio::spawn(listener.run());
        teller.line(LogStream::Stdout, "one");
        in_time(refused.recv()).await.unwrap();
        drop(refused);
        teller.last().await;
        in_time(listening).await.unwrap();
        assert_eq!(log.lines(), ["1 lines are missing here: the coordinator did not take them"]);
    }

    #[tokio::test]
    async fn lines_that_arrived_although_nobody_said_so_are_neither_missing_nor_sent_twice() {
        let log = Arc::new(Log::default());
        let (asked, mut stored) = mpsc::unbounded_channel();
        let (teller, listener) = talk({
            let log = Arc::clone(&log);
            move |request| {
                let answer = log.append(&request.body);
                let first = request.body["offset"] == 0;
                if first {
                    asked.send(()).map_or(answer, |()| Answer::problem(500, "internal"))
                } else {
                    answer
                }
            }
        })
        .await;
        let listening = tokio::spawn(listener.run());
        teller.line(LogStream::Stdout, "one\ntwo");
        in_time(stored.recv()).await.unwrap();
        teller.line(LogStream::Stdout, "three");
        teller.last().await;
        in_time(listening).await.unwrap();
        assert_eq!(log.lines(), ["one", "two", "three"]);
    }

    #[tokio::test]
    async fn who_waits_for_room_is_not_held_up_by_lines_that_are_not_taken() {
        let (teller, listener) = talk(|_| Answer::problem(500, "internal")).await;
        let listener = Listener { patience: Duration::from_millis(50), ..listener };
        let listening = tokio::spawn(listener.run());
        in_time(async {
            for _ in 0..2 * WAITING_LINES_MAX {
                teller.line_when_there_is_room(LogStream::Stdout, "again").await;
            }
            teller.last().await;
            listening.await.unwrap();
        })
        .await;
    }

    #[tokio::test]
    async fn nothing_more_is_sent_under_a_lease_that_is_over() {
        let (teller, listener) = talk(|_| Answer::problem(409, "stale_lease")).await;
        teller.line(LogStream::Stdout, "late");
        in_time(listener.run()).await;
    }

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
