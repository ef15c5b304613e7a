//! A worker on a bus, and what a node sees of it. The server is real.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod node;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use orchestrix_client::{BusWorker, Job, JobError, Stop};
use orchestrix_core::wire::bus::{CancelCause, Status};
use orchestrix_core::{Json, LeaseId, TaskId};
use orchestrix_testbed::eventually;
use tokio::sync::{Barrier, Semaphore, mpsc};

use node::{Hearing, Node, Running, obey};

fn worker(url: String) -> BusWorker {
    BusWorker::new(url, ["mail"]).name("w")
}

/// Runs a worker that does what payloads say.
fn obedient(worker: BusWorker) -> Running {
    Running::of(worker, |job| obey(job, Arc::new(|_| {})))
}

fn statuses(node: &Node, task: u64, lease: u64) -> Vec<Status> {
    let mut said: Vec<_> = node.said(task, lease).into_iter().map(|said| said.status).collect();
    said.dedup();
    said
}

#[test]
fn a_task_is_taken_and_completed() {
    let mut node = Node::start();
    let _running = obedient(worker(node.url_of_a_worker()));
    node.offer(5, 9, "\"complete\"");
    let completed = node.hears(5, 9, Status::Completed, 1);
    assert_eq!(completed.result.unwrap().as_str(), "\"done\"");
    assert_eq!((completed.worker_id.as_str(), completed.retry), ("w", None));
    assert_eq!(statuses(&node, 5, 9), [Status::Running, Status::Completed]);
    node.all_are_settled("mail");
}

#[test]
fn lines_and_progress_come_before_the_outcome() {
    let mut node = Node::start();
    let _running = obedient(worker(node.url_of_a_worker()));
    node.offer(5, 9, "\"talk\"");
    assert_eq!(node.hears(5, 9, Status::Completed, 1).result, None);
    let logs = node.logs(5, 9);
    let texts: Vec<_> = logs.iter().flat_map(|logs| &logs.lines).map(|line| line.text.as_str()).collect();
    assert_eq!((texts, logs[0].offset), (vec!["line 1", "line 2", "line 3"], Some(0)));
    let progress: Vec<_> = node.said(5, 9).into_iter().filter_map(|said| said.progress).collect();
    assert_eq!(progress, [50]);
}

#[test]
fn a_failure_says_whether_another_attempt_may_help() {
    let mut node = Node::start();
    let _running = obedient(worker(node.url()).concurrency(2));
    node.offer(5, 9, "\"fail\"");
    node.offer(6, 10, "\"give up\"");
    let failed = |task, lease| {
        let failed = node.hears(task, lease, Status::Failed, 1);
        (failed.error.unwrap(), failed.retry)
    };
    assert_eq!(failed(5, 9), ("no".to_owned(), Some(true)));
    assert_eq!(failed(6, 10), ("never".to_owned(), Some(false)));
}

#[test]
fn a_cancelled_task_is_told_to_stop() {
    let mut node = Node::start();
    let _running = obedient(worker(node.url_of_a_worker()));
    node.offer(5, 9, "\"wait\"");
    node.hears(5, 9, Status::Running, 1);
    node.cancel("somebody", 5, 9, CancelCause::Stale);
    node.cancel("w", 5, 9, CancelCause::Requested);
    assert_eq!(node.hears(5, 9, Status::Failed, 1).error.unwrap(), "Some(CancelRequested)");
}

#[test]
fn of_a_stale_lease_nothing_more_is_said() {
    let mut node = Node::start();
    node.lease_ms = 1_200;
    let _running = obedient(worker(node.url()));
    node.offer(5, 9, "\"wait\"");
    node.hears(5, 9, Status::Running, 1);
    node.cancel("w", 5, 9, CancelCause::Stale);
    node.offer(6, 10, "\"wait\"");
    // Its place is free, and heartbeats do not name it.
    node.hears(6, 10, Status::Running, 1);
    eventually("a heartbeat with the other alone", || {
        node.heartbeats().into_iter().find(|beat| beat.jobs == [LeaseId(10)])
    });
    assert_eq!(statuses(&node, 5, 9), [Status::Running]);
}

