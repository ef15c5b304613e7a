//! Clients of the coordinator during faults: they submit, lease, write output and complete, and put
//! every answer into the acknowledgement log.

use std::ops::Range;
use std::sync::Arc;

use orchestrix_client::{Client, Error, new_task};
use orchestrix_core::wire::{Complete, LeaseQueues, Leased, LogAppend, LogStream, LogText, Submit};
use orchestrix_core::{Json, Key, LeaseId, Name, TaskId};

use super::Checked;
use super::ack_log::{AckEntry, AckLog};

/// The queue of all campaigns.
pub(crate) const QUEUE: &str = "real";
/// Short, so that leases of killed rounds run out and are granted again within a campaign.
const LEASE_MS: u64 = 700;
/// Lines of output that a task writes.
const LINES: u64 = 3;

/// Whether a caller may continue, or the coordinator does not answer any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    Yes,
    No,
}

/// A client with a name, which is part of the keys of its tasks.
#[derive(Clone)]
pub(crate) struct Actor {
    pub(crate) client: Client,
    pub(crate) ack_log: Arc<AckLog>,
    pub(crate) name: String,
    /// Bytes of the payload of each task.
    pub(crate) payload: usize,
}

impl Actor {
    /// Submits until there is no answer.
    pub(crate) async fn submit_until_gone(self) -> Checked {
        for count in 0.. {
            if self.submit(count).await? == Answered::No {
                break;
            }
        }
        Ok(())
    }

    /// Leases and completes until there is no answer.
    pub(crate) async fn work_until_gone(self) -> Checked {
        for count in 0.. {
            if self.work(count, 100).await? == Answered::No {
                break;
            }
        }
        Ok(())
    }

    /// Submits one task.
    pub(crate) async fn submit(&self, count: u64) -> Checked<Answered> {
        let key = format!("{}-{count}", self.name);
        match self.client.submit(&task(&key, self.payload)).await {
            Ok(submitted) => {
                self.ack_log.note(&AckEntry::Submitted { key, task: submitted.id });
                Ok(Answered::Yes)
            }
            Err(error) => {
                self.ack_log.note(&AckEntry::SubmitUnknown { key });
                unanswered(&error)
            }
        }
    }

    /// Leases some tasks, writes output for each, and completes them.
    pub(crate) async fn work(&self, count: u64, wait_ms: u64) -> Checked<Answered> {
        let request = LeaseQueues {
            request_id: Some(name(&format!("{}-{count}", self.name))),
            max: 3,
            wait_ms,
            ..lease_call(&self.name, LEASE_MS)
        };
        let leases = match self.client.lease(&request).await {
            Ok(leases) => leases.leases,
            Err(error) => return unanswered(&error),
        };
        for leased in leases {
            self.ack_log.note(&AckEntry::Granted { lease: leased.lease_id });
            if self.execute(&leased).await? == Answered::No {
                return Ok(Answered::No);
            }
        }
        Ok(Answered::Yes)
    }

    async fn execute(&self, leased: &Leased) -> Checked<Answered> {
        let (task, lease) = (leased.task_id, leased.lease_id);
        check_payload(task, &leased.payload, self.payload)?;
        match self.client.append_logs(task, &output(lease, 0..LINES)).await {
            Ok(_) => self.ack_log.note(&AckEntry::Logged { task, lease, lines: LINES }),
            Err(error) if error.code() == "stale_lease" => {}
            // The engine may be the one that was killed: then the output is unknown.
            Err(error) if error.code() == "overloaded" => return Ok(Answered::No),
            Err(error) => return unanswered(&error),
        }
        match self.client.complete(task, &completion(lease)).await {
            Ok(_) => self.ack_log.note(&AckEntry::Completed { task, lease }),
            Err(error) if error.code() == "stale_lease" => {
                self.ack_log.note(&AckEntry::Stale { task, lease })
            }
            Err(error) => {
                self.ack_log.note(&AckEntry::CompleteUnknown { task, lease });
                return unanswered(&error);
            }
        }
        Ok(Answered::Yes)
    }
}

/// An answer that did not come is what a campaign is about. A refusal is not.
fn unanswered(error: &Error) -> Checked<Answered> {
    if error.is_outcome_unknown() || ["unreachable", "stopping", "no_leader"].contains(&error.code()) {
        return Ok(Answered::No);
    }
    Err(format!("an ordinary call was refused: {error}"))
}

/// The task of a key. The same key asks for the same task.
pub(crate) fn task(key: &str, payload: usize) -> Submit {
    let filler = "x".repeat(payload);
    let mut task = new_task(QUEUE, &[key, &filler]).expect("two strings are a payload");
    task.key = Some(Key::new(key).expect("keys are short and plain"));
    task.max_attempts = 100;
    task
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).expect("names are short and plain")
}

/// A call for one task.
pub(crate) fn lease_call(worker: &str, lease_ms: u64) -> LeaseQueues {
    LeaseQueues {
        queues: vec![name(QUEUE)],
        worker: name(worker),
        max: 1,
        lease_ms,
        wait_ms: 0,
        request_id: None,
        capacity: None,
    }
}

/// A completion whose result says under which lease it was.
pub(crate) fn completion(lease: LeaseId) -> Complete {
    let result = Json::parse(&lease.to_string()).expect("a number is JSON");
    Complete { lease_id: lease, worker: None, result: Some(result) }
}

/// Some of the lines that a task writes under a lease.
pub(crate) fn output(lease: LeaseId, lines: Range<u64>) -> LogAppend {
    let offset = Some(lines.start);
    let line = |n: u64| LogText { text: output_line(lease, n), stream: LogStream::Stdout };
    LogAppend { lease_id: lease, lines: lines.map(line).collect(), offset, skipped: 0 }
}

/// The n-th line that a task writes under a lease.
pub(crate) fn output_line(lease: LeaseId, n: u64) -> String {
    format!("line {n} under {lease}")
}

/// A payload begins with the key of its task, so it says itself what all of it must be.
pub(crate) fn check_payload(id: TaskId, found: &Json, payload: usize) -> Checked {
    let key = found.as_str().split('"').nth(1).unwrap_or_default();
    if Key::new(key).is_ok() && task(key, payload).payload == *found {
        return Ok(());
    }
    let start: String = found.as_str().chars().take(60).collect();
    Err(format!("task {id} has another payload than was submitted: {start}…"))
}
