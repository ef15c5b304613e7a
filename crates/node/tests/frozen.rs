//! A coordinator that stands still in the middle of a round: what it promises counts from when it was asked.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use orchestrix_core::wire::{LeaseQueues, ShardHeartbeat, ShardRegister, Submit};
use orchestrix_core::{Json, Name, TaskState};
use orchestrix_engine::disk::sim::SimDisk;
use orchestrix_engine::{Clock, file};
use orchestrix_node::{Node, Options, ShardAsk, Stepped};

/// Milliseconds that it stands still.
const STILL_MS: u64 = 10_000;

/// A clock that jumps after some more looks at it, as for a process that stood still between two of them.
#[derive(Debug, Default)]
struct Jumping {
    now_ms: AtomicU64,
    looks_left: AtomicU64,
}

impl Clock for Jumping {
    fn boot(&self) -> Duration {
        let now = self.now_ms.load(SeqCst);
        let left = self.looks_left.load(SeqCst);
        if left > 0 {
            self.looks_left.store(left - 1, SeqCst);
            if left == 1 {
                self.now_ms.store(now + STILL_MS, SeqCst);
            }
        }
        Duration::from_millis(now)
    }
    fn busy(&self) -> Duration {
        Duration::ZERO
    }
    fn wall(&self) -> Duration {
        Duration::from_millis(1_000_000 + self.now_ms.load(SeqCst))
    }
    fn pause(&self, _: Duration) {}
}

struct World {
    node: Node,
    stepped: Stepped,
    clock: Arc<Jumping>,
}

impl World {
    fn start() -> Self {
        let clock = Arc::new(Jumping::default());
        let options = (file::Options::default(), Options::default());
        let (node, stepped, _) =
            Stepped::open(Arc::new(SimDisk::new(1)), options.0, options.1, clock.clone()).unwrap();
        let mut world = Self { node, stepped, clock };
        world.rounds(2);
        world
    }

    fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            let _ = self.stepped.decide().unwrap();
            while self.stepped.is_writing() {
                self.stepped.write().unwrap();
            }
        }
    }

    /// Asks, and lets the coordinator stand still in the round that decides, after it has looked at its clock.
    fn frozen<T>(&mut self, ask: impl Future<Output = T>) -> T {
        let (mut ask, mut context) = (pin!(ask), Context::from_waker(Waker::noop()));
        assert!(ask.as_mut().poll(&mut context).is_pending(), "it is answered in a round");
        self.clock.looks_left.store(2, SeqCst);
        self.rounds(3);
        match ask.poll(&mut context) {
            Poll::Ready(answer) => answer,
            Poll::Pending => panic!("it was not answered"),
        }
    }

    fn asked<T>(&mut self, ask: impl Future<Output = T>, rounds: usize) -> T {
        let (mut ask, mut context) = (pin!(ask), Context::from_waker(Waker::noop()));
        for _ in 0..rounds {
            if let Poll::Ready(answer) = ask.as_mut().poll(&mut context) {
                return answer;
            }
            self.clock.now_ms.fetch_add(300, SeqCst);
            self.rounds(2);
        }
        panic!("it was not answered");
    }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

#[test]
fn a_shard_heartbeat_during_a_stall_counts_in_full() {
    let mut world = World::start();
    let node = world.node.clone();
    let body = ShardRegister {
        max_shard_count: 4,
        capacity: None,
        group: None,
        session: Some(Name::new("p").unwrap()),
        ..ShardRegister::default()
    };
    let (service, worker) = (name("s"), name("w"));
    let told = world.asked(node.shards(ShardAsk::Register { service, worker, body }), 5).unwrap();
    let body = ShardHeartbeat {
        max_shard_count: 4,
        assigned_shards: told.assigned_shards,
        generation: Some(told.generation),
        seq: None,
        session: Some(Name::new("p").unwrap()),
        ..ShardHeartbeat::default()
    };
    let (service, worker) = (name("s"), name("w"));
    let told = world.frozen(node.shards(ShardAsk::Heartbeat { service, worker, body })).unwrap();
    let view = world.asked(node.service(name("s")), 1 + 1).unwrap();
    assert!(view.workers[0].left_ms + 300 >= told.lease_ms, "{} ms are left", view.workers[0].left_ms);
}

#[test]
fn a_heartbeat_during_a_stall_keeps_the_whole_lease() {
    let mut world = World::start();
    let node = world.node.clone();
    world.asked(node.submit(Submit::new(name("q"), Json::parse("1").unwrap())), 3).unwrap();
    let request = LeaseQueues {
        queues: vec![name("q")],
        worker: name("w"),
        max: 1,
        lease_ms: 12_000,
        wait_ms: 0,
        request_id: None,
        capacity: None,
    };
    let leases = world.frozen(node.lease(request)).unwrap();
    let task = leases.leases[0].task_id;
    // Eleven of its twelve seconds later it is still at it.
    world.clock.now_ms.fetch_add(11_000, SeqCst);
    world.rounds(2);
    let view = world.asked(node.task(task), 2).unwrap();
    assert_eq!(view.summary.state, TaskState::Leased);
}

#[test]
fn a_lease_that_was_answered_is_charged_when_time_stands_still() {
    let mut world = World::start();
    world.stepped.never_writes_itself();
    let node = world.node.clone();
    let submit = Submit { max_attempts: 1, ..Submit::new(name("mail"), Json::null()) };
    let (task, _) = world.asked(node.submit(submit), 3).unwrap();
    let request = LeaseQueues {
        queues: vec![name("mail")],
        worker: name("w"),
        max: 1,
        lease_ms: 1_000,
        wait_ms: 0,
        request_id: None,
        capacity: None,
    };
    let mut lease = pin!(node.lease(request));
    let mut context = Context::from_waker(Waker::noop());
    assert!(lease.as_mut().poll(&mut context).is_pending());
    world.rounds(1);
    let Poll::Ready(Ok(answer)) = lease.poll(&mut context) else { panic!("it was not answered") };
    assert_eq!(answer.leases.len(), 1, "the worker has it, and the loop has not heard of that yet");
    world.clock.now_ms.fetch_add(STILL_MS, SeqCst);
    world.rounds(2);
    let view = world.asked(node.task(task.id), 3).unwrap();
    assert_eq!(view.summary.state, TaskState::Failed, "its only attempt is over, and counts");
}
