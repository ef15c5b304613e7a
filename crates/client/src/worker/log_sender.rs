//! Sends the output and the progress of a job: lines in batches, progress when it changed.
//!
//! **Invariant:** lines arrive once and in order, or the log says how many are missing, before the outcome of the job is
//! told. Each batch names how many lines of the lease went before it, so a repeat after a broken connection is
//! recognised. A batch that is given up keeps its place, because it may still arrive: no other line is ever put there. The
//! next batch says how many lines before it may be missing, and the coordinator knows how many of them are.
//!
//! **Invariant:** no job waits for ever for the log. A job is worth more than its lines: those that are not taken
//! for some seconds are dropped.

use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::wire::{Heartbeat, Leased, LogAppend, LogAppended, LogText};
use tokio::time::Instant;

use super::held::{Held, Signal, Stop, trusted};
use super::job_log::{LogItems, Round, mark};
use crate::client::Client;
use crate::error::Error;
use crate::retry::Backoff;

/// How long the coordinator may take to accept a batch, all tries together, and twice what one of them may take.
/// Long enough for its restart, short enough for a command that waits for room.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same while no node answers, or there is no leader. Longer than a change of leader takes.
const OUTAGE: Duration = Duration::from_secs(45);

/// Sends what a job writes to a coordinator.
#[derive(Debug)]
pub(crate) struct LogSender {
    log: LogItems,
    client: Client,
    held: Arc<Held>,
    signal: Arc<Signal>,
    leased: Arc<Leased>,
    patience: Duration,
    outage: Duration,
    /// Lines of the lease before the next batch, those that were given up included.
    place: u64,
    /// So many of them, the last ones, were given up, and the log does not say so yet.
    skipped: u64,
    /// Lines of the job that they stand for: more, where one says that others were dropped.
    missing: u64,
    /// The coordinator knows of lines that were given up. If not, batches have no place: it could take one for
    /// the repeat of another.
    has_places: bool,
    /// The last request that failed had no answer.
    silent: bool,
}

/// What became of a round of lines.
enum Sent {
    All,
    /// They are missing; others may be taken.
    NotTaken,
    /// The lease is over: no more lines are of any use.
    Gone,
}

impl LogSender {
    pub(crate) fn new(
        log: LogItems,
        client: Client,
        held: Arc<Held>,
        signal: Arc<Signal>,
        leased: Arc<Leased>,
    ) -> Self {
        Self {
            log,
            client,
            held,
            signal,
            leased,
            patience: PATIENCE,
            outage: OUTAGE,
            place: 0,
            skipped: 0,
            missing: 0,
            has_places: true,
            silent: false,
        }
    }

    /// Sends until the last message, or until no one receives it.
    pub(crate) async fn run(mut self) {
        loop {
            let round = self.log.gather().await;
            if round.progress {
                self.send_progress().await;
            }
            let (last, ended) = (round.last, self.log.has_ended());
            let sent = if round.given == 0 { Sent::All } else { self.send_lines(round).await };
            match sent {
                Sent::Gone => return self.note_missing(),
                // A job that has ended does not wait for each of its batches that is not accepted.
                Sent::NotTaken if ended => return self.end().await,
                Sent::All | Sent::NotTaken if last => return self.end().await,
                Sent::All | Sent::NotTaken => {}
            }
        }
    }

    async fn send_progress(&self) {
        let Some((percent, note)) = self.log.progress() else { return };
        let Leased { task_id, lease_id, .. } = *self.leased;
        let heartbeat = Heartbeat { lease_id, worker: None, progress: Some(percent), note };
        let sent = self.held.now();
        let told = self.client.heartbeat(task_id, &heartbeat);
        match tokio::time::timeout(self.patience, told).await.unwrap_or_else(|_| Err(late())) {
            Ok(extended) => {
                self.held.extend(lease_id, trusted(sent, 0, extended.lease_ms, extended.timeout_ms));
                if extended.cancel_requested {
                    self.held.tell(lease_id, Stop::CancelRequested);
                }
            }
            Err(error) if error.code() == "stale_lease" => self.held.tell(lease_id, Stop::LeaseLost),
            Err(error) => tracing::debug!(task = task_id.0, %error, "progress was not sent"),
        }
    }

    /// Sends lines, or drops and counts them.
    async fn send_lines(&mut self, round: Round) -> Sent {
        let Leased { task_id, lease_id, .. } = *self.leased;
        let given = round.given;
        let lines = self.with_mark(round.lines);
        let places = lines.len() as u64;
        let (gone, patience) = (self.signal.gone.clone(), self.patience.max(self.outage));
        let delivery = tokio::time::timeout(patience, self.deliver(lines));
        let Some(delivered) = gone.run_until_cancelled(delivery).await else {
            self.give_up(places, given);
            return Sent::Gone;
        };
        let Err(error) = delivered.unwrap_or_else(|_| Err(late())) else { return Sent::All };
        if self.missing == 0 {
            tracing::warn!(task = task_id.0, lease = lease_id.0, %error, "log lines were not taken");
        }
        self.give_up(places, given);
        if is_about_the_lease(&error) { Sent::Gone } else { Sent::NotTaken }
    }

    /// Leaves the places of lines to them, and says with the next ones how many there are.
    fn give_up(&mut self, places: u64, given: u64) {
        self.place += places;
        self.skipped += places;
        self.missing += given;
    }

