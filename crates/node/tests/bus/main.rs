//! The bus in one process: one loop that decides, services of nodes on their threads, a bus in memory, and workers that know only
//! channels.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod cluster;
mod owners;
mod rig;

use std::time::Instant;

use orchestrix_core::wire::bus::{CancelCause, Dispatch, Status};
use orchestrix_core::wire::{Backoff, LeaseQueues, Submit};
use orchestrix_core::{Json, LeaseId, TaskState};
use orchestrix_engine::bus::{Channels, JobChannel, Topic};
use orchestrix_engine::memory::Fault;
use orchestrix_node::{Ask, Caller, Error, Options, OwnerAsk, Storage, open};

use crate::rig::{LIMIT, World, name};

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_knows_only_channels_completes_a_task() {
    let world = World::start();
    let task = world.submit("mail", r#"{"to":"all"}"#).await;
    let mut worker = world.worker("py-1", 2);
    worker.beat(&["mail"]);
    let job = worker.take("mail").await;
    assert_eq!((job.job_id, job.attempt, job.lease_ms), (task, 1, 60_000));
    assert_eq!(job.payload.as_str(), r#"{"to":"all"}"#);
    assert!(worker.says(&job, Status::Running));
    world.until_state(task, TaskState::Leased).await;
    worker.logs(&job, &["one", "two"]);
    worker.logs(&job, &["three"]);
    assert!(worker.says(&job, Status::Completed));
    world.until_state(task, TaskState::Completed).await;
    let view = world.node.task(task).await.unwrap();
    assert_eq!(view.result.unwrap().as_str(), r#"{"sum":7}"#);
    let logs = world.node.logs(task, 0, 10, None).await.unwrap();
    let texts: Vec<_> = logs.lines.iter().map(|line| line.text.as_str()).collect();
    assert_eq!(texts, ["one", "two", "three"]);
    world.until_closed().await;
    assert!(!worker.says(&job, Status::Completed), "a channel that is gone says that this is over");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_retried_and_releases_cost_nothing() {
    let world = World::start();
    let backoff = Backoff { base_ms: 1, max_ms: 1, ..Backoff::default() };
    let task = Submit { max_attempts: 2, backoff, ..Submit::new(name("mail"), Json::null()) };
    let task = world.node.submit(task).await.unwrap().0.id;
    let mut worker = world.worker("py-1", 1);
    worker.beat(&["mail"]);
    let job = worker.take("mail").await;
    assert!(worker.says(&job, Status::Running));
    assert!(worker.says(&job, Status::Released));
    worker.jobs.clear();
    let job = worker.take("mail").await;
    assert_eq!(job.attempt, 1, "a release is no attempt");
    assert!(worker.says(&job, Status::Failed));
    worker.jobs.clear();
    let job = worker.take("mail").await;
    assert_eq!(job.attempt, 2);
    assert!(worker.says(&job, Status::Failed));
    world.until_state(task, TaskState::Failed).await;
    world.until_closed().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_is_offered_than_workers_have_room_for() {
    let world = World::start();
    for _ in 0..5 {
        world.submit("mail", "{}").await;
    }
    let mut worker = world.worker("py-1", 2);
    worker.beat(&["mail"]);
    let first = worker.take("mail").await;
    let second = worker.take("mail").await;
    let leased = world.node.queues().await.unwrap().queues[0].leased;
    assert_eq!(leased, 2, "the others may still go to workers over HTTP");
    // A worker over HTTP gets the next one.
    let request = LeaseQueues {
        queues: vec![name("mail")],
        worker: name("http"),
        max: 1,
        lease_ms: 60_000,
        wait_ms: 0,
        request_id: None,
        capacity: None,
    };
    assert_eq!(world.node.lease(request).await.unwrap().leases.len(), 1);
    assert!(worker.says(&first, Status::Completed));
    let third = worker.take("mail").await;
    assert!(third.history_id > second.history_id);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_task_tells_its_worker() {
    let world = World::start();
    let task = world.submit("mail", "{}").await;
    let mut worker = world.worker("py-1", 1);
    worker.beat(&["mail"]);
    let job = worker.take("mail").await;
    assert!(worker.says(&job, Status::Running));
    worker.beat(&["mail"]);
    let began = Instant::now();
    while world.node.task(task).await.unwrap().summary.lease.is_none() {
        assert!(began.elapsed() < LIMIT, "nobody heard that it runs");
        tokio::task::yield_now().await;
    }
    world.node.cancel(task, None).await.unwrap();
    let cancel = worker.told_to_stop().await;
    assert_eq!((cancel.job_id, cancel.history_id), (job.job_id, job.history_id));
    assert_eq!((cancel.worker_id.as_str(), cancel.reason), ("py-1", CancelCause::Requested));
    assert!(worker.says(&job, Status::Failed));
    world.until_state(task, TaskState::Cancelled).await;
    world.until_closed().await;
    // Whoever still names the lease hears that it is over.
    worker.beat(&["mail"]);
    while worker.told_to_stop().await.reason != CancelCause::Stale {}
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bus_that_was_rolled_back_costs_only_time() {
    let world = World::start();
    let task = world.submit("mail", "{}").await;
    let mut worker = world.worker("py-1", 1);
    worker.beat(&["mail"]);
    let job = worker.take("mail").await;
    assert!(worker.says(&job, Status::Running));
    let before = world.bus.moment();
    assert!(worker.says(&job, Status::Completed));
    world.until_state(task, TaskState::Completed).await;
    // A server that restarts without its last second: what was offered then is offered anew.
    world.bus.roll_back(&before);
    let next = world.submit("mail", "{}").await;
    worker.jobs.clear();
    worker.beat(&["mail"]);
    loop {
        let job = worker.take("mail").await;
        if worker.says(&job, Status::Completed) && job.job_id == next {
            break;
        }
    }
    world.until_state(next, TaskState::Completed).await;
    world.bus.fail_next(Fault::Refuse);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn channels_that_outlived_their_leases_are_closed() {
    let world = World::start();
    let task = world.submit("mail", "{}").await;
    let mut worker = world.worker("py-1", 1);
    worker.beat(&["mail"]);
    let job = worker.take("mail").await;
    let before = world.bus.moment();
    assert!(worker.says(&job, Status::Completed));
    world.until_state(task, TaskState::Completed).await;
    world.until_closed().await;
    let next = world.submit("mail", "{}").await;
    worker.jobs.clear();
    worker.take("mail").await;
    // The bus has the channels of the first again, and knows nothing of the second, which is noticed.
    world.bus.roll_back(&before);
    let status = Channels::default().job(JobChannel::Status(task));
    world.until("they are closed again", |world| !world.bus.names().contains(&status)).await;
    world.node.cancel(next, None).await.unwrap();
    world.until_closed().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_used_is_counted_and_dropped() {
    let world = World::start();
    let task = world.submit("mail", "{}").await;
    let mut worker = world.worker("py-1", 1);
    worker.beat(&["mail"]);
    let job = worker.take("mail").await;
    worker.send(Topic::WorkerHeartbeat.into(), "not JSON".to_owned());
    worker.bus.send_raw(&JobChannel::Status(task).into(), &[("other", b"x")]).unwrap();
    worker.send(JobChannel::Status(task).into(), r#"{"JobId":"x"}"#.to_owned());
    worker.send(JobChannel::Logs(task).into(), "[]".to_owned());
    let foreign = Dispatch { history_id: LeaseId(job.history_id.0 + 1), ..job.clone() };
    assert!(worker.says(&foreign, Status::Completed));
    assert!(worker.says(&job, Status::Completed));
    world.until_state(task, TaskState::Completed).await;
    let began = Instant::now();
    while world.node.stats().bus.malformed.get() < 5 {
        assert!(began.elapsed() < LIMIT, "{}", world.node.stats().bus.malformed.get());
        tokio::task::yield_now().await;
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_a_bus_refuses_its_asks() {
    let (node, _) = open(&Storage::Memory, Options::default()).unwrap();
    let join = OwnerAsk::Join { node: name("n"), incarnation: "1".to_owned(), address: String::new() };
    let refused = node.ask(&Caller::default(), Ask::Owner(Box::new(join))).await;
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    node.stop().await.unwrap();
}
