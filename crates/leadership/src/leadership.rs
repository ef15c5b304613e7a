//! `Leadership`, the handle: seeks an office, keeps it, says who has it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use orchestrix_engine::{Clock, Register, SystemClock, Trouble};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::driver::{Driver, roster_of, run_duties};
use crate::duty::Duty;
use crate::election::{Candidate, Peer, Stands, Timing};
use crate::elector::Elector;
use crate::event::{LeadershipEvent, Phase};
use crate::options::{Options, OptionsError, Policy};
use crate::roster::Presence;

/// Events that a slow watcher may be behind.
const EVENTS_MAX: usize = 256;
/// More changes of leader than this in [`RESTLESS_TIME`] are worth a warning.
pub(crate) const RESTLESS_CHANGES: usize = 5;
pub(crate) const RESTLESS_TIME: Duration = Duration::from_secs(300);

/// A candidate for an office, and the leader when it has it. Cheap to clone; [`Leadership::stop`] gives the office back,
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
    /// The register refuses, or does not answer.
    pub(crate) trouble: Trouble,
    events: broadcast::Sender<LeadershipEvent>,
    /// Who else has this one's name, once that has shown.
    pub(crate) namesake: watch::Sender<Option<Candidate>>,
    /// Microseconds of the boot clock when something was last proved.
    pub(crate) proved_us: AtomicU64,
    /// The same for the last sign of whoever leads; 0 if there was none.
    leader_seen_us: AtomicU64,
    /// A leader that is well is seen to renew within this time.
    late_after: Duration,
}