    /// The handler has ended. The log says what is missing. The outcome can wait for that as long as no node answers,
    /// because it would not be heard either, but no longer than the lease.
    async fn end(mut self) {
        while let Some(word) = self.log.rest() {
            self.give_up(word.given(), word.given());
        }
        let lines = self.with_mark(Vec::new());
        let began = Instant::now();
        let until = began + Duration::from_millis(self.leased.lease_ms).max(self.patience);
        let mut backoff = Backoff::endless();
        while self.missing > 0 {
            let (gone, patience) = (self.signal.gone.clone(), self.patience);
            let delivery = tokio::time::timeout(patience, self.deliver(lines.clone()));
            match gone.run_until_cancelled(delivery).await {
                Some(Ok(Ok(()))) => return,
                Some(Ok(Err(_)) | Err(_)) if self.silent && Instant::now() < until => {}
                // It is there, and has too much to do: it would not take the outcome at once either.
                Some(Ok(Err(error))) if error.is_retryable() && began.elapsed() < patience => {
                    let pause = tokio::time::sleep(backoff.pause(error.retry_after()));
                    let _ = gone.run_until_cancelled(pause).await;
                }
                Some(Ok(Err(_)) | Err(_)) | None => return self.note_missing(),
            }
        }
    }

    /// The log cannot say it, so at least the worker does.
    fn note_missing(&self) {
        if self.missing > 0 {
            let Leased { task_id, lease_id, .. } = *self.leased;
            tracing::warn!(
                task = task_id.0,
                lease = lease_id.0,
                lines = self.missing,
                "log lines are missing, and the log does not say so"
            );
        }
    }

    /// Lines after what has to be said about those before them, beside what the coordinator says. Lines that say that
    /// others were dropped may have been given up themselves.
    fn with_mark(&self, lines: Vec<LogText>) -> Vec<LogText> {
        let more = self.missing - self.skipped;
        let text =
            || format!("up to {more} more lines were dropped here: they came faster than they could be sent");
        (more > 0).then(|| mark(text())).into_iter().chain(lines).collect()
    }

    /// Can be dropped at any time: what it has sent without an answer keeps its place.
    async fn deliver(&mut self, lines: Vec<LogText>) -> Result<(), Error> {
        let Leased { task_id, lease_id, .. } = *self.leased;
        let places = lines.len() as u64;
        let (offset, skipped) = (self.has_places.then_some(self.place), self.skipped);
        let mut append = LogAppend { lease_id, lines, offset, skipped };
        if !self.has_places {
            append = self.without_place(append);
        }
        let mut told = self.insist(&append).await;
        if let Err(error) = &told
            && error.code() == "invalid"
            && append.skipped > 0
        {
            tracing::warn!(task = task_id.0, lease = lease_id.0, %error, "lines that follow missing ones were refused");
            self.has_places = false;
            append = self.without_place(append);
            told = self.insist(&append).await;
        }
        let next = told?.next;
        let end = self.place + places;
        if self.has_places && next > end {
            self.place = next + self.skipped;
            return Err(Error::invalid("other lines of this lease have taken the place of these"));
        }
        (self.place, self.skipped, self.missing) = (end, 0, 0);
        Ok(())
    }

    /// The same lines for a coordinator of an older version. They say themselves how many may be missing, and are sent
    /// once.
    fn without_place(&self, append: LogAppend) -> LogAppend {
        let skipped = self.skipped;
        let text =
            || format!("up to {skipped} lines are missing here: the coordinator did not take them in time");
        let told = (skipped > 0).then(|| mark(text()));
        LogAppend {
            lines: told.into_iter().chain(append.lines).collect(),
            offset: None,
            skipped: 0,
            ..append
        }
    }

    /// Asks again while that may help. When lines are missing already and the job waits, for space or for the end,
    /// there is no second try: the job goes on at the price of more lines.
    async fn insist(&mut self, append: &LogAppend) -> Result<LogAppended, Error> {
        // Since when a node answers: a coordinator that is back may have much to do at first.
        let (mut backoff, mut answers) = (Backoff::endless(), Instant::now());
        loop {
            let told = self.client.append_logs_once(self.leased.task_id, append, self.patience / 2);
            let error = match told.await {
                Ok(appended) => return Ok(appended),
                Err(error) => error,
            };
            self.silent = is_silence(&error);
            if self.silent {
                answers = Instant::now();
            }
            let awaited = self.log.has_ended() || self.log.is_full();
            match backoff.next(error.clone())? {
                wait if !self.silent && answers.elapsed() + wait >= self.patience => return Err(error),
                _ if self.missing > 0 && awaited && !(self.silent && self.log.has_ended()) => {
                    return Err(error);
                }
                wait => tokio::time::sleep(wait).await,
            }
        }
    }
}

/// Under a lease that is over, no line will ever be taken.
fn is_about_the_lease(error: &Error) -> bool {
    matches!(error.code(), "stale_lease" | "not_found")
}

/// No node answered, so no node would have accepted an outcome either.
fn is_silence(error: &Error) -> bool {
    matches!(error.code(), "unreachable" | "interrupted" | "timed_out" | "no_leader" | "stopping")
}

fn late() -> Error {
    Error::invalid("the coordinator took too long")
}

#[cfg(test)]
mod tests;
