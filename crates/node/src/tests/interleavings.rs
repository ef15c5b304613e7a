//! Callers, the loop and the writer that ship, in many orders of their steps (feature `shuttle`).
//!
//! A wait never ends by time here, and the clock stands still: an answer that needs a timeout to be noticed is a
//! deadlock, which `shuttle` reports with the order that led to it.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use orchestrix_core::wire::{Complete, LeaseQueues, Submit};
use orchestrix_core::{FORMAT, Filter, Json, Name, Position, State, TaskId};
use orchestrix_engine::memory::MemoryJournal;
use orchestrix_engine::{Appended, Batch, Clock, Error, Journal, JournalId, Link, Read, Snapshots, Space};
use shuttle::future::block_on;
use shuttle::thread::{self, JoinHandle};

use crate::node::Node;
use crate::open::{Parts, Stored, Surroundings, assemble, open_memory, replay};
use crate::options::Options;
use crate::runner::Input;
use crate::sync::Mutex;
use crate::write_guard::WriteGuard;
use crate::writer::{self, Writer};

/// Orders that are tried of each case, at random and by changes of priority.
const ORDERS: usize = 2_000;
/// Changes of priority in one order.
const CHANGES: usize = 3;

#[derive(Debug)]
struct StandsStill;

impl Clock for StandsStill {
    fn boot(&self) -> Duration {
        Duration::from_secs(1)
    }
    fn busy(&self) -> Duration {
        Duration::ZERO
    }
    fn wall(&self) -> Duration {
        Duration::from_secs(1_000)
    }
    fn pause(&self, _: Duration) {
        thread::yield_now();
    }
}

/// A journal in memory; others may run before a batch is in it, and after.
struct Slow(MemoryJournal);

impl Journal for Slow {
    fn id(&self) -> JournalId {
        self.0.id()
    }
    fn end(&self) -> Link {
        self.0.end()
    }
    fn append(&mut self, batch: &Batch) -> Result<Appended, Error> {
        thread::yield_now();
        let appended = self.0.append(batch);
        thread::yield_now();
        appended
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

/// A node whose loop and writer run on threads of `shuttle`.
struct Running {
    node: Node,
    writer: Arc<Mutex<Writer>>,
    threads: [JoinHandle<()>; 2],
}

impl Running {
    fn start(offers: Offers) -> Self {
        let options = Options::default();
        let journal = Slow(MemoryJournal::new(JournalId([7; 16])));
        let stored = Stored { end: journal.end(), journal: Box::new(journal), ..open_memory() };
        let surroundings = Surroundings::new(Arc::new(StandsStill), stored.recovered.position, &options);
        let parts =
            assemble(stored, options, WriteGuard::default(), surroundings, crate::logs::Calls::Threads);
        let Parts { node, mut runner, writer, handed, acks } = parts;
        runner.offers = offers == Offers::Yes;
        let (wake, offer, writes) = (node.inputs.clone(), Arc::clone(&runner.offer), Arc::clone(&writer));
        let writes = thread::spawn(move || {
            writer::run(&writes, &handed, &offer, &acks, &wake).expect("the journal is in memory");
        });
        let decides = thread::spawn(move || runner.run().expect("nothing fails"));
        Self { node, writer, threads: [decides, writes] }
    }

    /// Stops, and answers the state that the journal amounts to.
    fn stop(self) -> State {
        self.node.running.begin_stop();
        self.node.inputs.put_anyway(Input::Stop).expect("the loop runs");
        for thread in self.threads {
            thread.join().expect("no thread panics");
        }
        let writer = writer::lock(&self.writer);
        let mut state = State::new();
        let read = writer.journal.read(state.position(), usize::MAX).expect("the journal is in memory");
        let Read::Batches(batches) = read else { panic!("nothing was truncated") };
        for batch in &batches {
            replay(&mut state, &batch.as_ref(), FORMAT, |_, _| {}).expect("it was written in order");
        }
        state
    }
}

/// Whether groups are offered to a writer that is busy, as on shared engines.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Offers {
    Yes,
    No,
}

fn in_every_order(case: impl Fn(Offers) + Send + Sync + Clone + 'static) {
    for offers in [Offers::Yes, Offers::No] {
        let again = case.clone();
        shuttle::check_random(move || again(offers), ORDERS);
        let again = case.clone();
        shuttle::check_pct(move || again(offers), ORDERS, CHANGES);
    }
}

fn name(text: &str) -> Name {
    Name::new(text).expect("it is valid")
}

fn submit() -> Submit {
    Submit::new(name("q"), Json::null())
}

/// A call that waits until there is a task: as long as that takes, because the clock stands still.
fn lease(worker: &str) -> LeaseQueues {
    LeaseQueues {
        queues: vec![name("q")],
        worker: name(worker),
        max: 1,
        lease_ms: 60_000,
        wait_ms: 60_000,
        request_id: None,
        capacity: None,
    }
}

/// Runs what a caller does on a thread of its own.
fn caller<T: Send + 'static>(node: &Node, does: impl FnOnce(Node) -> T + Send + 'static) -> JoinHandle<T> {
    let node = node.clone();
    thread::spawn(move || does(node))
}

