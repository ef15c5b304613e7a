//! The worker of the Rust client against a real coordinator, over ZeroMQ and HTTP.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use orchestrix_client::{Error, Shard, ShardWorker};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::coordinator::{LEASE_MS, ShardCoordinator};

const SHARDS: u32 = 10;
/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a worker was told by its callbacks.
#[derive(Debug)]
enum Called {
    Assigned(Vec<Shard>),
    Revoked(Vec<Shard>),
}

/// A worker in this process.
struct Worker {
    calls: mpsc::UnboundedReceiver<Called>,
    /// One place for every `on_revoked` that may return.
    may_return: Arc<Semaphore>,
    stop: CancellationToken,
    ended: JoinHandle<Result<(), Error>>,
}

impl Worker {
    fn start(address: String, name: &str) -> Self {
        Self::start_with(ShardWorker::new(address, "orders", SHARDS).name(name))
    }

    fn start_with(worker: ShardWorker) -> Self {
        let (sender, calls) = mpsc::unbounded_channel();
        let may_return = Arc::new(Semaphore::new(0));
        let (assigned, revoked, returns) = (sender.clone(), sender, Arc::clone(&may_return));
        let stop = CancellationToken::new();
        let worker = worker
            .on_assigned(move |shards| {
                assigned.send(Called::Assigned(shards)).unwrap();
                std::future::ready(())
            })
            .on_revoked(move |shards| {
                revoked.send(Called::Revoked(shards)).unwrap();
                let returns = Arc::clone(&returns);
                async move { returns.acquire().await.unwrap().forget() }
            });
        let ended = tokio::spawn(worker.run(stop.clone()));
        Self { calls, may_return, stop, ended }
    }

    async fn assigned(&mut self) -> Vec<Shard> {
        match in_time(self.calls.recv()).await {
            Some(Called::Assigned(shards)) => shards,
            other => panic!("{other:?} instead of shards"),
        }
    }

    async fn revoked(&mut self) -> Vec<Shard> {
        match in_time(self.calls.recv()).await {
            Some(Called::Revoked(shards)) => shards,
            other => panic!("{other:?} instead of an end"),
        }
    }

    /// Takes in what was called so far, and lets it return.
    fn drain(&mut self, has: &mut BTreeSet<u32>) {
        while let Ok(called) = self.calls.try_recv() {
            match called {
                Called::Assigned(shards) => has.extend(shards.iter().map(Shard::number)),
                Called::Revoked(shards) => {
                    has.retain(|number| shards.iter().all(|shard| shard.number() != *number));
                    self.return_once();
                }
            }
        }
    }

    fn return_once(&self) {
        self.may_return.add_permits(1);
    }

    async fn stop(self) {
        self.may_return.add_permits(1_000);
        self.stop.cancel();
        in_time(self.ended).await.unwrap().unwrap();
    }
}

async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it happens in time")
}

