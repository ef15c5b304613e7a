//! The services of a node on the bus, each on a thread of its own: [`BusServices::start`].

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use orchestrix_core::{Name, Term};
use orchestrix_engine::bus::Bus;
use orchestrix_engine::{Clock, JournalId, LogThrottle};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::complaints::Complaints;
use super::dispatcher::{Dispatcher, Next};
use super::heartbeat::HeartbeatService;
use super::listener::Listener;
use super::opening::Opening;
use super::output::Output;
use super::owner::{Identity, Owner};
use super::sweep::Sweep;
use super::{BusAnswer, BusOptions, DispatchAsk, OwnerAsk};
use crate::caller::Caller;
use crate::node::Node;
use crate::open::Failure;
use crate::request::{Answer, Ask, Error};
use crate::stats::Stats;

/// How often a node that follows looks whether it leads.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// After an ask that was not answered.
const PAUSE: Duration = Duration::from_millis(250);

/// An answer to a question to the leader, wherever it is.
pub type Asked = Pin<Box<dyn Future<Output = Result<BusAnswer, Error>> + Send>>;

/// What the services of a node need.
pub struct BusPlace {
    pub bus: Arc<dyn Bus>,
    pub options: BusOptions,
    pub journal: JournalId,
    /// Who this process is.
    pub node: Name,
    pub incarnation: String,
    pub address: String,
    /// Where the output of tasks is stored.
    pub output: Arc<dyn Output>,
    pub stats: Arc<Stats>,
    pub clock: Arc<dyn Clock>,
    /// The node of this process, if it decides at the moment.
    pub leads: Arc<dyn Fn() -> Option<Node> + Send + Sync>,
    /// Asks the leader.
    pub ask: Box<dyn Fn(OwnerAsk) -> Asked + Send + Sync>,
    pub runtime: Handle,
}

