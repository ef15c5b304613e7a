//! Several nodes that own leases: they share, drain, die, and take over.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use orchestrix_core::wire::bus::{Dispatch, Status};
use orchestrix_core::{TaskId, TaskState};
use orchestrix_node::BusOptions;

use crate::rig::{Worker, World};

fn soon() -> BusOptions {
    BusOptions {
        heartbeat_interval: Duration::from_millis(200),
        dead_node_timeout: Duration::from_millis(900),
        handoff_ack_timeout: Duration::from_millis(300),
        handoff_hard_timeout: Duration::from_secs(8),
        ..BusOptions::default()
    }
}

/// A leader, two more nodes, and a worker that has taken so many tasks.
async fn running(tasks: u32) -> (World, Worker, Vec<Dispatch>) {
    running_with(tasks, soon()).await
}

async fn running_with(tasks: u32, options: BusOptions) -> (World, Worker, Vec<Dispatch>) {
    let mut world = World::start_with(options);
    world.join("node-2");
    world.join("node-3");
    // Each knows of the others by then.
    let knows = |world: &World, node: &str| world.stats(node).bus.reports.get() > 1;
    world.until("both have reported", |world| knows(world, "node-2") && knows(world, "node-3")).await;
    let mut ids: Vec<TaskId> = Vec::new();
    for _ in 0..tasks {
        ids.push(world.submit("mail", "{}").await);
    }
    let mut worker = world.worker("py-1", tasks);
    worker.beat(&["mail"]);
    let mut jobs = Vec::new();
    for _ in 0..tasks {
        let job = worker.take("mail").await;
        assert!(worker.says(&job, Status::Running));
        jobs.push(job);
    }
    world.until("all are owned", |world| owned(world) == u64::from(tasks)).await;
    (world, worker, jobs)
}

fn owned(world: &World) -> u64 {
    ["node-1", "node-2", "node-3"].iter().map(|node| world.stats(node).bus.owned.get()).sum()
}

async fn finish(world: World, worker: Worker, jobs: Vec<Dispatch>) {
    for job in &jobs {
        worker.logs(job, &["the end"]);
        assert!(worker.says(job, Status::Completed), "its channel is open");
    }
    for job in &jobs {
        world.until_state(job.job_id, TaskState::Completed).await;
        let view = world.node.task(job.job_id).await.unwrap();
        assert_eq!(view.attempts.len(), 1, "{view:?}");
        let logs = world.node.logs(job.job_id, 0, 10, None).await.unwrap();
        assert_eq!(logs.lines.len(), 1, "{logs:?}");
    }
    world.until_closed().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_lets_others_own() {
    let (world, worker, jobs) = running(30).await;
    assert_eq!(world.stats("node-1").bus.owned.get(), 0);
    finish(world, worker, jobs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_drains_is_gone_when_others_own_what_it_had() {
    let (world, worker, jobs) = running(30).await;
    let had = world.stats("node-2").bus.owned.get();
    assert!(had > 0, "owners share");
    world.drain("node-2").await;
    let bus = &world.stats("node-2").bus;
    assert_eq!(bus.drained_at_once.get() + bus.drained_later.get(), had, "nothing was left behind");
    assert_eq!(bus.drained_released.get() + bus.drained_alone.get(), 0);
    world.until("the other has all", |world| world.stats("node-3").bus.owned.get() == 30).await;
    finish(world, worker, jobs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_node_owned_is_adopted() {
    let (world, worker, jobs) = running(30).await;
    world.kill("node-2").await;
    world.until("the other has all", |world| world.stats("node-3").bus.owned.get() == 30).await;
    assert_eq!(world.stats("node-1").bus.nodes_lost.get(), 1);
    finish(world, worker, jobs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_alone_owns_all() {
    let (world, worker, jobs) = running(4).await;
    world.drain("node-3").await;
    world.drain("node-2").await;
    world.until("the leader has all", |world| world.stats("node-1").bus.owned.get() == 4).await;
    finish(world, worker, jobs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_owns_nothing_waits_for_no_leader() {
    let (world, _worker, _jobs) = running(2).await;
    world.no_leader.store(true, Ordering::Relaxed);
    let began = Instant::now();
    let idle = if world.stats("node-2").bus.owned.get() == 0 { "node-2" } else { "node-1" };
    world.drain(idle).await;
    assert!(began.elapsed() < soon().handoff_hard_timeout / 2);
    for node in ["node-1", "node-2", "node-3"] {
        world.kill(node).await;
    }
    world.node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_owns_something_waits_for_a_leader_for_a_while() {
    let hard = Duration::from_secs(2);
    let (world, _worker, _jobs) = running_with(2, BusOptions { handoff_hard_timeout: hard, ..soon() }).await;
    world.no_leader.store(true, Ordering::Relaxed);
    let owns = if world.stats("node-2").bus.owned.get() > 0 { "node-2" } else { "node-3" };
    let began = Instant::now();
    world.drain(owns).await;
    assert!(began.elapsed() >= hard);
    for node in ["node-1", "node-2", "node-3"] {
        world.kill(node).await;
    }
    world.node.stop().await.unwrap();
}