/// Leases a task, and completes it.
async fn work(node: Node, worker: &str) -> TaskId {
    let leases = node.lease(lease(worker)).await.expect("there is a task");
    let [leased] = &leases.leases[..] else { panic!("one task was asked for") };
    let done = Complete { lease_id: leased.lease_id, worker: None, result: None };
    node.complete(leased.task_id, done).await.expect("the lease is live");
    leased.task_id
}

#[test]
fn every_call_is_answered_without_help_of_time() {
    in_every_order(|offers| {
        let running = Running::start(offers);
        let callers: Vec<_> = (0..3)
            .map(|_| {
                caller(&running.node, |node| block_on(node.submit(submit())).expect("it is accepted").0.id)
            })
            .collect();
        let mut ids: Vec<TaskId> =
            callers.into_iter().map(|caller| caller.join().expect("answered")).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 3, "each has a task of its own");
        let state = running.stop();
        assert!(ids.iter().all(|id| state.task(*id).is_some()), "what was acknowledged is in the journal");
    });
}

#[test]
fn a_waiting_worker_gets_what_is_submitted() {
    in_every_order(|offers| {
        let running = Running::start(offers);
        let workers =
            ["a", "b"].map(|worker| caller(&running.node, move |node| block_on(work(node, worker))));
        let clients = [(); 2].map(|()| {
            caller(&running.node, |node| block_on(node.submit(submit())).expect("it is accepted").0.id)
        });
        let mut submitted = clients.map(|client| client.join().expect("answered"));
        let mut done = workers.map(|worker| worker.join().expect("answered"));
        submitted.sort();
        done.sort();
        assert_eq!(submitted, done);
        running.stop();
    });
}

#[test]
fn an_unclaimed_lease_goes_to_the_next_worker() {
    in_every_order(|offers| {
        let running = Running::start(offers);
        let leaves = caller(&running.node, |node| {
            let mut asked = pin!(node.lease(lease("leaves")));
            // Asked once; whatever comes of it, nobody is there any more.
            let _ = asked.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            thread::yield_now();
        });
        let stays = caller(&running.node, |node| block_on(work(node, "stays")));
        let client = caller(&running.node, |node| block_on(node.submit(submit())).expect("accepted").0.id);
        let submitted = client.join().expect("answered");
        assert_eq!(stays.join().expect("answered"), submitted);
        leaves.join().expect("it has left");
        running.stop();
    });
}

#[test]
fn a_stop_answers_all_and_loses_nothing() {
    in_every_order(|offers| {
        let running = Running::start(offers);
        let callers: Vec<_> = (0..3)
            .map(|_| caller(&running.node, |node| block_on(node.submit(submit())).map(|(task, _)| task.id)))
            .collect();
        let state = running.stop();
        let answers = callers.into_iter().map(|caller| caller.join().expect("answered"));
        let accepted: Vec<TaskId> = answers.filter_map(Result::ok).collect();
        assert!(
            accepted.iter().all(|id| state.task(*id).is_some()),
            "what was acknowledged is in the journal"
        );
        assert_eq!(state.list(&Filter::default(), None, 10).0.len(), accepted.len(), "and nothing else is");
    });
}