#[test]
fn a_withdrawn_offer_is_not_run() {
    let mut node = Node::start();
    node.offer(5, 9, "\"complete\"");
    // Its channels go before a worker has said anything.
    node.close(5, 9);
    let (begun, count) = counted();
    let _running = Running::of(worker(node.url()), move |job| obey(job, Arc::clone(&begun)));
    node.offer(6, 10, "\"complete\"");
    node.hears(6, 10, Status::Completed, 1);
    node.all_are_settled("mail");
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

#[test]
fn last_words_are_repeated_until_the_channel_is_closed() {
    let mut node = Node::start();
    node.lease_ms = 600;
    let mut running = obedient(worker(node.url_of_a_worker()));
    node.offer(5, 9, "\"complete\"");
    node.hears(5, 9, Status::Completed, 2);
    // Its place is free meanwhile, and heartbeats name it.
    node.offer(6, 10, "\"complete\"");
    node.hears(6, 10, Status::Completed, 2);
    eventually("a heartbeat with both", || {
        node.heartbeats().into_iter().find(|beat| beat.jobs == [LeaseId(9), LeaseId(10)])
    });
    node.close(5, 9);
    eventually("a heartbeat with one", || {
        node.heartbeats().into_iter().find(|beat| beat.jobs == [LeaseId(10)])
    });
    // A worker that stops waits for that, too.
    running.stop.cancel();
    node.close(6, 10);
    running.has_ended().unwrap();
}

#[test]
fn a_task_outlives_a_server_that_is_killed() {
    let mut node = Node::start();
    let gate = Arc::new(Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let _running = Running::of(worker(node.url()).concurrency(2), move |job: Job| {
        let gate = Arc::clone(&opened);
        async move {
            job.log("before");
            drop(gate.acquire().await);
            job.log("after");
            Ok(Json::null())
        }
    });
    node.offer(5, 9, "\"complete\"");
    node.hears(5, 9, Status::Running, 1);
    eventually("the first line", || (!node.logs(5, 9).is_empty()).then_some(()));
    node.server.kill();
    gate.add_permits(10);
    node.launch();
    node.hears(5, 9, Status::Completed, 1);
    let logs = node.logs(5, 9);
    let last = logs.iter().find(|logs| logs.lines[0].text == "after").unwrap();
    assert_eq!(last.offset, Some(1));
    // It takes offers and hears cancellations again.
    node.offer(6, 10, "\"complete\"");
    node.hears(6, 10, Status::Completed, 1);
    node.all_are_settled("mail");
}

#[test]
fn a_queue_that_the_server_has_forgotten_is_made_again() {
    let mut node = Node::start();
    let _running = obedient(worker(node.url()));
    node.offer(5, 9, "\"complete\"");
    node.hears(5, 9, Status::Completed, 1);
    node.close(5, 9);
    node.raw(&["DEL", "orchestrix.job.dispatch.mail"]);
    node.offer(6, 10, "\"complete\"");
    node.hears(6, 10, Status::Completed, 1);
}

#[test]
fn a_lease_that_is_not_renewed_is_given_up() {
    let mut node = Node::start();
    node.lease_ms = 500;
    let (sender, mut stops) = mpsc::unbounded_channel();
    let _running = Running::of(worker(node.url()), move |job: Job| {
        let sender = sender.clone();
        async move {
            job.cancellation().cancelled().await;
            sender.send(job.stop()).unwrap_or_default();
            Ok(Json::null())
        }
    });
    node.offer(5, 9, "\"wait\"");
    node.hears(5, 9, Status::Running, 1);
    // Heartbeats renew it for longer than it lasts.
    let named = |node: &Node| node.heartbeats().iter().filter(|beat| beat.jobs == [LeaseId(9)]).count();
    eventually("heartbeats for two leases", || (named(&node) >= 12).then_some(()));
    assert!(stops.try_recv().is_err());
    node.server.kill();
    let why = eventually("the handler is told", || stops.try_recv().ok());
    assert_eq!(why, Some(Stop::Deadline));
}

#[test]
fn a_worker_that_stops_gives_its_task_back() {
    let mut node = Node::start();
    let mut running = obedient(worker(node.url_of_a_worker()).grace(Duration::ZERO));
    node.offer(5, 9, "\"wait\"");
    node.hears(5, 9, Status::Running, 1);
    running.stop.cancel();
    node.hears(5, 9, Status::Released, 1);
    node.close(5, 9);
    running.has_ended().unwrap();
    let beats: Vec<_> = node.heartbeats().into_iter().map(|beat| beat.capacity).collect();
    assert_eq!((beats.first(), beats.last()), (Some(&1), Some(&0)), "{beats:?}");
}

#[test]
fn an_offer_that_cannot_be_read_is_removed() {
    let mut node = Node::start();
    let channel = "orchestrix.job.dispatch.mail";
    node.raw(&["XADD", channel, "1-0", "data", "{"]);
    node.raw(&["XADD", channel, "2-0", "text", "{}"]);
    node.raw(&["XADD", channel, "3-0", "data", r#"{"JobId":"1","HistoryId":"1"}"#]);
    let _running = obedient(worker(node.url_of_a_worker()));
    node.all_are_settled("mail");
    node.offer(5, 9, "\"complete\"");
    node.hears(5, 9, Status::Completed, 1);
}

#[test]
fn two_workers_share_a_hundred_tasks() {
    let mut node = Node::start();
    let runs: Arc<Mutex<BTreeMap<TaskId, usize>>> = Arc::default();
    let both = Arc::new(Barrier::new(2));
    let url = node.url_of_a_worker();
    let start = |name: &str| {
        let (runs, both, first) = (Arc::clone(&runs), Arc::clone(&both), AtomicUsize::new(0));
        let worker = BusWorker::new(url.clone(), ["mail"]).name(name).concurrency(5);
        Running::of(worker, move |job: Job| {
            *runs.lock().unwrap().entry(job.task_id()).or_default() += 1;
            let first = first.fetch_add(1, Ordering::SeqCst) == 0;
            let both = Arc::clone(&both);
            async move {
                // Each of them gets one.
                if first {
                    both.wait().await;
                }
                Ok::<_, JobError>(Json::null())
            }
        })
    };
    let _running = [start("w-1"), start("w-2")];
    (1..=100).for_each(|n| node.offer(n, n, "null"));
    for n in 1..=100 {
        node.hears(n, n, Status::Completed, 1);
        node.close(n, n);
    }
    node.all_are_settled("mail");
    let runs = runs.lock().unwrap();
    assert_eq!((runs.len(), runs.values().all(|runs| *runs == 1)), (100, true));
}

#[test]
fn several_queues_share_the_places_of_a_worker() {
    let mut node = Node::start();
    let (begun, count) = counted();
    let queues = ["mail", "sms", "fax"];
    let worker = BusWorker::new(node.url_of_a_worker(), queues);
    let _running = Running::of(worker, move |job| obey(job, Arc::clone(&begun)));
    for n in 1..=9 {
        node.offer_in(queues[n % 3], n as u64, n as u64, "\"complete\"");
    }
    (1..=9).for_each(|n| drop(node.hears(n, n, Status::Completed, 1)));
    queues.iter().for_each(|queue| node.all_are_settled(queue));
    assert_eq!(count.load(Ordering::SeqCst), 9);
}

#[test]
fn a_worker_that_is_not_let_in_says_so() {
    let node = Node::start();
    let url = node.url_of_a_worker().replace("secret", "wrong");
    let refused = obedient(worker(url)).has_ended().unwrap_err().to_string();
    assert!(refused.contains("the bus refuses this worker") && !refused.contains("wrong"), "{refused}");
}

fn counted() -> (Hearing, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&count);
    let one_more = move |_: &Job| {
        counting.fetch_add(1, Ordering::SeqCst);
    };
    (Arc::new(one_more), count)
}
