//! Sends the lines and the progress of a job over the bus.
//!
//! **Invariant:** each message says how many lines of the lease came before, those that were given up included. So
//! a repeat is recognised, and a gap is seen.

use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::wire::bus::{JobChannel, JobLogs, JobStatus, Line, MESSAGE_BYTES_MAX, Status, write};
use orchestrix_core::wire::{Leased, LogText};
use tokio::time::Instant;

use super::Shared;
use super::execute::status;
use super::link::Added;
use crate::retry::Backoff;
use crate::worker::held::{Signal, Stop};
use crate::worker::job_log::{LINE_BYTES_MAX, LogItems, json_bytes};

/// Lines of one message, as they are written. With one line more and the other fields it is no longer than a message may be.
const CHUNK_BYTES_MAX: usize = 192 << 10;
/// What a line takes besides its text, at most.
const LINE_MORE: usize = 40;
/// How long the bus may take to accept lines while the job runs, and after it.
const OUTAGE: Duration = Duration::from_secs(45);
const PATIENCE: Duration = Duration::from_secs(10);

const _: () = assert!(CHUNK_BYTES_MAX + 6 * LINE_BYTES_MAX + LINE_MORE + 1_024 <= MESSAGE_BYTES_MAX);

/// Sends what a job writes to a bus.
pub(super) struct LogSender {
    log: LogItems,
    shared: Arc<Shared>,
    signal: Arc<Signal>,
    leased: Arc<Leased>,
    /// Lines of the lease before the next message.
    place: u64,
}

/// What became of lines.
enum Sent {
    Done,
    /// They are missing; others may be taken.
    NotTaken,
    /// The lease is over.
    Gone,
}

impl LogSender {
    pub(super) fn new(log: LogItems, shared: Arc<Shared>, signal: Arc<Signal>, leased: Arc<Leased>) -> Self {
        Self { log, shared, signal, leased, place: 0 }
    }

    /// Sends until the last message, or until no one receives it.
    pub(super) async fn run(mut self) {
        loop {
            let round = self.log.gather().await;
            if round.progress {
                self.send_progress().await;
            }
            for lines in chunks(round.lines) {
                match self.send(lines).await {
                    Sent::Done => {}
                    Sent::NotTaken if !self.log.has_ended() => {}
                    Sent::NotTaken | Sent::Gone => return,
                }
            }
            if round.last {
                return;
            }
        }
    }

    async fn send_progress(&self) {
        let Some((percent, note)) = self.log.progress() else { return };
        let running = status(&self.shared, &self.leased, Status::Running);
        let progress = JobStatus { progress: Some(percent), note, ..running };
        let channel = self.shared.channels.job(JobChannel::Status(self.leased.task_id));
        match self.shared.link.add(&channel, &write(&progress)).await {
            Ok(Added::Done) => {}
            Ok(Added::Closed) => self.shared.held.tell(self.leased.lease_id, Stop::LeaseLost),
            Err(failure) => tracing::debug!(task = self.leased.task_id.0, %failure, "progress was not sent"),
        }
    }

    /// Sends lines, or gives them up: their places stay theirs.
    async fn send(&mut self, lines: Vec<Line>) -> Sent {
        let count = lines.len() as u64;
        let Leased { task_id, lease_id, .. } = *self.leased;
        let logs = JobLogs { job_id: task_id, history_id: lease_id, lines, offset: Some(self.place) };
        self.place += count;
        let (channel, data) = (self.shared.channels.job(JobChannel::Logs(task_id)), write(&logs));
        let began = Instant::now();
        let mut backoff = Backoff::endless();
        loop {
            let adding = self.shared.link.add(&channel, &data);
            let failure = match self.signal.gone.run_until_cancelled(adding).await {
                Some(Ok(Added::Done)) => return Sent::Done,
                Some(Ok(Added::Closed)) => {
                    self.shared.held.tell(lease_id, Stop::LeaseLost);
                    return Sent::Gone;
                }
                None => return Sent::Gone,
                Some(Err(failure)) => failure,
            };
            let patience = if self.log.has_ended() { PATIENCE } else { OUTAGE };
            if began.elapsed() >= patience {
                tracing::warn!(task = task_id.0, lease = lease_id.0, lines = count, %failure, "log lines were not taken");
                return Sent::NotTaken;
            }
            let pause = tokio::time::sleep(backoff.pause(None));
            self.signal.gone.run_until_cancelled(pause).await;
        }
    }
}

/// Lines in parts that fit into messages.
fn chunks(lines: Vec<LogText>) -> Vec<Vec<Line>> {
    let mut chunks: Vec<Vec<Line>> = Vec::new();
    let mut bytes = CHUNK_BYTES_MAX;
    for LogText { text, stream } in lines {
        if bytes >= CHUNK_BYTES_MAX {
            chunks.push(Vec::new());
            bytes = 0;
        }
        bytes += json_bytes(&text) + LINE_MORE;
        if let Some(chunk) = chunks.last_mut() {
            chunk.push(Line { text, stream: Some(stream) });
        }
    }
    chunks
}

#[cfg(test)]
mod tests {
    use orchestrix_core::wire::LogStream;
    use orchestrix_core::{LeaseId, TaskId};

    use super::*;

    #[test]
    fn the_longest_lines_fit_into_messages() {
        for text in ["\u{1}".repeat(LINE_BYTES_MAX), "x".repeat(LINE_BYTES_MAX), String::new()] {
            let line = LogText { text, stream: LogStream::Stderr };
            let parts = chunks(vec![line; 500]);
            assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), 500);
            for lines in parts {
                let (job_id, history_id) = (TaskId(1), LeaseId(1));
                let logs = JobLogs { job_id, history_id, lines, offset: Some(u64::MAX) };
                assert!(write(&logs).len() <= MESSAGE_BYTES_MAX);
            }
        }
    }
}
