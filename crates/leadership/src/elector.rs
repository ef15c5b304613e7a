//! When to stand, when to renew, when to stop trusting oneself. Decided from what was read and from one clock,
//! without any I/O.
//!
//! **Invariant:** an elector trusts itself only until the moment before it asked, plus its time, less a margin. A
//! late success restores nothing. Two machines' clocks are never compared: a candidate counts on its own clock for
//! how long it has seen no change.

use std::time::Duration;

use orchestrix_core::is_planted;
use orchestrix_engine::{Cell, Claim, Set, Version};
use serde::{Deserialize, Serialize};

use crate::election::{Candidate, Change, Reason, Stands, Step, Timing};

/// What is in the cell besides the claim's own fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LeaderRecord {
    #[serde(flatten)]
    holder: Candidate,
    /// Counts the writings of this life, so that no two are the same.
    writing: u64,
    /// Who asked for the change that this is part of, if somebody did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    asked_by: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Take,
    Renew,
    Release,
    Pass,
}

/// A writing whose outcome is not known yet.
#[derive(Clone, Debug)]
struct Attempt {
    purpose: Purpose,
    /// When it was first asked; trust counts from here.
    asked: Duration,
    seen: Option<Version>,
    claim: Claim,
    /// Not again before then.
    not_before: Duration,
}

/// How an office is left.
#[derive(Clone, Debug)]
struct Farewell {
    version: Version,
    epoch: u64,
    /// To whom it is passed; given back if to nobody.
    to: Option<Candidate>,
    asked_by: Option<String>,
}

#[derive(Clone, Debug)]
struct HeldLease {
    epoch: u64,
    version: Version,
    trusted_until: Duration,
    renew_at: Duration,
    proved_at: Duration,
}

/// The cell as it was last seen.
#[derive(Clone, Debug)]
struct View {
    cell: Option<Cell>,
    /// It has been so at least since then, on this one's clock.
    since: Duration,
    /// When to look again.
    look_at: Duration,
}

/// One candidate for one office.
#[derive(Clone, Debug)]
pub struct Elector {
    me: Candidate,
    timing: Timing,
    stands: Stands,
    writings: u64,
    highest_epoch: u64,
    view: Option<View>,
    office: Option<HeldLease>,
    attempt: Option<Attempt>,
    /// What is to be written as soon as the attempt that is under way is settled.
    after_attempt: Option<Farewell>,
    /// It does not stand before then.
    rests_until: Duration,
    /// Who asks it to leave, for the next farewell.
    asker: Option<String>,
    /// Who asked for the change by which it came to its last office.
    asked_by: Option<String>,
    leader: Option<(Candidate, u64)>,
    changes: Vec<Change>,
}

impl Elector {
    #[must_use]
    pub fn new(me: Candidate, timing: Timing) -> Self {
        Self {
            me,
            timing,
            stands: Stands::Yes,
            writings: 0,
            highest_epoch: 0,
            view: None,
            office: None,
            attempt: None,
            after_attempt: None,
            rests_until: Duration::ZERO,
            asker: None,
            asked_by: None,
            leader: None,
            changes: Vec::new(),
        }
    }

    /// The epoch of the office that this one may act under now.
    #[must_use]
    pub fn leads(&self, now: Duration) -> Option<u64> {
        self.office.as_ref().filter(|office| now < office.trusted_until).map(|office| office.epoch)
    }

    /// Until when it may act, if nothing is renewed.
    #[must_use]
    pub fn trusted_until(&self) -> Option<Duration> {
        self.office.as_ref().map(|office| office.trusted_until)
    }

    /// Who was last seen in office.
    #[must_use]
    pub fn leader(&self) -> Option<&(Candidate, u64)> {
        self.leader.as_ref()
    }

    /// Who asked for the change by which this one came to its last office, if somebody did.
    #[must_use]
    pub fn asked_by(&self) -> Option<&str> {
        self.asked_by.as_deref()
    }

    /// Says who asks for the next change; whoever takes the office then knows.
    pub fn ask_for(&mut self, asker: Option<String>) {
        self.asker = asker;
    }

    /// When the one who was last seen in office last showed itself there, as far as this one has looked. Nobody's word
    /// but the cell's: it has changed then.
    #[must_use]
    pub fn leader_seen(&self) -> Option<Duration> {
        let view = self.view.as_ref().filter(|_| self.leader.is_some() && self.office.is_none())?;
        let cell = view.cell.as_ref().filter(|cell| cell.claim.held)?;
        seat(&cell.claim).map(|_| view.since)
    }

