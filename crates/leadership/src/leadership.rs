//! `Leadership`, the handle of a candidate: stands for leader, keeps the lease, reports the leader.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use orchestrix_engine::{Clock, LogThrottle, Register, SystemClock};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::driver::{Driver, roster_of, run_duties};
use crate::duty::Duty;
use crate::election::{Candidate, Peer, Stands, Timing};
use crate::elector::Elector;
use crate::event::{LeadershipEvent, Phase};
use crate::options::{Options, OptionsError, Policy};
use crate::roster::Presence;

/// How many events a slow subscriber may lag behind.
const EVENTS_MAX: usize = 256;
/// More changes of leader than this in [`FLAPPING_WINDOW`] are worth a warning.
pub(crate) const FLAPPING_CHANGES: usize = 5;
pub(crate) const FLAPPING_WINDOW: Duration = Duration::from_secs(300);

/// A candidate, and the leader while it holds the leader lease. Cheap to clone; [`Leadership::stop`] releases the lease,
/// and so does dropping the last clone, without waiting for it.
#[derive(Clone)]
pub struct Leadership {
    shared: Arc<Shared>,
    commands: Sender<Command>,
}

pub(crate) struct Shared {
    pub(crate) me: Candidate,
    pub(crate) options: Options,
    pub(crate) clock: Arc<dyn Clock>,
    status: Mutex<Status>,
    /// Throttles log lines about a register that refuses or does not answer.
    pub(crate) throttle: LogThrottle,
    events: broadcast::Sender<LeadershipEvent>,
    /// Another live node with this node's name, once detected.
    pub(crate) namesake: watch::Sender<Option<Candidate>>,
    /// The last proof of health, in microseconds of the boot clock.
    pub(crate) proved_us: AtomicU64,
    /// The last sign of life of the leader, in microseconds of the boot clock; 0 if there was none.
    leader_seen_us: AtomicU64,
    /// A healthy leader renews within this time.
    late_after: Duration,
}

/// What this node knows now.
#[derive(Clone, Debug)]
pub struct Status {
    /// The epoch of the held lease, and until when on the boot clock this node may act.
    pub(crate) lease: Option<(u64, Duration)>,
    /// The last known leader, and its epoch.
    pub leader: Option<(Candidate, u64)>,
    pub phase: Phase,
    /// The ids of the present nodes, lowest first.
    pub present: Vec<String>,
    /// All nodes ever seen, by id.
    pub peers: Vec<Peer>,
    /// The last listing of the presence cells did not fail.
    pub listed: bool,
    /// This node's own note.
    pub(crate) note: String,
    /// The latest changes of leader, on the boot clock.
    pub(crate) changes: VecDeque<Duration>,
    /// Why the register fails, while it does.
    pub register_error: Option<String>,
    observing_since: Duration,
}

pub(crate) enum Command {
    Stop(oneshot::Sender<()>),
    Ensure {
        force: bool,
        desired: Option<String>,
        asker: Option<String>,
        reply: oneshot::Sender<Result<(), EnsureError>>,
    },
    RaiseEpoch(u64),
    LetGo(u64),
}

/// Why leadership was not transferred.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnsureError {
    #[error("this node is not the leader; ask {0}")]
    NotLeader(String),
    #[error("{0} is not present")]
    Absent(String),
    #[error("the leader has had its mandate for less than min_epoch_duration; use force")]
    Mandate,
    #[error("{name} is {lag} events behind; wait for it, or use force")]
    Behind { name: String, lag: u64 },
    #[error("leadership has stopped")]
    Stopped,
}

impl std::fmt::Debug for Leadership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leadership").field("me", &self.shared.me).field("status", &self.status()).finish()
    }
}

/// A new id: the current time, so that older ids are lower, and a random suffix.
#[must_use]
pub fn worker_id(clock: &dyn Clock) -> String {
    let mut bytes = [0; 8];
    // Without random numbers the time alone must do: two ids collide only if made in one millisecond.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    let mut rest = u64::from_le_bytes(bytes);
    let digit = |n: u64| char::from_digit(u32::try_from(n % 36).unwrap_or(0), 36).unwrap_or('0');
    let suffix: String = std::iter::repeat_with(|| {
        let digit = digit(rest);
        rest /= 36;
        digit
    })
    .take(7)
    .collect();
    format!("worker-{}-{suffix}", clock.wall().as_millis())
}

impl Leadership {
    /// Stands for the leader lease in cell `key` of a register. Duties run on the current Tokio runtime.
    ///
    /// # Errors
    /// Invalid options.
    pub fn start(
        register: Arc<dyn Register>,
        key: &str,
        me: Candidate,
        options: Options,
        duties: Vec<Arc<dyn Duty>>,
    ) -> Result<Self, OptionsError> {
        Self::start_with(register, key, me, options, duties, Arc::new(SystemClock))
    }