/// What is known now.
#[derive(Clone, Debug)]
pub struct Status {
    /// The office that this one has, and until when on the boot clock it may act.
    pub(crate) office: Option<(u64, Duration)>,
    /// Who was last seen in office, and the epoch.
    pub leader: Option<(Candidate, u64)>,
    pub phase: Phase,
    /// The ids of those who are present, lowest first.
    pub present: Vec<String>,
    /// Everybody who was ever seen, by id.
    pub peers: Vec<Peer>,
    /// What this one says of itself.
    pub(crate) note: String,
    /// When the leader changed lately, on the boot clock.
    pub(crate) changes: VecDeque<Duration>,
    /// Why the register did not answer, if it did not.
    pub trouble: Option<String>,
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

/// Why the office was not passed on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnsureError {
    #[error("this one does not lead; ask {0}")]
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

/// A new id: the time of its making, so that older ones are lower, and chance.
#[must_use]
pub fn worker_id(clock: &dyn Clock) -> String {
    let mut bytes = [0; 8];
    // Without random numbers the time alone has to do; two ids would have to be made in one millisecond.
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
    /// Seeks the office `key` of a register. Duties run on the runtime that this is called on.
    ///
    /// # Errors
    /// Options that make no sense.
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
    /// Options that make no sense.
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
            tracing::warn!("the cold start is skipped: two that start together may change places");
        }
        let presence = Presence::new(me.name.clone(), roster);
        let status = Status {
            office: None,
            leader: None,
            phase: presence.phase(),
            present: vec![me.name.clone()],
            peers: Vec::new(),
            note: String::new(),
            changes: VecDeque::new(),
            trouble: None,
            observing_since: clock.boot(),
        };
        let shared = Arc::new(Shared {
            me: me.clone(),
            clock,
            status: Mutex::new(status),
            trouble: Trouble::new("the register does not answer", "the register answers again"),
            events: broadcast::Sender::new(EVENTS_MAX),
            namesake: watch::Sender::new(None),
            proved_us: AtomicU64::new(0),
            leader_seen_us: AtomicU64::new(0),
            late_after: options.leader_renew * 5 / 4 + register.look_every(),
            options: options.clone(),
        });
        let timing = Timing {
            ttl: options.leader_ttl,
            renew: options.leader_renew,
            look_every: register.look_every(),
            needs_proof: options.needs_proof,
        };
        let mut elector = Elector::new(me, timing);
        elector.set_stands(Stands::No);
        let (commands, asked) = channel();
        let (turns, heard) = mpsc::unbounded_channel();
        let no_thread = |error: std::io::Error| OptionsError::from(format!("cannot start a thread: {error}"));
        let driver = Driver::new(Arc::clone(&shared), register, key, elector, presence, turns);
        let driver = driver.map_err(no_thread)?;
        tokio::spawn(run_duties(Arc::clone(&shared), duties, heard));
        std::thread::Builder::new()
            .name("orchestrix-leader".to_owned())
            .spawn(move || driver.run(&asked))
            .map_err(no_thread)?;
        Ok(Self { shared, commands })
    }

    /// Whether this one leads at this moment, on a clock that goes on while the machine sleeps.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.token().is_some()
    }

    /// The fencing token that may be used at this moment.
    #[must_use]
    pub fn token(&self) -> Option<u64> {
        self.shared.token()
    }

    /// Who leads, as far as this one has seen, with the token.
    #[must_use]
    pub fn leader(&self) -> Option<(Candidate, u64)> {
        self.shared.lock().leader.clone()
    }

    #[must_use]
    pub fn status(&self) -> Status {
        let trouble = self.shared.trouble.reason();
        Status { trouble, ..self.shared.lock().clone() }
    }

    /// What happens from now on.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<LeadershipEvent> {
        self.shared.events.subscribe()
    }

    /// Waits until another that is alive turns out to have this one's name. This one has then given up its office, and
    /// stands no more.
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

    /// What this one says of itself to the others, from its next heartbeat on.
    pub fn set_note(&self, note: String) {
        self.shared.lock().note = note;
    }

    /// Something was done that only a leader that is well can do.
    pub fn prove(&self) {
        let now = self.shared.clock.boot();
        self.shared.proved_us.fetch_max(u64::try_from(now.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Whoever leads has just shown that it is there, elsewhere than in the register.
    pub fn saw_leader(&self) {
        self.shared.saw_leader(self.shared.clock.boot());
    }

    /// How long ago the leader last showed that it is there: nothing for this one itself. `None` if nobody leads.
    #[must_use]
    pub fn leader_age(&self) -> Option<Duration> {
        if self.is_leader() {
            return Some(Duration::ZERO);
        }
        self.leader()?;
        let seen = Duration::from_micros(self.shared.leader_seen_us.load(Relaxed));
        (!seen.is_zero()).then(|| self.age_of(seen))
    }

    /// How long an office lasts that is not renewed.
    #[must_use]
    pub fn leader_ttl(&self) -> Duration {
        self.shared.options.leader_ttl
    }

    /// How long ago something was, on the boot clock.
    #[must_use]
    pub fn age_of(&self, seen: Duration) -> Duration {
        self.shared.clock.boot().saturating_sub(seen)
    }

    /// No token up to this one is ever used again.
    pub fn raise_epoch(&self, seen: u64) {
        // A thread that is gone needs no epochs.
        let _ = self.commands.send(Command::RaiseEpoch(seen));
    }

    /// Gives back the office of an epoch, if this one still has it, and lets others try first.
    pub fn let_go(&self, epoch: u64) {
        // A thread that is gone has no office.
        let _ = self.commands.send(Command::LetGo(epoch));
    }

    /// Passes the office to `desired`, or gives it back so that there is an election.
    ///
    /// # Errors
    /// When this one does not lead, `desired` is not present, or the mandate is too young and `force` is not given.
    pub async fn ensure_coordinator(&self, force: bool, desired: Option<&str>) -> Result<(), EnsureError> {
        self.ensure_coordinator_for(None, force, desired).await
    }

    /// The same; whoever leads next hears in its [`Term`](crate::Term) who asked for it.
    ///
    /// # Errors
    /// As for [`Leadership::ensure_coordinator`].
    pub async fn ensure_coordinator_for(
        &self,
        asker: Option<&str>,
        force: bool,
        desired: Option<&str>,
    ) -> Result<(), EnsureError> {
        let (reply, heard) = oneshot::channel();
        let (desired, asker) = (desired.map(str::to_owned), asker.map(str::to_owned));
        let sent = self.commands.send(Command::Ensure { force, desired, asker, reply });
        sent.map_err(|_| EnsureError::Stopped)?;
        heard.await.unwrap_or(Err(EnsureError::Stopped))
    }

    /// Ends every duty, then gives the office back. A register that does not answer is not waited for longer than the
    /// office would last.
    pub async fn stop(&self) {
        let (reply, heard) = oneshot::channel();
        if self.commands.send(Command::Stop(reply)).is_ok() {
            // The thread may have been stopped by somebody else meanwhile.
            let _ = tokio::time::timeout(self.shared.options.leader_ttl, heard).await;
        }
    }

    /// What keeps this candidate, or the cluster, from having a leader that works; empty when all is well.
    #[must_use]
    pub fn why(&self) -> Vec<String> {
        let (status, now) = (self.status(), self.shared.clock.boot());
        let mut found = Vec::new();
        let options = &self.shared.options;
        if let Some(other) = &*self.shared.namesake.borrow() {
            let Candidate { name, address, .. } = other;
            found.push(format!("this one has given up: another named {name} is alive, at {address}"));
        }
        if status.leader.is_none() {
            let reason = if !options.enable_coordinator {
                "this one does not stand: enable_coordinator is false".to_owned()
            } else if let Some(trouble) = &status.trouble {
                format!("the register refuses or does not answer: {trouble}")
            } else if status.phase == Phase::Observing {
                "the cold start is not over: the others are being watched".to_owned()
            } else {
                format!("none of those present has taken the office yet: {}", status.present.join(", "))
            };
            found.push(format!("no leader: {reason}"));
        }
        if let (Some(_), Some(trouble)) = (&status.leader, &status.trouble) {
            found.push(format!(
                "who leads may have changed: the register refuses or does not answer: {trouble}"
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
        if status.changes.len() > RESTLESS_CHANGES {
            found.push(format!(
                "the leader changed {} times in {RESTLESS_TIME:?}: leader_ttl or worker_timeout may be too short, or \
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
        if let Some((epoch, _)) = status.office
            && !matches!(status.phase, Phase::Ready)
        {
            found.push(format!("this one leads (token {epoch}) and prepares: its duties begin after that"));
        }
        found
    }
}

/// A time for people, to a tenth of a second: `30s`, `3.3s`.
fn seconds(time: Duration) -> String {
    let text = format!("{:.1}", time.as_secs_f64());
    format!("{}s", text.strip_suffix(".0").unwrap_or(&text))
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn token(&self) -> Option<u64> {
        let office = self.lock().office;
        office.filter(|(_, until)| self.clock.boot() < *until).map(|(epoch, _)| epoch)
    }

    pub(crate) fn saw_leader(&self, at: Duration) {
        self.leader_seen_us.fetch_max(u64::try_from(at.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    pub(crate) fn wall_ms_in(&self, time: Duration) -> u64 {
        u64::try_from((self.clock.wall() + time).as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn tell(&self, news: LeadershipEvent) {
        // Nobody has to watch.
        let _ = self.events.send(news);
    }
}