    /// Whether it stands. An office that it has is not affected.
    pub fn set_stands(&mut self, stands: Stands) {
        self.stands = stands;
    }

    /// No epoch up to this one is ever taken: somebody has seen it before.
    pub fn raise_epoch(&mut self, seen: u64) {
        if is_planted("epoch-not-raised") {
            return;
        }
        self.highest_epoch = self.highest_epoch.max(seen);
    }

    /// Something was done that only a leader that is alive and well can do.
    pub fn prove(&mut self, now: Duration) {
        if let Some(office) = &mut self.office {
            office.proved_at = office.proved_at.max(now);
        }
    }

    /// Takes what has changed since the last look.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Gives the office back. Nothing may be done under it from now on.
    pub fn resign(&mut self, now: Duration) {
        self.give_up(now, Reason::Resigned, None);
    }

    /// Does not stand before then: somebody else is more likely to be well.
    pub fn rest(&mut self, until: Duration) {
        self.rests_until = self.rests_until.max(until);
    }

    /// Passes the office to somebody who is there.
    pub fn pass(&mut self, now: Duration, to: Candidate) {
        self.give_up(now, Reason::Passed, Some(to));
    }

    /// Whether everything that was asked of the register has been answered.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.attempt.is_none()
    }

    /// Time goes on while an answer is out.
    pub fn tick(&mut self, now: Duration) {
        self.distrust(now);
    }

    /// What to do now. Whoever asks does it and tells what came of it before asking again.
    pub fn next(&mut self, now: Duration) -> Step {
        self.distrust(now);
        if let Some(attempt) = &self.attempt {
            if now < attempt.not_before {
                return Step::Wait(attempt.not_before);
            }
            return Step::Set { seen: attempt.seen.clone(), claim: attempt.claim.clone() };
        }
        match &self.office {
            Some(office) if now >= self.proof_due(office) => {
                self.give_up(now, Reason::NoProof, None);
                // Somebody else is more likely to be well.
                self.rests_until = now + self.timing.ttl;
                self.next(now)
            }
            Some(office) if now < office.renew_at => Step::Wait(office.renew_at.min(self.proof_due(office))),
            Some(office) => {
                let bumped = u64::from(is_planted("epoch-bumped-by-renewal"));
                let (seen, epoch) = (Some(office.version.clone()), office.epoch + bumped);
                self.write(now, Purpose::Renew, seen, epoch, None, None);
                self.next(now)
            }
            None => self.seek(now),
        }
    }

    /// By when it has to be proved that the leader is well.
    fn proof_due(&self, office: &HeldLease) -> Duration {
        if self.timing.needs_proof { office.proved_at + self.timing.ttl / 2 } else { Duration::MAX }
    }

    fn seek(&mut self, now: Duration) -> Step {
        let Some(view) = &self.view else { return Step::Read };
        let takeable = self.takeable_at(view).max(self.rests_until);
        if takeable <= now {
            let (seen, epoch) = match &view.cell {
                Some(cell) => (Some(cell.version.clone()), cell.claim.epoch),
                None => (None, 0),
            };
            let mut epoch = epoch.max(self.highest_epoch) + 1;
            if is_planted("epoch-from-own-count") {
                epoch = self.writings + 1;
            }
            // An office that ran out was nobody's wish.
            let asked = view.cell.as_ref().filter(|cell| !cell.claim.held || self.is_mine(cell));
            self.asked_by = asked.and_then(|cell| seat(&cell.claim)?.asked_by);
            let asked_by = self.asked_by.clone();
            self.write(now, Purpose::Take, seen, epoch, None, asked_by);
            return self.next(now);
        }
        if now >= view.look_at {
            return Step::Read;
        }
        Step::Wait(view.look_at.min(takeable))
    }

    /// When the office may be taken, on this one's clock.
    fn takeable_at(&self, view: &View) -> Duration {
        // What this life wrote itself, or somebody passed to it, it need not wait for: it does not act under it.
        let chosen = view.cell.as_ref().is_some_and(|cell| cell.claim.held && self.is_mine(cell));
        match self.stands {
            Stands::No => return Duration::MAX,
            Stands::Yes | Stands::IfChosen if chosen => return Duration::ZERO,
            Stands::IfChosen => return Duration::MAX,
            Stands::Yes => {}
        }
        let Some(cell) = view.cell.as_ref().filter(|cell| cell.claim.held) else { return Duration::ZERO };
        let mut ttl = Duration::from_millis(cell.claim.ttl_ms);
        if is_planted("office-taken-early") {
            return view.since + self.timing.renew;
        }
        if is_planted("ttl-in-seconds") {
            ttl = Duration::from_secs(ttl.as_secs());
        }
        if is_planted("own-ttl-for-others") {
            ttl = self.timing.ttl;
        }
        view.since + ttl + ttl / 100 + MARGIN_MIN
    }

    fn is_mine(&self, cell: &Cell) -> bool {
        seat(&cell.claim).is_some_and(|seat| seat.holder == self.me)
    }

    /// What was read. Counts from when the answer came: the cell cannot have been older than that.
    pub fn heard_cell(&mut self, now: Duration, cell: Option<Cell>) {
        if self.office.is_none() {
            self.see(now, cell);
        }
    }

    /// The cell could not be read.
    pub fn heard_nothing(&mut self, now: Duration) {
        let look_at = now + self.timing.look_every;
        match &mut self.view {
            Some(view) => view.look_at = look_at,
            // Nothing is known: it is not taken before it was read.
            None => {
                let held = Claim { held: true, ttl_ms: u64::MAX / 4, ..Claim::default() };
                let cell = Some(Cell { version: Version(String::new()), claim: held });
                self.view = Some(View { cell, since: now, look_at });
            }
        }
    }

    /// What became of the last writing; `None` if it certainly was not written.
    pub fn heard_set(&mut self, now: Duration, set: Option<Set>) {
        let Some(attempt) = self.attempt.take() else { return };
        let retry = now + (self.timing.ttl / 20).min(self.timing.look_every).max(Duration::from_millis(1));
        match set {
            Some(Set::Done(version)) => self.written(now, attempt, version),
            Some(Set::Conflict(Some(cell))) if cell.claim == attempt.claim => {
                self.written(now, attempt, cell.version);
            }
            Some(Set::Conflict(Some(cell)))
                if is_planted("renewal-overwrites") && attempt.purpose == Purpose::Renew =>
            {
                self.attempt = Some(Attempt { seen: Some(cell.version), not_before: retry, ..attempt });
            }
            Some(Set::Unknown)
                if is_planted("ambiguous-acquire-believed") && attempt.purpose == Purpose::Take =>
            {
                self.written(now, attempt, Version(String::new()));
            }
            Some(Set::Unknown) if is_planted("ambiguous-acquire-anew") => {
                self.attempt = Some(Attempt { asked: now, not_before: retry, ..attempt });
            }
            Some(Set::Conflict(cell)) => {
                if cell.as_ref().map(|cell| &cell.version) == attempt.seen.as_ref() {
                    // Nobody else has written: it is the engine's own clock that keeps it for its holder.
                    self.rests_until = self.rests_until.max(retry);
                }
                self.depose(Reason::Replaced);
                self.after_attempt = None;
                self.see(now, cell);
            }
            // Only the same again finds out.
            Some(Set::Unknown) => self.attempt = Some(Attempt { not_before: retry, ..attempt }),
            None if self.after_attempt.is_some() => {
                if let Some(farewell) = self.after_attempt.take() {
                    self.leave(now, farewell);
                }
            }
            None => match attempt.purpose {
                Purpose::Renew => {
                    if let Some(office) = &mut self.office {
                        office.renew_at = retry;
                    }
                }
                Purpose::Take => {
                    self.rest(retry);
                    if let Some(view) = &mut self.view {
                        view.look_at = retry;
                    }
                }
                // Worth another try while nobody else can have taken it.
                Purpose::Release | Purpose::Pass if now < attempt.asked + self.timing.ttl => {
                    self.attempt = Some(Attempt { not_before: retry, ..attempt });
                }
                Purpose::Release | Purpose::Pass => {}
            },
        }
    }

    fn written(&mut self, now: Duration, attempt: Attempt, version: Version) {
        let epoch = attempt.claim.epoch;
        self.highest_epoch = self.highest_epoch.max(epoch);
        let mut trusted_until = attempt.asked + self.timing.ttl.saturating_sub(margin(self.timing.ttl));
        if is_planted("trust-from-reply") {
            trusted_until = now + self.timing.ttl.saturating_sub(margin(self.timing.ttl));
        }
        if is_planted("trust-with-grace") {
            trusted_until += self.timing.ttl / 5;
        }
        let renew_at = attempt.asked + self.timing.renew;
        let cell = Cell { version: version.clone(), claim: attempt.claim };
        if let Some(farewell) = self.after_attempt.take() {
            self.leave(now, Farewell { version, ..farewell });
            return;
        }
        match attempt.purpose {
            // It does not stand any more.
            Purpose::Take if self.stands == Stands::No => {
                self.leave(now, Farewell { version, epoch, to: None, asked_by: None });
            }
            Purpose::Take if now < trusted_until => {
                let proved_at = attempt.asked;
                self.office = Some(HeldLease { epoch, version, trusted_until, renew_at, proved_at });
                self.changes.push(Change::Elected { epoch });
                self.set_leader(Some((self.me.clone(), epoch)));
                self.view = None;
            }
            Purpose::Renew => {
                self.distrust(now);
                match &mut self.office {
                    Some(office) => {
                        (office.version, office.renew_at) = (version, renew_at);
                        office.trusted_until = office.trusted_until.max(trusted_until);
                        self.changes.push(Change::Renewed { epoch });
                    }
                    // It came too late: the office is over, and the cell says that this one has it.
                    None => self.see(now, Some(cell)),
                }
            }
            Purpose::Take | Purpose::Release | Purpose::Pass => self.see(now, Some(cell)),
        }
    }

    fn see(&mut self, now: Duration, cell: Option<Cell>) {
        let leader = cell.as_ref().filter(|cell| cell.claim.held).and_then(|cell| {
            Some((seat(&cell.claim)?.holder, cell.claim.epoch)).filter(|(holder, _)| *holder != self.me)
        });
        self.set_leader(leader);
        let version = |cell: &Option<Cell>| cell.as_ref().map(|cell| cell.version.clone());
        let same = self.view.as_ref().filter(|view| version(&view.cell) == version(&cell));
        let since = same.map_or(now, |view| view.since);
        self.highest_epoch = self.highest_epoch.max(cell.as_ref().map_or(0, |cell| cell.claim.epoch));
        self.view = Some(View { cell, since, look_at: now + self.timing.look_every });
    }

    fn set_leader(&mut self, leader: Option<(Candidate, u64)>) {
        if self.leader != leader {
            self.leader.clone_from(&leader);
            self.changes.push(Change::Leader(leader));
        }
    }

    /// Ends an office that could not be renewed in time.
    fn distrust(&mut self, now: Duration) {
        if self.office.as_ref().is_some_and(|office| now >= office.trusted_until) {
            self.depose(Reason::NotRenewed);
        }
    }

    fn depose(&mut self, reason: Reason) {
        if let Some(office) = self.office.take() {
            self.changes.push(Change::Deposed { epoch: office.epoch, reason });
            self.set_leader(None);
            self.view = None;
        }
    }

    fn give_up(&mut self, now: Duration, reason: Reason, to: Option<Candidate>) {
        let Some(office) = self.office.clone() else { return };
        self.depose(reason);
        let asked_by = self.asker.take();
        let farewell = Farewell { version: office.version, epoch: office.epoch, to, asked_by };
        // A renewal that is under way has to be settled first.
        if self.attempt.is_some() {
            self.after_attempt = Some(farewell);
        } else {
            self.leave(now, farewell);
        }
    }

    fn leave(&mut self, now: Duration, farewell: Farewell) {
        let Farewell { version, epoch, to, asked_by } = farewell;
        let (purpose, epoch) = match &to {
            Some(_) => (Purpose::Pass, epoch + 1),
            None => (Purpose::Release, epoch),
        };
        self.write(now, purpose, Some(version), epoch, to, asked_by);
    }

    fn write(
        &mut self,
        now: Duration,
        purpose: Purpose,
        seen: Option<Version>,
        epoch: u64,
        to: Option<Candidate>,
        asked_by: Option<String>,
    ) {
        self.writings += 1;
        let seat =
            LeaderRecord { holder: to.unwrap_or_else(|| self.me.clone()), writing: self.writings, asked_by };
        let value = serde_json::to_vec(&seat).expect("a seat is plain JSON");
        let ttl_ms = u64::try_from(self.timing.ttl.as_millis()).unwrap_or(u64::MAX);
        let held = purpose != Purpose::Release;
        let claim = Claim { owner: seat.holder.name, epoch, ttl_ms, held, value };
        self.attempt = Some(Attempt { purpose, asked: now, seen, claim, not_before: now });
    }
}

/// The shortest margin: what an answer and a wake-up take on a machine that is not overloaded.
const MARGIN_MIN: Duration = Duration::from_millis(5);

/// What a leader does not trust of its time: clocks of different speed, and the moment between looking at the
/// clock and acting.
fn margin(ttl: Duration) -> Duration {
    (ttl / 50).max(MARGIN_MIN)
}

fn seat(claim: &Claim) -> Option<LeaderRecord> {
    serde_json::from_slice(&claim.value).ok()
}