    /// The same, with another clock.
    ///
    /// # Errors
    /// Invalid options.
    pub fn start_with(
        register: Arc<dyn Register>,
        key: &str,
        me: Candidate,
        options: Options,
        duties: Vec<Arc<dyn Duty>>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OptionsError> {
        options.validate()?;
        let roster = roster_of(&options);
        if roster.skip_cold_start && matches!(options.policy, Policy::Roster(_)) {
            tracing::warn!("cold start skipped: leadership may move between nodes that start together");
        }
        let presence = Presence::new(me.name.clone(), roster);
        let status = Status {
            lease: None,
            leader: None,
            phase: presence.phase(),
            present: vec![me.name.clone()],
            peers: Vec::new(),
            listed: false,
            note: String::new(),
            changes: VecDeque::new(),
            register_error: None,
            observing_since: clock.boot(),
        };
        let shared = Arc::new(Shared {
            me: me.clone(),
            clock,
            status: Mutex::new(status),
            throttle: LogThrottle::new(
                "leadership register unavailable",
                "leadership register available again",
            ),
            events: broadcast::Sender::new(EVENTS_MAX),
            namesake: watch::Sender::new(None),
            proved_us: AtomicU64::new(0),
            leader_seen_us: AtomicU64::new(0),
            late_after: options.leader_renew * 5 / 4 + register.poll_interval(),
            options: options.clone(),
        });
        let timing = Timing {
            ttl: options.leader_ttl,
            renew: options.leader_renew,
            poll_interval: register.poll_interval(),
            needs_proof: options.needs_proof,
        };
        let mut elector = Elector::new(me, timing);
        elector.set_stands(Stands::No);
        let (commands, asked) = channel();
        let (term_sender, term_changes) = mpsc::unbounded_channel();
        let no_thread = |error: std::io::Error| OptionsError::from(format!("cannot start a thread: {error}"));
        let driver = Driver::new(Arc::clone(&shared), register, key, elector, presence, term_sender);
        let driver = driver.map_err(no_thread)?;
        tokio::spawn(run_duties(Arc::clone(&shared), duties, term_changes));
        std::thread::Builder::new()
            .name("orchestrix-leader".to_owned())
            .spawn(move || driver.run(&asked))
            .map_err(no_thread)?;
        Ok(Self { shared, commands })
    }

    /// Whether this node leads now, on a clock that runs while the machine is suspended.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.token().is_some()
    }

    /// The fencing token that this node may use now.
    #[must_use]
    pub fn token(&self) -> Option<u64> {
        self.shared.token()
    }

    /// The last known leader, with its fencing token.
    #[must_use]
    pub fn leader(&self) -> Option<(Candidate, u64)> {
        self.shared.lock().leader.clone()
    }

    #[must_use]
    pub fn status(&self) -> Status {
        let register_error = self.shared.throttle.reason();
        Status { register_error, ..self.shared.lock().clone() }
    }

