//! Damage, end to end: what a coordinator left on its disk is changed in every way we know of and opened again.
//!
//! Every bit is flipped, every file cut at every byte, every sector zeroed, doubled and swapped, every file
//! zeroed from every eighth byte on, and the power fails after every operation of the disk. Each time the state is one
//! that once was, at or after everything acknowledged, or the start is refused with the file and the place that are
//! damaged.
//!
//! What is behind the last place that any byte left says was durable may be cut off as torn: no start can tell.
//! The start says how much it cut. Only when the end of the journal became zeros, from the beginning of a frame on,
//! does it find nothing to cut: a segment in which nothing was written yet has the same bytes. Both are counted.

mod cases;
mod life;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use orchestrix_core::Position;
use orchestrix_engine::disk::sim::{Faults, SimDisk};
use orchestrix_node::{Recovered, Stepped};

use self::cases::{Cases, Change};
use self::life::{Ending, Life, live};
use crate::check::Violation;
use crate::clock::SimClock;
use crate::server::Process;

/// At each operation all that a loss of power could leave is tried, up to so many choices of what was durable.
const CHOICES_MAX: usize = 4_096;
/// Else so many are drawn.
const CHOICES_DRAWN: u64 = 256;
/// So many violations are enough.
const VIOLATIONS_MAX: usize = 10;

/// How much is damaged.
#[derive(Clone, Copy, Debug)]
pub struct DamageCampaign {
    pub first_seed: u64,
    /// Each seed is another life of a coordinator; all that can be done to it is done once.
    pub seeds: u64,
    pub time: Duration,
    pub threads: usize,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct DamageOutcome {
    /// Lives that were gone through to the last case.
    pub seeds: u64,
    pub flips: u64,
    pub cuts: u64,
    pub sectors: u64,
    /// Files that ended in zeros.
    pub erasures: u64,
    /// Operations after which the power failed.
    pub crash_points: u64,
    /// Different disks that were left then.
    pub crashes: u64,
    /// Starts that found everything, changes or not.
    pub harmless: u64,
    /// Starts that named file and place.
    pub refused: u64,
    /// Starts that cut off what nothing left says was durable, and how much they said that was.
    pub excluded: u64,
    pub excluded_bytes: u64,
    /// Starts that found zeros where the last frames had been, and nothing that marks these as durable.
    pub erased: u64,
    /// Starts that passed over a damaged snapshot.
    pub passed_over: u64,
    /// Journal events of all lives.
    pub events: u64,
    pub violations: Vec<(u64, Violation)>,
}

/// Damages until the seeds or the time are used up, or too much was found.
#[must_use]
pub fn damage(campaign: DamageCampaign) -> DamageOutcome {
    let (next, start) = (AtomicU64::new(0), Instant::now());
    let total = Mutex::new(DamageOutcome::default());
    std::thread::scope(|scope| {
        for _ in 0..campaign.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    let enough = lock(&total).violations.len() >= VIOLATIONS_MAX;
                    if number >= campaign.seeds || start.elapsed() >= campaign.time || enough {
                        return;
                    }
                    let seed = campaign.first_seed + number;
                    let over = || start.elapsed() >= campaign.time;
                    let outcome = damage_seed(seed, &over);
                    lock(&total).add(outcome);
                }
            });
        }
    });
    total.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn lock(total: &Mutex<DamageOutcome>) -> std::sync::MutexGuard<'_, DamageOutcome> {
    total.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does to one life all that can be done, or as much as there is time for.
fn damage_seed(seed: u64, over: &dyn Fn() -> bool) -> DamageOutcome {
    let mut outcome = DamageOutcome::default();
    let ran = catch_unwind(AssertUnwindSafe(|| try_seed(seed, over, &mut outcome)));
    let violation = match ran {
        Ok(Ok(())) => return outcome,
        Ok(Err(violation)) => violation,
        Err(_) => Violation::new("W11", "a panic".to_owned()),
    };
    outcome.violations.push((seed, violation));
    outcome
}

fn try_seed(seed: u64, over: &dyn Fn() -> bool, outcome: &mut DamageOutcome) -> Result<(), Violation> {
    let ending = if seed.is_multiple_of(2) { Ending::Stopped } else { Ending::Killed };
    let life = live(seed, ending, Faults::default())?;
    outcome.events += life.acknowledged.0;
    let subject = Subject { seed, ending, life };
    let cases = Cases::new(&subject.life.disk, seed);
    for change in cases {
        if over() {
            return Ok(());
        }
        match &change {
            Change::Flip { .. } => outcome.flips += 1,
            Change::Cut { .. } => outcome.cuts += 1,
            Change::Sector { .. } => outcome.sectors += 1,
            Change::Erase { .. } => outcome.erasures += 1,
            Change::Crash { .. } => outcome.crash_points += 1,
        }
        if let Change::Crash { after } = change {
            subject.crash(after, outcome)?;
        } else {
            subject.change(&change, outcome)?;
        }
    }
    outcome.seeds += 1;
    Ok(())
}

/// A life that is damaged, again and again from where it ended.
struct Subject {
    seed: u64,
    ending: Ending,
    life: Life,
}

