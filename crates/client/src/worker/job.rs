//! One task, as a handler gets it.

use std::fmt;
use std::sync::Arc;

use orchestrix_core::wire::{Leased, LogStream};
use orchestrix_core::{Json, LeaseId, Name, TaskId};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::held::{Signal, Stop};
use super::job_log::JobLog;

/// A task that a worker executes. Clones are the same job.
#[derive(Clone, Debug)]
pub struct Job {
    leased: Arc<Leased>,
    signal: Arc<Signal>,
    log: JobLog,
}

impl Job {
    pub(crate) fn new(leased: Arc<Leased>, signal: Arc<Signal>, log: JobLog) -> Self {
        Self { leased, signal, log }
    }

    #[must_use]
    pub fn task_id(&self) -> TaskId {
        self.leased.task_id
    }

    /// The fencing token: a later attempt of any task has a larger one. Give it to every store that the handler
    /// writes to, and let that refuse a smaller one than it has seen.
    #[must_use]
    pub fn lease_id(&self) -> LeaseId {
        self.leased.lease_id
    }

    /// 1 for the first.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.leased.attempt
    }

    #[must_use]
    pub fn queue(&self) -> &Name {
        &self.leased.queue
    }

    /// The payload as it was submitted.
    #[must_use]
    pub fn payload(&self) -> &Json {
        &self.leased.payload
    }

    /// The payload as a type.
    ///
    /// # Errors
    /// One that lets the task fail without another attempt: the payload will not change.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, JobError> {
        serde_json::from_str(self.leased.payload.as_str()).map_err(|error| {
            JobError::permanent(format!("the payload is not what this worker expects: {error}"))
        })
    }

    /// Fires when the handler should come to an end: see [`Stop`] for the reasons.
    #[must_use]
    pub fn cancellation(&self) -> CancellationToken {
        self.signal.stop.clone()
    }

    /// Why the handler should come to an end; none while it may go on.
    #[must_use]
    pub fn stop(&self) -> Option<Stop> {
        self.signal.why()
    }

    /// Shows how far the work is, 0 to 100. Only the latest of a moment is sent.
    pub fn progress(&self, percent: u8, note: &str) {
        self.log.progress(percent.min(100), note);
    }

    /// Adds a line to the log of the task. Never waits: when lines come faster than they can be sent, some
    /// are dropped, and the log says how many.
    pub fn log(&self, line: &str) {
        self.log.line(LogStream::Stdout, line);
    }

    /// Adds a line of one of the two streams, and waits while there is no room for it. Not for ever: lines that
    /// the coordinator does not take for some seconds are dropped, and the log says how many.
    pub async fn log_from(&self, stream: LogStream, line: &str) {
        self.log.line_when_there_is_room(stream, line).await;
    }
}

/// Why a handler did not do its work. Every error turns into one with `?`.
pub struct JobError {
    pub(crate) text: String,
    pub(crate) verdict: Verdict,
}

/// What should become of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Another attempt may help.
    Retry,
    /// No attempt will help.
    Permanent,
    /// This worker did not try: another one should, and no attempt is counted.
    Release,
}

impl JobError {
    /// The attempt failed; another one may help.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), verdict: Verdict::Retry }
    }

    /// No attempt will help: the task becomes a dead letter.
    #[must_use]
    pub fn permanent(text: impl Into<String>) -> Self {
        Self { text: text.into(), verdict: Verdict::Permanent }
    }

    /// Gives the task back for another worker, without counting an attempt.
    #[must_use]
    pub fn release() -> Self {
        Self { text: "released".to_owned(), verdict: Verdict::Release }
    }
}

impl<E: std::error::Error> From<E> for JobError {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(deeper) = cause {
            text.push_str(": ");
            text.push_str(&deeper.to_string());
            cause = deeper.source();
        }
        Self::new(text)
    }
}

impl fmt::Debug for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.verdict, self.text)
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_its_causes_in_one_line() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot read the letter")]
        struct Outer(#[source] std::io::Error);
        let error = JobError::from(Outer(std::io::Error::other("the tape is torn")));
        assert_eq!(error.to_string(), "cannot read the letter: the tape is torn");
        assert_eq!(error.verdict, Verdict::Retry);
    }
}
