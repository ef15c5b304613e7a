//! The bus of a process: how it is found at the start, and what is done on it until the stop.
//!
//! **Invariant:** a bus that does not answer keeps nobody from working over HTTP.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use orchestrix_core::{Name, Refusal};
use orchestrix_engine::bus::Bus;
use orchestrix_engine::{Error as EngineError, LogThrottle, Shared, SystemClock};
use orchestrix_node::link::{Question, Reply};
use orchestrix_node::{Answer, Ask, BusAnswer, BusOptions, BusPlace, BusServices, Caller, Error, OwnerAsk};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::coordinator::{LEADER_WAIT, LOOK_EVERY};
use crate::engine::BusAt;
use crate::http::App;
use crate::link::following::Sent;

/// The longest that a call on a bus of its own waits for its answer. A bus that is silent for longer counts as away.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(500);

const CONNECT: &str = "connect to the bus";

/// Connects once. It blocks.
type Connect = Arc<dyn Fn() -> Result<Arc<dyn Bus>, EngineError> + Send + Sync>;

/// The bus as it was found at the start.
pub(crate) enum Found {
    /// None is wanted.
    Off,
    /// The engine could carry one, but does not let us: nobody asked for it, so this is no reason to stop.
    Refused(String),
    Here(Arc<dyn Bus>),
    /// It does not answer yet.
    Away(Connect, String),
}

impl Found {
    /// Looks for the bus, once. Blocks.
    ///
    /// # Errors
    /// When somebody asked for this bus and it does not let us in.
    pub(crate) fn look(at: &BusAt, engine: Option<&Arc<dyn Shared>>) -> Result<Self, EngineError> {
        let (connect, is_asked_for): (Connect, bool) = match (at, engine) {
            (BusAt::Off, _) | (BusAt::Engine, None) => return Ok(Self::Off),
            (BusAt::Engine, Some(engine)) => {
                let engine = Arc::clone(engine);
                (Arc::new(move || engine.bus()?.ok_or_else(no_bus)), false)
            }
            (BusAt::Server(url), _) => {
                let url = url.clone();
                (Arc::new(move || url.connect_bus(CALL_TIMEOUT)), true)
            }
        };
        match connect() {
            Ok(bus) => {
                warn_of(&*bus);
                Ok(Self::Here(bus))
            }
            Err(error) if error.retryable => Ok(Self::Away(connect, error.source.to_string())),
            Err(error) if is_asked_for => Err(error),
            Err(error) => {
                tracing::warn!(%error, "the engine cannot carry a bus for this user; workers are served over HTTP only");
                Ok(Self::Refused(error.source.to_string()))
            }
        }
    }

    /// Whether tasks are offered over a bus.
    pub(crate) fn is_wanted(&self) -> bool {
        match self {
            Self::Off | Self::Refused(_) => false,
            Self::Here(_) | Self::Away(..) => true,
        }
    }

    /// Where it is, for the start; nothing if nobody wants one.
    pub(crate) fn line(&self) -> Option<String> {
        match self {
            Self::Off => None,
            Self::Refused(why) => Some(format!("none; the engine refuses it: {why}")),
            Self::Here(bus) => Some(bus.place()),
            Self::Away(_, why) => Some(format!("does not answer yet, workers are served over HTTP: {why}")),
        }
    }
}

/// An engine that is asked for a bus only if it has one.
fn no_bus() -> EngineError {
    EngineError {
        operation: CONNECT.to_owned(),
        retryable: false,
        source: std::io::Error::other("this engine carries no bus").into(),
    }
}

fn warn_of(bus: &dyn Bus) {
    for warning in bus.warnings() {
        tracing::warn!(bus = bus.place(), "{warning}");
    }
}

/// Who this process is on the bus.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) node: String,
    pub(crate) incarnation: String,
    pub(crate) address: String,
    pub(crate) options: BusOptions,
}

/// The bus while a process runs.
#[derive(Default)]
pub(crate) struct OnBus {
    services: OnceLock<BusServices>,
    /// Why there are none yet, if there should be.
    why: Mutex<Option<String>>,
    connecting: Mutex<Option<JoinHandle<()>>>,
    ends: CancellationToken,
}

impl fmt::Debug for OnBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnBus").field("why", &*lock(&self.why)).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OnBus {
    /// Why the bus is not used, if it should be.
    pub(crate) fn why(&self) -> Option<String> {
        let here = self.services.get().and_then(BusServices::why);
        here.map(|why| format!("the bus does not answer: {why}")).or_else(|| lock(&self.why).clone())
    }

    /// Ends the services, while the leader can still be asked. A bus that is away is not waited for.
    pub(crate) async fn stop(&self) {
        self.ends.cancel();
        let connecting = lock(&self.connecting).take();
        if let Some(connecting) = connecting {
            // A panic in it was reported.
            let _ = connecting.await;
        }
        if let Some(services) = self.services.get() {
            services.stop().await;
        }
    }
}

/// Uses the bus from now on: at once, or when it answers.
pub(crate) fn attach(app: &Arc<App>, found: Found, identity: Identity) {
    let (connect, why) = match found {
        Found::Off | Found::Refused(_) => return,
        Found::Here(bus) => return serve(app, bus, identity),
        Found::Away(connect, why) => (connect, why),
    };
    *lock(&app.bus.why) = Some(format!("the bus does not answer: {why}"));
    let here = Arc::clone(app);
    let task = tokio::spawn(async move {
        tokio::select! {
            bus = connected(&here, &connect) => {
                warn_of(&*bus);
                serve(&here, bus, identity);
            }
            () = here.bus.ends.cancelled() => {}
        }
    });
    *lock(&app.bus.connecting) = Some(task);
}

