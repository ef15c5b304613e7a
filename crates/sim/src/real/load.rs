//! Those who use the coordinator while it is in trouble: they submit, lease, write output and complete, and put
//! every answer into the ledger.

use std::sync::Arc;
use std::time::{Duration, Instant};

use orchestrix_client::{Client, Error, new_task};
use orchestrix_core::wire::{Complete, LeaseQueues, Leased, LogAppend, LogStream, LogText, Submit};
use orchestrix_core::{Json, Key, LeaseId, Name};

use super::Checked;
use super::ledger::{Ledger, Word};
use super::process::PATIENCE;

/// The queue of all campaigns.
pub(crate) const QUEUE: &str = "real";
/// Short, so that leases of killed rounds run out and are granted again within a campaign.
const LEASE_MS: u64 = 700;
/// Lines of output that a task writes.
const LINES: u64 = 3;

/// Whether a caller may go on, or nobody answers any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    Yes,
    No,
}

/// Somebody with a name, from which the keys of its tasks are made.
#[derive(Clone)]
pub(crate) struct Actor {
    pub(crate) client: Client,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) name: String,
    /// Bytes of the payload of each task.
    pub(crate) payload: usize,
}

impl Actor {
    /// Submits until nobody answers.
    pub(crate) async fn submit_until_gone(self) -> Checked {
        for count in 0.. {
            if self.submit(count).await? == Answered::No {
                break;
            }
        }
        Ok(())
    }

    /// Leases and completes until nobody answers.
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
        let (task, began) = (task(&key, self.payload), Instant::now());
        loop {
            match self.client.submit(&task).await {
                Ok(submitted) => {
                    self.ledger.say(&Word::Submitted { key, task: submitted.id });
                    return Ok(Answered::Yes);
                }
                // It is short of prepared segments for a moment, and says so before it has done anything.
                Err(error) if error.code() == "storage_full" && began.elapsed() < PATIENCE => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => {
                    self.ledger.say(&Word::SubmitUnknown { key });
                    return unanswered(&error);
                }
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
            self.ledger.say(&Word::Granted { lease: leased.lease_id });
            if self.execute(&leased).await? == Answered::No {
                return Ok(Answered::No);
            }
        }
        Ok(Answered::Yes)
    }

    async fn execute(&self, leased: &Leased) -> Checked<Answered> {
        let (task, lease) = (leased.task_id, leased.lease_id);
        match self.client.append_logs(task, &output(lease)).await {
            Ok(_) => self.ledger.say(&Word::Logged { task, lines: LINES }),
            Err(error) if error.code() == "stale_lease" => {}
            Err(error) => return unanswered(&error),
        }
        match self.client.complete(task, &completion(lease)).await {
            Ok(_) => self.ledger.say(&Word::Completed { task, lease }),
            Err(error) if error.code() == "stale_lease" => self.ledger.say(&Word::Stale { task, lease }),
            Err(error) => {
                self.ledger.say(&Word::CompleteUnknown { task, lease });
                return unanswered(&error);
            }
        }
        Ok(Answered::Yes)
    }
}

/// An answer that did not come is what a campaign is about. A refusal is not.
fn unanswered(error: &Error) -> Checked<Answered> {
    if error.is_outcome_unknown() || ["unreachable", "stopping"].contains(&error.code()) {
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

fn output(lease: LeaseId) -> LogAppend {
    let line = |n: u64| LogText { text: format!("line {n} under {lease}"), stream: LogStream::Stdout };
    LogAppend { lease_id: lease, lines: (0..LINES).map(line).collect(), offset: Some(0) }
}