impl std::fmt::Debug for BusPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BusPlace")
            .field("bus", &self.bus.place())
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// The services, until they are stopped.
#[derive(Debug)]
pub struct BusServices {
    stop: Arc<Stop>,
    throttle: Arc<LogThrottle>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Ends all waits.
#[derive(Debug, Default)]
struct Stop {
    begun: AtomicBool,
    drains: AtomicBool,
    drained: Notify,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Stop {
    fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    fn drains(&self) -> bool {
        self.drains.load(Ordering::Acquire)
    }

    fn is_drained(&self) {
        self.drained.notify_one();
    }

    fn begin_drain(&self) {
        let _lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.drains.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    fn begin(&self) {
        let _lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.begun.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    fn wait(&self, longest: Duration) {
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.has_begun() {
            drop(self.changed.wait_timeout(lock, longest));
        }
    }
}

impl BusServices {
    /// Starts them. A bus that does not answer now is tried again and again.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(place: BusPlace) -> Result<Self, Failure> {
        let BusPlace {
            bus,
            options,
            journal,
            node,
            incarnation,
            address,
            output,
            stats,
            clock,
            leads,
            ask,
            runtime,
        } = place;
        let stop = Arc::new(Stop::default());
        let opening = Opening::new(Arc::clone(&bus), journal, node.clone());
        let mut threads = Vec::new();
        let complaints = || Complaints::new(Arc::clone(&stats));

        let mut dispatcher = Dispatcher::new(Arc::clone(&opening));
        let mut local =
            Local { leads: Arc::clone(&leads), runtime: runtime.clone(), stop: Arc::clone(&stop) };
        let time = Arc::clone(&clock);
        threads.push(thread("orchestrix-dispatch", move || {
            while let Some(leader) = local.until_leads() {
                match dispatcher.next(Term(leader.stats().term.get()), time.boot()) {
                    Next::Ask(ask) => {
                        let answer = local.ask(&leader, ask);
                        local.pause_after(&answer);
                        dispatcher.answered(answer, time.boot());
                    }
                    Next::Wait(pause) => local.stop.wait(pause),
                    Next::Done => return,
                }
            }
        })?);

        let (counts, every) = (Arc::clone(&stats), options.heartbeat_interval);
        let mut heart =
            HeartbeatService::new(Arc::clone(&bus), Arc::clone(&clock), node.clone(), counts, every);
        let mut listener = Listener::new(Arc::clone(&bus), complaints());
        let leading = Arc::clone(&leads);
        let local = Local { leads, runtime: runtime.clone(), stop: Arc::clone(&stop) };
        let time = Arc::clone(&clock);
        threads.push(thread("orchestrix-listen", move || {
            while !local.stop.has_begun() {
                heart.beat(time.boot());
                let leader = (local.leads)();
                match (listener.next(leader.is_some(), time.boot()), leader) {
                    (Next::Ask(ask), Some(leader)) => {
                        let answer = local.ask(&leader, ask);
                        local.pause_after(&answer);
                        listener.answered(answer);
                    }
                    (Next::Ask(_), None) => {}
                    (Next::Wait(pause), _) => local.stop.wait(pause),
                    (Next::Done, _) => return,
                }
            }
        })?);

        let identity = Identity { node, incarnation, address };
        let sweep = Sweep::new(Arc::clone(&clock), output);
        let mut owner = Owner::new(opening, identity, sweep, Arc::clone(&stats), complaints());
        let throttle = owner.throttle();
        let (time, ends) = (clock, Arc::clone(&stop));
        threads.push(thread("orchestrix-own", move || {
            while !ends.has_begun() {
                if ends.drains() {
                    owner.drain(&options, time.boot());
                }
                match owner.next(leading().is_some(), time.boot()) {
                    Next::Ask(question) => {
                        let answer = runtime.block_on(ask(question.clone()));
                        if answer.is_err() {
                            ends.wait(PAUSE);
                        }
                        owner.answered(&question, answer, time.boot());
                    }
                    Next::Wait(pause) => ends.wait(pause),
                    Next::Done => break,
                }
            }
            ends.is_drained();
        })?);
        Ok(Self { stop, throttle, threads: Mutex::new(threads) })
    }

    /// Why the bus is of no use at the moment, if so.
    #[must_use]
    pub fn why(&self) -> Option<String> {
        self.throttle.reason()
    }

    /// Gives away what this node owns, then ends them.
    pub async fn stop(&self) {
        if self.stop.has_begun() {
            return;
        }
        self.stop.begin_drain();
        self.stop.drained.notified().await;
        self.abort().await;
    }

    /// Ends them at once. Others get what this node owns after a while.
    pub async fn abort(&self) {
        self.stop.begin();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        let joined = tokio::task::spawn_blocking(move || {
            for thread in threads {
                // A panic was reported where it happened.
                let _ = thread.join();
            }
        });
        // A runtime that ends waits for no thread.
        let _ = joined.await;
    }
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Failure> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    spawned.map_err(|error| Failure::new(format!("cannot start the thread {name}: {error}")))
}

/// The leader, if it is this process.
struct Local {
    leads: Arc<dyn Fn() -> Option<Node> + Send + Sync>,
    runtime: Handle,
    stop: Arc<Stop>,
}

impl Local {
    /// Waits until this process decides; `None` at the end.
    fn until_leads(&mut self) -> Option<Node> {
        while !self.stop.has_begun() {
            if let Some(node) = (self.leads)() {
                return Some(node);
            }
            self.stop.wait(LOOK_EVERY);
        }
        None
    }

    fn ask(&self, leader: &Node, ask: DispatchAsk) -> Result<BusAnswer, Error> {
        let answer = self.runtime.block_on(leader.ask(&Caller::default(), Ask::Dispatch(Box::new(ask))))?;
        let Answer::Bus(answer) = answer else {
            unreachable!("the loop answers in kind, not with {answer:?}")
        };
        Ok(*answer)
    }

    fn pause_after(&self, answer: &Result<BusAnswer, Error>) {
        if answer.is_err() {
            self.stop.wait(PAUSE);
        }
    }
}
