//! The election rules: when to stand, when to renew, when to stop acting as leader. They depend only on what was read
//! from the register and on one clock, without any I/O.
//!
//! **Invariant:** a leader acts only until the time just before it sent its last successful write, plus the TTL, less a
//! margin. A late success restores nothing. Clocks of two machines are never compared: a candidate measures on its own
//! clock how long the cell has not changed.

use std::time::Duration;

use orchestrix_core::is_planted;
use orchestrix_engine::{Cell, Claim, Set, Version};
use serde::{Deserialize, Serialize};

use crate::election::{Candidate, Change, Reason, Stands, Step, Timing};

/// The value of the leader's cell, beside the claim's own fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LeaderRecord {
    #[serde(flatten)]
    holder: Candidate,
    /// Counts the writes of this incarnation, so that no two are the same.
    writing: u64,
    /// Who requested this change of leader, if anyone did.
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

/// A write with an outcome that is not known yet.
#[derive(Clone, Debug)]
struct Attempt {
    purpose: Purpose,
    /// When it was first sent; the right to act counts from here.
    asked: Duration,
    seen: Option<Version>,
    claim: Claim,
    /// The earliest time of the next try.
    not_before: Duration,
}

/// How leadership is given up.
#[derive(Clone, Debug)]
struct Handover {
    version: Version,
    epoch: u64,
    /// The successor; `None` releases the cell.
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
    /// It has not changed since then at least, on this node's clock.
    since: Duration,
    /// When to read again.
    read_at: Duration,
}

