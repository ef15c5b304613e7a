//! A leader on an engine that takes its time: the loop offers its next group to the writer meanwhile.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::wire::{LeaseQueues, Submit};
use orchestrix_core::{Json, Name, Position};
use orchestrix_engine::memory::MemoryPlace;
use orchestrix_engine::{
    Appended, Batch, Error, Journal, JournalId, Link, Logs, Read, Register, Shared, Snapshots, Space,
};
use orchestrix_leadership::Candidate;
use orchestrix_node::{HighWater, Member, Membership, Node, NodeRole, Options};

/// How long an append takes: about as long as one on a server next door.
const APPEND: Duration = Duration::from_micros(300);
/// Callers at once, and what each of them does.
const CALLERS: u64 = 12;
const CALLS: u64 = 800;
/// Tasks of a call: so many that all callers together fill more than a group.
const BATCH: usize = 60;

struct Slow(MemoryPlace);

struct SlowJournal(Box<dyn Journal>);

impl Shared for Slow {
    fn journal(&self) -> Result<Box<dyn Journal>, Error> {
        Ok(Box::new(SlowJournal(self.0.journal()?)))
    }

    fn register(&self) -> Arc<dyn Register> {
        self.0.register()
    }

    fn logs(&self) -> Arc<dyn Logs> {
        self.0.logs()
    }

    fn place(&self) -> String {
        self.0.place()
    }

    fn warnings(&self) -> Vec<String> {
        self.0.warnings()
    }
}

impl Journal for SlowJournal {
    fn id(&self) -> JournalId {
        self.0.id()
    }

    fn end(&self) -> Link {
        self.0.end()
    }

    fn refresh(&mut self) -> Result<Link, Error> {
        self.0.refresh()
    }

    fn append(&mut self, batch: &Batch) -> Result<Appended, Error> {
        std::thread::sleep(APPEND);
        self.0.append(batch)
    }

    fn read(&self, after: Position, limit_bytes: usize) -> Result<Read, Error> {
        self.0.read(after, limit_bytes)
    }

    fn rest(&mut self) -> Result<(), Error> {
        self.0.rest()
    }

    fn space(&self) -> Space {
        self.0.space()
    }

    fn snapshots(&self) -> Box<dyn Snapshots> {
        self.0.snapshots()
    }

    fn truncate(&mut self) -> Result<Position, Error> {
        self.0.truncate()
    }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn lease() -> LeaseQueues {
    LeaseQueues {
        queues: vec![name("mail")],
        worker: name("w"),
        max: BATCH,
        lease_ms: 60_000,
        wait_ms: 0,
        request_id: None,
        capacity: None,
    }
}

/// Submits and leases without a rest; every second time it does not wait for the answer to the end.
async fn call(node: Node, caller: u64) {
    for call in 0..CALLS {
        for submitted in
            node.submit_batch(vec![Submit::new(name("mail"), Json::null()); BATCH]).await.unwrap()
        {
            submitted.unwrap();
        }
        if (caller + call).is_multiple_of(2) {
            node.lease(lease()).await.unwrap();
        } else {
            let patience = Duration::from_micros(200 * (call % 8));
            let _ = tokio::time::timeout(patience, node.lease(lease())).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_never_rest_and_some_that_leave_are_all_served() {
    let member = Member::open(Membership {
        engine: Arc::new(Slow(MemoryPlace::new(JournalId([4; 16])))),
        me: Candidate { name: "a".into(), incarnation: "a-1".into(), address: "http://a".into() },
        leadership: orchestrix_leadership::Options::first_come(Duration::from_secs(5)),
        node: Options { node: "a".to_owned(), ..Options::default() },
        high_water: HighWater::in_memory(),
    })
    .unwrap();
    let mut roles = member.roles();
    let role = roles.wait_for(|role| matches!(role, NodeRole::Leads(_))).await.unwrap().clone();
    let NodeRole::Leads(node) = role else { unreachable!("it was waited for") };
    // Groups are handed over, offered, taken back and taken, and answers come back that nobody took.
    let callers: Vec<_> = (0..CALLERS).map(|caller| tokio::spawn(call(node.clone(), caller))).collect();
    for caller in callers {
        caller.await.unwrap();
    }
    assert_eq!(node.stats().submitted.get(), CALLERS * CALLS * BATCH as u64);
    assert!(node.stats().abandoned.get() > 0, "nobody left");
    member.stop().await.unwrap();
}