/// Waits until something is so.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn lets_go_only_after_the_callback_returned(coordinator: ShardCoordinator, address: String) {
    let mut first = Worker::start(address.clone(), "a");
    assert_eq!(first.assigned().await.len(), 10);
    let mut second = Worker::start(address, "b");
    let revoked = first.revoked().await;
    assert_eq!(revoked.len(), 5);
    assert!(revoked.iter().all(|shard| !shard.is_held()));
    // For longer than it would be believed without heartbeats, they say that it still serves them.
    let began = Instant::now();
    until("a lease and a half", || {
        assert_eq!((coordinator.count("orders", "WITHDRAWN"), coordinator.count("orders", "HELD")), (5, 5));
        began.elapsed() > Duration::from_millis(LEASE_MS * 3 / 2)
    })
    .await;
    assert!(second.calls.is_empty());
    first.return_once();
    assert_eq!(second.assigned().await.len(), 5);
    second.stop().await;
    assert_eq!(first.assigned().await.len(), 5);
    first.stop().await;
    until("nobody has any", || coordinator.count("orders", "FREE") == 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zeromq_worker_releases_after_its_callback_returned() {
    let coordinator = ShardCoordinator::start();
    let address = coordinator.tcp();
    lets_go_only_after_the_callback_returned(coordinator, address).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_over_http_lets_go_only_after_its_callback_returned() {
    let coordinator = ShardCoordinator::start();
    let address = coordinator.http();
    lets_go_only_after_the_callback_returned(coordinator, address).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_hears_at_once_of_what_changes() {
    let lease = Duration::from_secs(60);
    for address in [ShardCoordinator::tcp, ShardCoordinator::http] {
        let coordinator = ShardCoordinator::with_lease(60_000);
        let mut first = Worker::start(address(&coordinator), "a");
        first.assigned().await;
        let began = Instant::now();
        let mut second = Worker::start(address(&coordinator), "b");
        assert_eq!(first.revoked().await.len(), 5);
        first.return_once();
        assert_eq!(second.assigned().await.len(), 5);
        assert!(began.elapsed() < lease / 3, "not only with the next heartbeat");
        for worker in [first, second] {
            worker.stop().await;
        }
    }
}

async fn stops_by_itself_and_comes_again(mut coordinator: ShardCoordinator, address: String) {
    let mut worker = Worker::start(address, "a");
    let shards = worker.assigned().await;
    coordinator.kill();
    let killed = Instant::now();
    let revoked = worker.revoked().await;
    assert_eq!(revoked.len(), 10);
    until("its time is over", || shards.iter().all(|shard| !shard.is_held())).await;
    // Its last heartbeat was sent before.
    assert!(killed.elapsed() < Duration::from_millis(LEASE_MS) + Duration::from_secs(1));
    worker.return_once();
    coordinator.launch();
    let again = worker.assigned().await;
    assert_eq!(again.len(), 10);
    let token = |shards: &[Shard]| shards.iter().map(Shard::token).max();
    assert!(token(&again) > token(&shards), "whoever was slow is refused");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zeromq_worker_stops_and_returns_with_the_coordinator() {
    let coordinator = ShardCoordinator::start();
    let address = coordinator.tcp();
    stops_by_itself_and_comes_again(coordinator, address).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_http_worker_stops_and_returns_with_the_coordinator() {
    let coordinator = ShardCoordinator::start();
    let address = coordinator.http();
    stops_by_itself_and_comes_again(coordinator, address).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_within_a_lease_takes_nothing_away() {
    let mut coordinator = ShardCoordinator::with_lease(20_000);
    let often = Duration::from_millis(200);
    let worker = |address, name: &str| {
        Worker::start_with(ShardWorker::new(address, "orders", SHARDS).name(name).heartbeat(often))
    };
    let (mut zmq, mut http) = (worker(coordinator.tcp(), "a"), worker(coordinator.http(), "b"));
    let (mut of_zmq, mut of_http) = (BTreeSet::new(), BTreeSet::new());
    until("both have five", || {
        zmq.drain(&mut of_zmq);
        http.drain(&mut of_http);
        (of_zmq.len(), of_http.len(), coordinator.count("orders", "HELD")) == (5, 5, 10)
    })
    .await;
    coordinator.kill();
    coordinator.launch();
    // They are heard of again when one of them gives to a third.
    let mut third = worker(coordinator.tcp(), "c");
    let taken = async {
        tokio::select! {
            taken = zmq.revoked() => taken,
            taken = http.revoked() => taken,
        }
    };
    let taken = taken.await;
    assert!(taken.len() < 5, "only what the third gets is taken away: {taken:?}");
    for worker in [&zmq, &http] {
        worker.may_return.add_permits(1_000);
    }
    assert!(!third.assigned().await.is_empty());
    for worker in [zmq, http, third] {
        worker.stop().await;
    }
}

async fn the_later_of_one_name_has_the_shards(address: fn(&ShardCoordinator) -> String) {
    let coordinator = ShardCoordinator::start();
    let mut earlier = Worker::start(address(&coordinator), "a");
    let shards = earlier.assigned().await;
    let mut later = Worker::start(address(&coordinator), "a");
    assert_eq!(earlier.revoked().await.len(), 10);
    earlier.return_once();
    let taken = later.assigned().await;
    assert_eq!(taken.len(), 10);
    assert!(shards.iter().all(|shard| !shard.is_held()) && taken.iter().all(Shard::is_held));
    assert!(taken.iter().zip(&shards).all(|(new, old)| new.token() > old.token()));
    later.stop().await;
    // The name is free, and the earlier one comes again.
    assert_eq!(earlier.assigned().await.len(), 10);
    earlier.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_later_process_of_a_name_takes_over_its_shards() {
    tokio::join!(
        the_later_of_one_name_has_the_shards(ShardCoordinator::tcp),
        the_later_of_one_name_has_the_shards(ShardCoordinator::http)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_declares_its_capacity_and_group() {
    let coordinator = ShardCoordinator::start();
    let worker = ShardWorker::new(coordinator.tcp(), "orders", SHARDS).name("a").capacity(3).group("eu");
    let mut worker = Worker::start_with(worker);
    assert_eq!(worker.assigned().await.len(), 3);
    let stranger = ShardWorker::new(coordinator.tcp(), "orders", SHARDS).name("b").group("us");
    let refused = in_time(stranger.run(CancellationToken::new())).await.unwrap_err();
    assert_eq!(refused.code(), "invalid", "{refused}");
    worker.stop().await;
}