    /// Subscribes to events from now on.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<LeadershipEvent> {
        self.shared.events.subscribe()
    }

    /// Waits until another live node is found to have this node's name. This node has then released its lease and
    /// does not stand any more.
    pub async fn namesake(&self) -> Candidate {
        let mut namesake = self.shared.namesake.subscribe();
        loop {
            if let Some(other) = namesake.borrow_and_update().clone() {
                return other;
            }
            // The sender is in `self`, so the wait ends only with a change.
            let _ = namesake.changed().await;
        }
    }

    /// Sets the note that other nodes see, from the next heartbeat on.
    pub fn set_note(&self, note: String) {
        self.shared.lock().note = note;
    }

    /// Records that this node did something that only a healthy leader can do.
    pub fn prove(&self) {
        let now = self.shared.clock.boot();
        self.shared.proved_us.fetch_max(u64::try_from(now.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Records a sign of life of the leader that did not come through the register.
    pub fn saw_leader(&self) {
        self.shared.saw_leader(self.shared.clock.boot());
    }

    /// The time since the leader's last sign of life; zero for this node itself, `None` without a leader.
    #[must_use]
    pub fn leader_age(&self) -> Option<Duration> {
        if self.is_leader() {
            return Some(Duration::ZERO);
        }
        self.leader()?;
        let seen = Duration::from_micros(self.shared.leader_seen_us.load(Relaxed));
        (!seen.is_zero()).then(|| self.age_of(seen))
    }

    /// How long a leader lease lasts without renewal.
    #[must_use]
    pub fn leader_ttl(&self) -> Duration {
        self.shared.options.leader_ttl
    }

    /// The time since `seen`, on the boot clock.
    #[must_use]
    pub fn age_of(&self, seen: Duration) -> Duration {
        self.shared.clock.boot().saturating_sub(seen)
    }

    /// No token up to this one is ever used again.
    pub fn raise_epoch(&self, seen: u64) {
        // A stopped thread needs no epochs.
        let _ = self.commands.send(Command::RaiseEpoch(seen));
    }

    /// Releases the lease of an epoch, if this node still holds it, and lets other nodes try first.
    pub fn let_go(&self, epoch: u64) {
        // A stopped thread holds no lease.
        let _ = self.commands.send(Command::LetGo(epoch));
    }

    /// Transfers leadership to `desired`, or releases it so that there is an election.
    ///
    /// # Errors
    /// When this node does not lead, `desired` is not present, or the mandate is too young and `force` is not given.
    pub async fn ensure_coordinator(&self, force: bool, desired: Option<&str>) -> Result<(), EnsureError> {
        self.ensure_coordinator_for(None, force, desired).await
    }

    /// The same; the [`Term`](crate::Term) of the next leader names who asked for it.
    ///
    /// # Errors
    /// As for [`Leadership::ensure_coordinator`].
    pub async fn ensure_coordinator_for(
        &self,
        asker: Option<&str>,
        force: bool,
        desired: Option<&str>,
    ) -> Result<(), EnsureError> {
        let (reply, result) = oneshot::channel();
        let (desired, asker) = (desired.map(str::to_owned), asker.map(str::to_owned));
        let sent = self.commands.send(Command::Ensure { force, desired, asker, reply });
        sent.map_err(|_| EnsureError::Stopped)?;
        result.await.unwrap_or(Err(EnsureError::Stopped))
    }

    /// Ends every duty, then releases the lease. Waits for a register that does not answer at most as long as the
    /// lease lasts.
    pub async fn stop(&self) {
        let (reply, result) = oneshot::channel();
        if self.commands.send(Command::Stop(reply)).is_ok() {
            // Another caller may have stopped the thread meanwhile.
            let _ = tokio::time::timeout(self.shared.options.leader_ttl, result).await;
        }
    }

    /// What keeps this candidate, or the cluster, from having a working leader; empty when all is well.
    #[must_use]
    pub fn why(&self) -> Vec<String> {
        let (status, now) = (self.status(), self.shared.clock.boot());
        let mut found = Vec::new();
        let options = &self.shared.options;
        if let Some(other) = &*self.shared.namesake.borrow() {
            let Candidate { name, address, .. } = other;
            found.push(format!("this node has stopped: node name {name} is in use at {address}"));
        }
        if status.leader.is_none() {
            let reason = if !options.enable_coordinator {
                "this node does not stand: enable_coordinator is false".to_owned()
            } else if let Some(error) = &status.register_error {
                format!("the register refuses or does not answer: {error}")
            } else if status.phase == Phase::Observing {
                "the cold start is not over: still observing other nodes".to_owned()
            } else {
                format!("no present node has become leader yet: {}", status.present.join(", "))
            };
            found.push(format!("no leader: {reason}"));
        }
        if let (Some(_), Some(error)) = (&status.leader, &status.register_error) {
            found.push(format!(
                "the leader may have changed: the register refuses or does not answer: {error}"
            ));
        }
        if let (Some((leader, _)), Some(age)) = (&status.leader, self.leader_age())
            && age > self.shared.late_after
        {
            found.push(format!(
                "the last sign of the leader {} is {} old, and it should renew every {}: it may be gone, and is \
                 replaced when its {} are over",
                leader.name,
                seconds(age),
                seconds(options.leader_renew),
                seconds(options.leader_ttl)
            ));
        }
        if status.changes.len() > FLAPPING_CHANGES {
            found.push(format!(
                "the leader changed {} times in {FLAPPING_WINDOW:?}: leader_ttl or worker_timeout may be too short, or \
                 the network or a node is not well",
                status.changes.len()
            ));
        }
        let observed = now.saturating_sub(status.observing_since);
        if status.phase == Phase::Observing && observed > Duration::from_secs(20) {
            found.push(format!(
                "the cold start takes long, {} so far: cold_start_observation_window may be shorter",
                seconds(observed)
            ));
        }
        if let Some((epoch, _)) = status.lease
            && !matches!(status.phase, Phase::Ready)
        {
            found.push(format!(
                "this node is the leader (token {epoch}) and is preparing; then its duties begin"
            ));
        }
        found
    }
}

/// A duration to a tenth of a second: `30s`, `3.3s`.
fn seconds(time: Duration) -> String {
    let text = format!("{:.1}", time.as_secs_f64());
    format!("{}s", text.strip_suffix(".0").unwrap_or(&text))
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn token(&self) -> Option<u64> {
        let lease = self.lock().lease;
        lease.filter(|(_, until)| self.clock.boot() < *until).map(|(epoch, _)| epoch)
    }

    pub(crate) fn saw_leader(&self, at: Duration) {
        self.leader_seen_us.fetch_max(u64::try_from(at.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    pub(crate) fn wall_ms_in(&self, time: Duration) -> u64 {
        u64::try_from((self.clock.wall() + time).as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn emit(&self, event: LeadershipEvent) {
        // There may be no subscriber.
        let _ = self.events.send(event);
    }
}