impl Subject {
    fn change(&self, change: &Change, outcome: &mut DamageOutcome) -> Result<(), Violation> {
        let disk = self.life.disk.copy();
        let Some(changed) = change.make(&disk) else { return Ok(()) };
        let wrong = |id, what: String| Err(Violation::new(id, format!("{change:?}: {what}")));
        let (position, recovered) = match self.open(&disk) {
            Ok(opened) => opened,
            Err(Refused::Wrong(violation)) => return wrong(violation.invariant, violation.what),
            Err(Refused::Message(text)) => {
                outcome.refused += 1;
                return match place(&text, &changed.name) {
                    Some(offset) if offset <= changed.first => Ok(()),
                    Some(_) | None => wrong("W8", format!("the place is not named: {text}")),
                };
            }
        };
        outcome.passed_over += u64::from(!recovered.damaged_snapshots.is_empty());
        let promised = cases::promised(&self.life.disk, &disk);
        if position < promised {
            return wrong("W1", format!("recovered up to {position}, but {promised} was marked as durable"));
        }
        if position >= self.life.acknowledged {
            outcome.harmless += 1;
            return Ok(());
        }
        match &recovered.journal.cut {
            Some(cut) if cut.path.ends_with(&changed.name) && cut.offset <= changed.first => {
                outcome.excluded += 1;
                outcome.excluded_bytes += cut.bytes;
                Ok(())
            }
            None if changed.is_erased => {
                outcome.erased += 1;
                Ok(())
            }
            cut => wrong("W1", format!("{position} of {} are there, cut: {cut:?}", self.life.acknowledged)),
        }
    }

    /// Lives the same life up to an operation, and loses the power there.
    fn crash(&self, after: u64, outcome: &mut DamageOutcome) -> Result<(), Violation> {
        let faults = Faults { power_off_after: Some(after), ..Faults::default() };
        let life = live(self.seed, self.ending, faults)?;
        let mut found = Ok(());
        life.disk.each_crash(CHOICES_MAX, CHOICES_DRAWN, |disk| {
            if found.is_err() {
                return;
            }
            outcome.crashes += 1;
            found = match self.open(&disk) {
                Ok((position, _)) if position >= life.acknowledged => {
                    outcome.harmless += 1;
                    Ok(())
                }
                Ok((position, _)) => {
                    Err(format!("{position} of {} acknowledged are there", life.acknowledged))
                }
                Err(Refused::Message(text)) => Err(format!("a crash is no damage: {text}")),
                Err(Refused::Wrong(violation)) => Err(violation.to_string()),
            };
        });
        found.map_err(|what| Violation::new("W1", format!("power lost after operation {after}: {what}")))
    }

    /// Opens a disk, holds the state against what it once was, and goes on from there: a coordinator that starts
    /// must be able to work, and what it does must stay.
    fn open(&self, disk: &SimDisk) -> Result<(Position, Recovered), Refused> {
        let wrong = |id, what| Err(Refused::Wrong(Violation::new(id, what)));
        let said = |failure: orchestrix_node::Failure| Refused::Message(failure.to_string());
        let files = || self.life.plan.files();
        let (state, recovered) = Stepped::recover(Arc::new(disk.clone()), files()).map_err(said)?;
        let position = state.position();
        let known = usize::try_from(position.0).ok().and_then(|index| self.life.states.get(index));
        if known != Some(&state.fingerprint()) {
            return wrong("W6", format!("the state at {position} never was"));
        }
        let clock = Arc::new(SimClock::new(0, disk.clone()));
        let (mut process, _) = Process::start(disk, &self.life.plan, &clock, 1).map_err(said)?;
        if let Err(failure) = process.stepped.decide().and_then(|_| process.stepped.write()) {
            return wrong("W1", format!("it does not go on from {position}: {failure}"));
        }
        drop(process);
        let crashed = disk.crash(&mut || false);
        match Stepped::recover(Arc::new(crashed), files()) {
            Ok((state, _)) if state.position() > position => Ok((position, recovered)),
            Ok((state, _)) => {
                wrong("W1", format!("it went on from {position}, {} is left", state.position()))
            }
            Err(failure) => wrong("W1", format!("it went on from {position}, then: {failure}")),
        }
    }
}

/// Why a disk was not opened.
enum Refused {
    /// With these words.
    Message(String),
    Wrong(Violation),
}

/// The place that a refusal names in a file.
fn place(text: &str, name: &str) -> Option<u64> {
    let (_, after) = text.split_once(&format!("{name} is damaged at byte "))?;
    after.split_once(':').and_then(|(offset, _)| offset.parse().ok())
}

impl DamageOutcome {
    fn add(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.flips += other.flips;
        self.cuts += other.cuts;
        self.sectors += other.sectors;
        self.erasures += other.erasures;
        self.crash_points += other.crash_points;
        self.crashes += other.crashes;
        self.harmless += other.harmless;
        self.refused += other.refused;
        self.excluded += other.excluded;
        self.excluded_bytes += other.excluded_bytes;
        self.erased += other.erased;
        self.passed_over += other.passed_over;
        self.events += other.events;
        self.violations.extend(other.violations);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many frames of the last segment can become zeros, one at a time, without a word at the next start.
    fn frames_lost_in_silence(ending: Ending) -> (u64, DamageOutcome) {
        let life = live(1, ending, Faults::default()).expect("a life without faults");
        let subject = Subject { seed: 1, ending, life };
        let mut outcome = DamageOutcome::default();
        for change in cases::frames_erased(&subject.life.disk) {
            subject.change(&change, &mut outcome).expect("no violation");
        }
        (outcome.erased, outcome)
    }

    #[test]
    fn only_a_last_frame_without_a_mark_can_vanish() {
        let (lost, outcome) = frames_lost_in_silence(Ending::Killed);
        assert!(lost == 1 && outcome.refused > 0, "{outcome:?}");
        let (lost, outcome) = frames_lost_in_silence(Ending::Stopped);
        assert!(lost == 0 && outcome.refused > 0, "{outcome:?}");
    }
}
