//! A bus in memory: the model of the others, for tests and simulated worlds.
//!
//! It is deterministic: its time is the clock that it is given. A test says what happens to a call ([`MemoryBus::fail_next`]),
//! and takes the server back to an earlier moment.

mod calls;
mod publisher;
mod server;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::server::State;
use crate::bus::{Channel, Channels, Entry, EntryId, Seen, Taken, channels_of, foreign};
use crate::{Cause, Clock, Error, JournalId};

const PLACE: &str = "memory";
/// What other buses call the key with the claims.
const CLAIMS: &str = "its claims";

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server says no.
    Refuse,
    /// The server never hears of it.
    LoseRequest,
    /// The server does it, and the caller does not hear of it.
    LoseReply,
    /// The caller gives up, and the server does it when [`MemoryBus::resume`] is called.
    Stall,
}

/// A connection to a bus in memory.
pub struct MemoryBus {
    shared: Arc<Shared>,
    channels: Channels,
    own: Arc<Own>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    world: Mutex<World>,
}

#[derive(Default)]
struct World {
    state: State,
    /// Calls that stall.
    held: Vec<Held>,
}

type Held = Box<dyn FnOnce(&mut State, u64) + Send>;

/// What belongs to one connection.
#[derive(Default)]
struct Own {
    seen: Mutex<Seen>,
    faults: Mutex<Faults>,
}

#[derive(Default)]
struct Faults {
    calls: u64,
    by_call: BTreeMap<u64, Fault>,
    always: Option<Fault>,
}

/// What a server had at one time.
#[derive(Clone, Debug)]
pub struct Moment(State);

/// Why there is no reply.
#[derive(Clone, Copy)]
enum Failure {
    Refused,
    /// And so will be all that is sent with it.
    Lost(Fault),
}

impl MemoryBus {
    /// A new server, and the first connection to it.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let shared = Arc::new(Shared { clock, world: Mutex::default() });
        Self { shared, channels: Channels::default(), own: Arc::default() }
    }

    /// Another connection to the same server, in the same domain.
    #[must_use]
    pub fn connect(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), channels: self.channels.clone(), own: Arc::default() }
    }

    /// # Errors
    /// When the name cannot be part of the name of a channel.
    pub fn in_domain(self, domain: &str) -> Result<Self, Error> {
        Ok(Self { channels: channels_of(domain)?, own: Arc::default(), ..self })
    }

    /// What happens to the next call over this connection. Each offer and each message of a call counts as one; what
    /// follows it in the same call shares its fate.
    pub fn fail_next(&self, fault: Fault) {
        self.fail_after(0, fault);
    }

    /// What happens to the call after so many.
    pub fn fail_after(&self, calls: u64, fault: Fault) {
        let mut faults = lock(&self.own.faults);
        let number = faults.calls + calls;
        faults.by_call.insert(number, fault);
    }

    /// What happens to all calls over this connection from now on.
    pub fn fail_always(&self, fault: Option<Fault>) {
        lock(&self.own.faults).always = fault;
    }

    /// The server does what it was asked to while it stalled, in order.
    pub fn resume(&self) {
        let now = self.now();
        let mut world = self.world();
        for act in std::mem::take(&mut world.held) {
            act(&mut world.state, now);
        }
    }

    #[must_use]
    pub fn moment(&self) -> Moment {
        Moment(self.world().state.clone())
    }

    /// The server is again what it was: it restarted from an older file.
    pub fn roll_back(&self, to: &Moment) {
        self.world().state = to.0.clone();
    }

    /// Adds an entry with any fields, as a program that keeps to nothing.
    pub fn send_raw(&self, channel: &Channel, fields: &[(&str, &[u8])]) -> Option<EntryId> {
        let owned = fields.iter().map(|(field, value)| (field.as_bytes().to_vec(), value.to_vec()));
        let (now, name) = (self.now(), self.channels.name(channel));
        self.world().state.send(&name, owned.collect(), now)
    }

    /// The names of all channels of all domains.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.world().state.names()
    }

    fn now(&self) -> u64 {
        u64::try_from(self.shared.clock.wall().as_millis()).unwrap_or(u64::MAX)
    }

    fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.shared.world)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.own.seen)
    }

    /// What happens to this call.
    fn fate(&self) -> Option<Fault> {
        let mut faults = lock(&self.own.faults);
        let number = faults.calls;
        faults.calls += 1;
        faults.by_call.remove(&number).or(faults.always)
    }

    fn call<T: 'static>(
        &self,
        act: impl FnOnce(&mut State, u64) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        self.call_so(self.fate(), act)
    }

    fn call_so<T: 'static>(
        &self,
        fate: Option<Fault>,
        act: impl FnOnce(&mut State, u64) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let now = self.now();
        let mut world = self.world();
        let Some(fault) = fate else { return Ok(act(&mut world.state, now)) };
        match fault {
            Fault::Refuse => return Err(Failure::Refused),
            Fault::LoseRequest => {}
            Fault::LoseReply => drop(act(&mut world.state, now)),
            Fault::Stall => world.held.push(Box::new(move |state, now| drop(act(state, now)))),
        }
        Err(Failure::Lost(fault))
    }

    /// A call that may be repeated.
    fn get<T: 'static>(
        &self,
        doing: &str,
        act: impl FnOnce(&mut State, u64) -> T + Send + 'static,
    ) -> Result<T, Error> {
        self.call(act).map_err(|failure| error(doing, failure))
    }

    fn taken(&self, doing: &str, taken: Result<Option<Vec<Entry>>, Failure>) -> Result<Taken, Error> {
        match taken {
            Ok(Some(entries)) => Ok(Taken::Entries(entries)),
            Ok(None) => {
                self.seen().forgotten();
                Ok(Taken::RolledBack)
            }
            Err(Failure::Lost(_)) => Ok(Taken::Unknown),
            Err(Failure::Refused) => Err(error(doing, Failure::Refused)),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn error(doing: &str, failure: Failure) -> Error {
    let what = match failure {
        Failure::Refused => "refused",
        Failure::Lost(_) => "no answer",
    };
    let source = Cause::Remote { place: PLACE.to_owned(), what: what.to_owned() };
    Error { operation: doing.to_owned(), retryable: true, source }
}

fn is_foreign(doing: &str, found: JournalId, own: JournalId) -> Error {
    foreign(doing, PLACE, &found.to_string(), own, CLAIMS)
}

impl fmt::Debug for MemoryBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBus").field("channels", &self.channels).finish_non_exhaustive()
    }
}