/// One candidate for the leader lease of one cell.
#[derive(Clone, Debug)]
pub struct Elector {
    me: Candidate,
    timing: Timing,
    stands: Stands,
    writes: u64,
    highest_epoch: u64,
    view: Option<View>,
    lease: Option<HeldLease>,
    attempt: Option<Attempt>,
    /// What to write once the current attempt has an outcome.
    after_attempt: Option<Handover>,
    /// Does not stand before then.
    stands_after: Duration,
    /// Who requested the next change of leader.
    asker: Option<String>,
    /// Who requested the change that made this candidate leader last.
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
            writes: 0,
            highest_epoch: 0,
            view: None,
            lease: None,
            attempt: None,
            after_attempt: None,
            stands_after: Duration::ZERO,
            asker: None,
            asked_by: None,
            leader: None,
            changes: Vec::new(),
        }
    }

    /// The epoch that this node may act under now.
    #[must_use]
    pub fn leads(&self, now: Duration) -> Option<u64> {
        self.lease.as_ref().filter(|lease| now < lease.trusted_until).map(|lease| lease.epoch)
    }

    /// Until when this node may act if nothing is renewed.
    #[must_use]
    pub fn trusted_until(&self) -> Option<Duration> {
        self.lease.as_ref().map(|lease| lease.trusted_until)
    }

    /// The last known leader.
    #[must_use]
    pub fn leader(&self) -> Option<&(Candidate, u64)> {
        self.leader.as_ref()
    }

    /// Who requested the change that made this candidate leader last, if anyone did.
    #[must_use]
    pub fn asked_by(&self) -> Option<&str> {
        self.asked_by.as_deref()
    }

    /// Names who requests the next change; the next leader reads it from the cell.
    pub fn ask_for(&mut self, asker: Option<String>) {
        self.asker = asker;
    }

    /// When the last known leader last renewed, on this node's clock: when its cell was first read with its current version.
    #[must_use]
    pub fn leader_seen(&self) -> Option<Duration> {
        let view = self.view.as_ref().filter(|_| self.leader.is_some() && self.lease.is_none())?;
        let cell = view.cell.as_ref().filter(|cell| cell.claim.held)?;
        leader_record(&cell.claim).map(|_| view.since)
    }

    /// Whether to stand for leader. Does not affect a lease that is held.
    pub fn set_stands(&mut self, stands: Stands) {
        self.stands = stands;
    }

    /// No epoch up to `seen` is ever acquired again, because another leader had it.
    pub fn raise_epoch(&mut self, seen: u64) {
        if is_planted("epoch-not-raised") {
            return;
        }
        self.highest_epoch = self.highest_epoch.max(seen);
    }

    /// The leader has done something that only a healthy leader can do.
    pub fn prove(&mut self, now: Duration) {
        if let Some(lease) = &mut self.lease {
            lease.proved_at = lease.proved_at.max(now);
        }
    }

    /// Takes the changes since the last call.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Releases the lease. This node may not act as leader from now on.
    pub fn resign(&mut self, now: Duration) {
        self.relinquish(now, Reason::Resigned, None);
    }

    /// Does not stand before `until`: another node is more likely to be healthy.
    pub fn rest(&mut self, until: Duration) {
        self.stands_after = self.stands_after.max(until);
    }

    /// Transfers leadership to another candidate.
    pub fn pass(&mut self, now: Duration, to: Candidate) {
        self.relinquish(now, Reason::Passed, Some(to));
    }

    /// Whether no write is pending.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.attempt.is_none()
    }

    /// Lets time pass while a request is pending.
    pub fn tick(&mut self, now: Duration) {
        self.expire_lease(now);
    }

    /// What to do now. The caller does it and reports the result before it calls this again.
    pub fn next(&mut self, now: Duration) -> Step {
        self.expire_lease(now);
        if let Some(attempt) = &self.attempt {
            if now < attempt.not_before {
                return Step::Wait(attempt.not_before);
            }
            return Step::Set { seen: attempt.seen.clone(), claim: attempt.claim.clone() };
        }
        match &self.lease {
            Some(lease) if now >= self.proof_due(lease) => {
                self.relinquish(now, Reason::NoProof, None);
                // Another node is more likely to be healthy.
                self.stands_after = now + self.timing.ttl;
                self.next(now)
            }
            Some(lease) if now < lease.renew_at => Step::Wait(lease.renew_at.min(self.proof_due(lease))),
            Some(lease) => {
                let bumped = u64::from(is_planted("epoch-bumped-by-renewal"));
                let (seen, epoch) = (Some(lease.version.clone()), lease.epoch + bumped);
                self.write(now, Purpose::Renew, seen, epoch, None, None);
                self.next(now)
            }
            None => self.seek(now),
        }
    }

    /// When a new proof of health is due.
    fn proof_due(&self, lease: &HeldLease) -> Duration {
        if self.timing.needs_proof { lease.proved_at + self.timing.ttl / 2 } else { Duration::MAX }
    }

    fn seek(&mut self, now: Duration) -> Step {
        let Some(view) = &self.view else { return Step::Read };
        let takeable = self.takeable_at(view).max(self.stands_after);
        if takeable <= now {
            let (seen, epoch) = match &view.cell {
                Some(cell) => (Some(cell.version.clone()), cell.claim.epoch),
                None => (None, 0),
            };
            let mut epoch = epoch.max(self.highest_epoch) + 1;
            if is_planted("epoch-from-own-count") {
                epoch = self.writes + 1;
            }
            // Nobody requested the end of a lease that expired.
            let asked = view.cell.as_ref().filter(|cell| !cell.claim.held || self.is_mine(cell));
            self.asked_by = asked.and_then(|cell| leader_record(&cell.claim)?.asked_by);
            let asked_by = self.asked_by.clone();
            self.write(now, Purpose::Take, seen, epoch, None, asked_by);
            return self.next(now);
        }
        if now >= view.read_at {
            return Step::Read;
        }
        Step::Wait(view.read_at.min(takeable))
    }

    /// When the lease may be acquired, on this node's clock.
    fn takeable_at(&self, view: &View) -> Duration {
        // A cell that names this incarnation can be taken at once: this node does not act under it yet.
        let chosen = view.cell.as_ref().is_some_and(|cell| cell.claim.held && self.is_mine(cell));
        match self.stands {
            Stands::No => return Duration::MAX,
            Stands::Yes | Stands::IfChosen if chosen => return Duration::ZERO,
            Stands::IfChosen => return Duration::MAX,
            Stands::Yes => {}
        }
        let Some(cell) = view.cell.as_ref().filter(|cell| cell.claim.held) else { return Duration::ZERO };
        let mut ttl = Duration::from_millis(cell.claim.ttl_ms);
        if is_planted("lease-taken-early") {
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
        leader_record(&cell.claim).is_some_and(|record| record.holder == self.me)
    }

    /// The cell was read. Counts from the arrival of the answer: the cell was at least as new when it was read.
    pub fn on_read(&mut self, now: Duration, cell: Option<Cell>) {
        if self.lease.is_none() {
            self.update_view(now, cell);
        }
    }

    /// The cell could not be read.
    pub fn on_read_failed(&mut self, now: Duration) {
        let read_at = now + self.timing.poll_interval;
        match &mut self.view {
            Some(view) => view.read_at = read_at,
            // Nothing is known: do not acquire before a successful read.
            None => {
                let held = Claim { held: true, ttl_ms: u64::MAX / 4, ..Claim::default() };
                let cell = Some(Cell { version: Version(String::new()), claim: held });
                self.view = Some(View { cell, since: now, read_at });
            }
        }
    }

    /// The outcome of the last write; `None` if it certainly was not written.
    pub fn on_set(&mut self, now: Duration, set: Option<Set>) {
        let Some(attempt) = self.attempt.take() else { return };
        let retry = now + (self.timing.ttl / 20).min(self.timing.poll_interval).max(Duration::from_millis(1));
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
                    // No other node has written: the engine's own clock still protects the holder.
                    self.stands_after = self.stands_after.max(retry);
                }
                self.depose(Reason::Replaced);
                self.after_attempt = None;
                self.update_view(now, cell);
            }
            // Only the identical write finds out.
            Some(Set::Unknown) => self.attempt = Some(Attempt { not_before: retry, ..attempt }),
            None if self.after_attempt.is_some() => {
                if let Some(handover) = self.after_attempt.take() {
                    self.leave(now, handover);
                }
            }
            None => match attempt.purpose {
                Purpose::Renew => {
                    if let Some(lease) = &mut self.lease {
                        lease.renew_at = retry;
                    }
                }
                Purpose::Take => {
                    self.rest(retry);
                    if let Some(view) = &mut self.view {
                        view.read_at = retry;
                    }
                }
                // Try again while no other node can have acquired it.
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
        if let Some(handover) = self.after_attempt.take() {
            self.leave(now, Handover { version, ..handover });
            return;
        }
        match attempt.purpose {
            // It does not stand any more.
            Purpose::Take if self.stands == Stands::No => {
                self.leave(now, Handover { version, epoch, to: None, asked_by: None });
            }
            Purpose::Take if now < trusted_until => {
                let proved_at = attempt.asked;
                self.lease = Some(HeldLease { epoch, version, trusted_until, renew_at, proved_at });
                self.changes.push(Change::Elected { epoch });
                self.set_leader(Some((self.me.clone(), epoch)));
                self.view = None;
            }
            Purpose::Renew => {
                self.expire_lease(now);
                match &mut self.lease {
                    Some(lease) => {
                        (lease.version, lease.renew_at) = (version, renew_at);
                        lease.trusted_until = lease.trusted_until.max(trusted_until);
                        self.changes.push(Change::Renewed { epoch });
                    }
                    // The renewal succeeded too late: the lease has expired although the cell names this node.
                    None => self.update_view(now, Some(cell)),
                }
            }
            Purpose::Take | Purpose::Release | Purpose::Pass => self.update_view(now, Some(cell)),
        }
    }

    fn update_view(&mut self, now: Duration, cell: Option<Cell>) {
        let leader = cell.as_ref().filter(|cell| cell.claim.held).and_then(|cell| {
            Some((leader_record(&cell.claim)?.holder, cell.claim.epoch))
                .filter(|(holder, _)| *holder != self.me)
        });
        self.set_leader(leader);
        let version = |cell: &Option<Cell>| cell.as_ref().map(|cell| cell.version.clone());
        let same = self.view.as_ref().filter(|view| version(&view.cell) == version(&cell));
        let since = same.map_or(now, |view| view.since);
        self.highest_epoch = self.highest_epoch.max(cell.as_ref().map_or(0, |cell| cell.claim.epoch));
        self.view = Some(View { cell, since, read_at: now + self.timing.poll_interval });
    }

    fn set_leader(&mut self, leader: Option<(Candidate, u64)>) {
        if self.leader != leader {
            self.leader.clone_from(&leader);
            self.changes.push(Change::Leader(leader));
        }
    }

    /// Ends a lease that could not be renewed in time.
    fn expire_lease(&mut self, now: Duration) {
        if self.lease.as_ref().is_some_and(|lease| now >= lease.trusted_until) {
            self.depose(Reason::NotRenewed);
        }
    }

    fn depose(&mut self, reason: Reason) {
        if let Some(lease) = self.lease.take() {
            self.changes.push(Change::Deposed { epoch: lease.epoch, reason });
            self.set_leader(None);
            self.view = None;
        }
    }

    fn relinquish(&mut self, now: Duration, reason: Reason, to: Option<Candidate>) {
        let Some(lease) = self.lease.clone() else { return };
        self.depose(reason);
        let asked_by = self.asker.take();
        let handover = Handover { version: lease.version, epoch: lease.epoch, to, asked_by };
        // A pending renewal must have an outcome first.
        if self.attempt.is_some() {
            self.after_attempt = Some(handover);
        } else {
            self.leave(now, handover);
        }
    }

    fn leave(&mut self, now: Duration, handover: Handover) {
        let Handover { version, epoch, to, asked_by } = handover;
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
        self.writes += 1;
        let record =
            LeaderRecord { holder: to.unwrap_or_else(|| self.me.clone()), writing: self.writes, asked_by };
        let value = serde_json::to_vec(&record).expect("a leader record is plain JSON");
        let ttl_ms = u64::try_from(self.timing.ttl.as_millis()).unwrap_or(u64::MAX);
        let held = purpose != Purpose::Release;
        let claim = Claim { owner: record.holder.name, epoch, ttl_ms, held, value };
        self.attempt = Some(Attempt { purpose, asked: now, seen, claim, not_before: now });
    }
}

/// The shortest margin: what a response and a wake-up take on a machine that is not overloaded.
const MARGIN_MIN: Duration = Duration::from_millis(5);

/// The part of the TTL that a leader does not use: clocks of different speed, and the time between reading the clock and
/// acting.
fn margin(ttl: Duration) -> Duration {
    (ttl / 50).max(MARGIN_MIN)
}

fn leader_record(claim: &Claim) -> Option<LeaderRecord> {
    serde_json::from_slice(&claim.value).ok()
}