/// Tries until the bus lets us in.
async fn connected(app: &App, connect: &Connect) -> Arc<dyn Bus> {
    let throttle = LogThrottle::new(
        "the bus does not answer: trying again, and workers are served over HTTP",
        "the bus answers",
    );
    let began = Instant::now();
    loop {
        let connect = Arc::clone(connect);
        let why = match tokio::task::spawn_blocking(move || connect()).await {
            Ok(Ok(bus)) => {
                throttle.succeeded(began.elapsed(), CONNECT);
                return bus;
            }
            Ok(Err(error)) => error.source.to_string(),
            Err(error) => error.to_string(),
        };
        throttle.failed(began.elapsed(), CONNECT, &why);
        *lock(&app.bus.why) = Some(format!("the bus does not answer: {why}"));
        tokio::time::sleep(PAUSE).await;
    }
}

fn serve(app: &Arc<App>, bus: Arc<dyn Bus>, identity: Identity) {
    let place = bus.place();
    let why = match start(app, bus, identity) {
        Ok(services) => {
            tracing::info!(bus = place, "the bus is used from now on");
            // Set here and nowhere else.
            let _ = app.bus.services.set(services);
            None
        }
        Err(why) => {
            tracing::error!(bus = place, why, "the bus cannot be used");
            Some(format!("the bus cannot be used: {why}"))
        }
    };
    *lock(&app.bus.why) = why;
}

fn start(app: &Arc<App>, bus: Arc<dyn Bus>, identity: Identity) -> Result<BusServices, String> {
    let Identity { node, incarnation, address, options } = identity;
    let node = Name::new(&node).map_err(|why| format!("this node is called {node:?}: {why}"))?;
    let runtime = Handle::current();
    let (coordinator, leads, asks) = (&app.coordinator, app.coordinator.clone(), Arc::downgrade(app));
    let services = BusServices::start(BusPlace {
        bus,
        options,
        journal: coordinator.journal_id(),
        node,
        incarnation,
        address,
        output: coordinator.output(runtime.clone()),
        stats: coordinator.shared_stats(),
        clock: Arc::new(SystemClock),
        leads: Arc::new(move || leads.decides().map(Cow::into_owned)),
        ask: Box::new(move |ask| {
            let app = Weak::clone(&asks);
            Box::pin(async move {
                match app.upgrade() {
                    Some(app) => ask_leader(&app, ask).await,
                    None => Err(Error::Stopping),
                }
            })
        }),
        runtime,
    });
    services.map_err(|failure| failure.to_string())
}

/// Asks the leader in the name of this node: here if it leads, else over the node link. It waits a while for a leader; an
/// answer `Stopping` says that there was none, and that nothing was changed.
pub(crate) async fn ask_leader(app: &Arc<App>, ask: OwnerAsk) -> Result<BusAnswer, Error> {
    let give_up = Instant::now() + LEADER_WAIT;
    let ask = || Ask::Owner(Box::new(ask.clone()));
    loop {
        let answered = match (app.coordinator.decides(), app.coordinator.member()) {
            (Some(node), _) => node.ask(&Caller::default(), ask()).await,
            (None, Some(member)) => match member.leadership().leader() {
                Some((leader, epoch)) if !member.is_me(&leader) => {
                    let question = Question { within: Some(LEADER_WAIT), ..Question::new(ask()) };
                    answered(app.leader_links.ask(app, &leader, epoch, question).await)
                }
                Some(_) | None => Err(Error::Stopping),
            },
            (None, None) => return Err(Error::Stopping),
        };
        match answered {
            Ok(Answer::Bus(answer)) => return Ok(*answer),
            Ok(_) => return Err(Error::Refused(Refusal::Internal)),
            // Nothing was changed, and another may lead by now.
            Err(Error::Stopping) => {}
            Err(error) => return Err(error),
        }
        let Some(member) = app.coordinator.member() else { return Err(Error::Stopping) };
        if app.stop.is_cancelled() || Instant::now() >= give_up {
            return Err(Error::Stopping);
        }
        let mut roles = member.roles();
        roles.mark_unchanged();
        let _ = tokio::time::timeout(LOOK_EVERY, roles.changed()).await;
    }
}

/// What came of an ask over the link; `Stopping` if it was certainly not decided.
fn answered(sent: Sent) -> Result<Answer, Error> {
    match sent {
        Sent::Answered(answered) => match answered.reply {
            Reply::Done(done) => done,
            Reply::NotTaken => Err(Error::Stopping),
            Reply::Limited(_) | Reply::Behind { .. } => Err(Error::Overloaded),
            Reply::Cancelled => Err(Error::OutcomeUnknown),
        },
        // A leader without the link cannot be asked: nodes own nothing then.
        Sent::NotTaken | Sent::NoLink => Err(Error::Stopping),
        Sent::Full(_) | Sent::Overloaded => Err(Error::Overloaded),
        Sent::Unreadable | Sent::Unknown => Err(Error::OutcomeUnknown),
    }
}

#[cfg(test)]
mod tests;
