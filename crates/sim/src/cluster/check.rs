//! Checks the requests of nodes and the engine against the invariants of elections (E) and of the journal (W).
//!
//! It knows nothing of the elector's own code: what entitles a node is what landed in the cell and when it was asked
//! for, what fences it is the order in which batches landed.

use std::collections::{BTreeMap, BTreeSet};

use orchestrix_engine::{ChainHash, Link};

use crate::check::Violation;
use crate::cluster::engine::Who;
use crate::cluster::record::{Fact, LeaderCell, Record};

/// The first of each invariant that does not hold; nothing when all is well.
pub(crate) fn check(record: &Record) -> Vec<Violation> {
    let mut look = Look::default();
    for (at, fact) in &record.facts {
        look.take(record, *at, fact);
    }
    look.trust_is_disjoint(record);
    look.holders_know_their_leader_lease(record);
    look.leader_stays(record);
    let mut named = BTreeSet::new();
    look.found.retain(|violation| named.insert(violation.invariant));
    look.found
}

/// A node that may act under an epoch.
#[derive(Clone, Copy, Debug)]
struct Trust {
    who: Who,
    epoch: u64,
    from: u64,
    until: u64,
}

#[derive(Default)]
struct Look {
    found: Vec<Violation>,
    asked: u64,
    /// The highest epoch that was ever in the cell.
    highest: u64,
    elected: BTreeMap<u64, Who>,
    entitled: BTreeMap<(Who, u64), u64>,
    trusts: Vec<Trust>,
    stepped_down: BTreeSet<(Who, u64)>,
    /// The batch whose outcome its sender does not know.
    unknown: BTreeMap<Who, ChainHash>,
    sent: BTreeMap<Who, ChainHash>,
    end: Link,
    landed: u64,
    /// Terms by the position that began them.
    terms: BTreeMap<u64, u64>,
    observed: BTreeMap<Who, u64>,
    answered: u64,
    /// Leader leases that were stored and whose holders do not know it yet.
    unheard: Vec<(u64, Who, u64, Option<u64>)>,
    healed: Option<u64>,
}

impl Look {
    fn ensure(&mut self, holds: bool, invariant: &'static str, what: impl FnOnce() -> String) {
        if !holds {
            self.found.push(Violation::new(invariant, what()));
        }
    }

    fn take(&mut self, record: &Record, at: u64, fact: &Fact) {
        match fact {
            Fact::Asked => self.asked += 1,
            Fact::LeaderCellWritten { was, now, leads } => {
                self.leader_cell_written(record, at, *was, *now, *leads)
            }
            Fact::Entitled { who, epoch, until } => {
                let entitled = self.entitled.entry((*who, *epoch)).or_default();
                *entitled = (*until).max(*entitled);
            }
            Fact::Elected { who, epoch } => {
                let other = self.elected.insert(*epoch, *who).filter(|other| other != who);
                self.ensure(other.is_none() || record.forgets, "E1", || {
                    format!("epoch {epoch} was granted to {other:?} and to {who:?}")
                });
                self.unheard.retain(|(_, holder, held, _)| (holder, held) != (who, epoch));
            }
            Fact::Trusts { who, epoch, until } => self.trusts(at, *who, *epoch, *until),
            Fact::Distrusts { who, epoch } => {
                for trust in self.trusts.iter_mut().filter(|it| (it.who, it.epoch) == (*who, *epoch)) {
                    trust.until = trust.until.min(at);
                }
            }
            Fact::Begins { who, epoch, seen } => self.ensure(epoch > seen, "E2", || {
                format!("{who:?} begins a term in epoch {epoch} and has seen {seen}")
            }),
            Fact::SteppedDown { who, epoch } => {
                self.stepped_down.insert((*who, *epoch));
                // What was under way is found in the journal, or not, by reading it again.
                self.unknown.remove(who);
            }
            Fact::Sent { who, epoch, batch } => {
                self.acts(at, *who, *epoch, "sends a batch");
                let before = self.unknown.get(who).copied();
                self.ensure(before.is_none_or(|before| before == *batch), "W14", || {
                    format!("{who:?} sends another batch while nobody knows what became of {before:?}")
                });
                self.sent.insert(*who, *batch);
            }
            Fact::Unknown { who } => {
                if let Some(sent) = self.sent.get(who) {
                    self.unknown.insert(*who, *sent);
                }
            }
            Fact::Settled { who } => {
                self.unknown.remove(who);
            }
            Fact::Landed { who, epoch, previous, link, term, begins } => {
                self.follows(*who, *previous, *link);
                if let Some(begun) = begins {
                    self.terms.insert(previous.position.0 + 1, *begun);
                }
                let named = self.terms.get(&term.0).copied();
                self.ensure(named == Some(*epoch), "E3", || {
                    format!("{who:?} wrote in epoch {epoch} under term {term:?}, which has {named:?}")
                });
                let before = self.landed;
                self.ensure(*epoch >= before, "E3", || {
                    format!("epoch {epoch} of {who:?} was accepted after {before}")
                });
                self.landed = before.max(*epoch);
            }
            Fact::Answered { who, epoch } => {
                self.acts(at, *who, *epoch, "answers");
                let before = self.answered;
                self.ensure(*epoch >= before || record.forgets, "E10", || {
                    format!("{who:?} answers in epoch {epoch} after somebody answered in {before}")
                });
                self.answered = before.max(*epoch);
            }
            Fact::Observed { who, epoch } => {
                let before = self.observed.insert(*who, *epoch).unwrap_or(0);
                self.ensure(*epoch >= before || record.forgets, "E10", || {
                    format!("{who:?} takes epoch {epoch} for the leader's after {before}")
                });
            }
            Fact::Lost { after } => {
                self.terms.retain(|position, _| *position <= after.0);
                self.landed = self.terms.values().copied().max().unwrap_or(0);
                // The check of the chain begins anew at the remaining journal.
                self.end = Link { position: *after, hash: ChainHash::default() };
            }
            Fact::Healed => self.healed = Some(at),
        }
    }

    fn leader_cell_written(
        &mut self,
        record: &Record,
        at: u64,
        was: Option<LeaderCell>,
        now: LeaderCell,
        leads: Option<u64>,
    ) {
        let LeaderCell { by, epoch, held } = now;
        if let Some(was) = was {
            let others = was.by != by && was.held;
            let taken = held && epoch > was.epoch;
            self.ensure(!others || taken, "E8", || format!("{by:?} wrote {now:?} over {was:?}"));
            let renews = was.by == by && was.held && leads == Some(was.epoch);
            self.ensure(!(renews && held) || epoch == was.epoch, "E7", || {
                format!("{by:?} renewed epoch {} as {epoch}", was.epoch)
            });
            self.ensure(renews || !held || epoch > was.epoch, "E7", || {
                format!("{by:?} took epoch {epoch} after {}", was.epoch)
            });
        }
        let acquired = held && was.is_none_or(|was| was.epoch != epoch || was.by != by);
        if acquired {
            let highest = self.highest;
            self.ensure(epoch > highest || record.forgets, "E2", || {
                format!("{by:?} took epoch {epoch} after {highest}")
            });
        }
        for (.., over) in &mut self.unheard {
            over.get_or_insert(at);
        }
        if acquired {
            self.unheard.push((at, by, epoch, None));
        }
        self.highest = self.highest.max(epoch);
        let asked = self.asked;
        self.ensure(epoch <= asked, "E11", || {
            format!("epoch {epoch}, and the leader lease was asked for {asked} times: it was not counted")
        });
    }

    /// E4, E6: a node that acts is entitled to by the cell, and has not stepped down.
    fn acts(&mut self, at: u64, who: Who, epoch: u64, what: &str) {
        let until = self.entitled.get(&(who, epoch)).copied().unwrap_or(0);
        self.ensure(at < until, "E4", || {
            format!("{who:?} {what} in epoch {epoch} at {at}, and was entitled to until {until}")
        });
        let gone = self.stepped_down.contains(&(who, epoch));
        self.ensure(!gone, "E6", || format!("{who:?} {what} in epoch {epoch}, which it has left"));
    }

    fn follows(&mut self, who: Who, previous: Link, link: Link) {
        let end = self.end;
        let unlinked = end.hash == ChainHash::default();
        let fits = previous.position == end.position && (unlinked || previous.hash == end.hash);
        self.ensure(fits, "W3", || {
            format!("{who:?} wrote after {previous:?}, and the journal ends at {end:?}")
        });
        self.end = link;
    }

    fn trusts(&mut self, at: u64, who: Who, epoch: u64, until: u64) {
        let last = self.trusts.iter_mut().rev().find(|trust| trust.who == who);
        match last {
            Some(trust) if trust.epoch == epoch && at <= trust.until => trust.until = trust.until.max(until),
            _ => self.trusts.push(Trust { who, epoch, from: at, until }),
        }
    }

    /// E5: no two nodes act at the same moment, where the engine promises that.
    fn trust_is_disjoint(&mut self, record: &Record) {
        let mut trusts = self.trusts.clone();
        trusts.retain(|trust| trust.until > trust.from);
        trusts.sort_by_key(|trust| trust.from);
        let mut latest: Option<Trust> = None;
        for next in trusts {
            if let Some(before) = latest
                && before.who != next.who
                && !record.forgets
            {
                self.ensure(before.until <= next.from, "E5", || format!("{before:?} and {next:?} at once"));
            }
            if latest.is_none_or(|before| next.until > before.until) {
                latest = Some(next);
            }
        }
    }

    /// E9: without faults, no node holds a leader lease for longer than its time without knowing it.
    fn holders_know_their_leader_lease(&mut self, record: &Record) {
        // After a loss of data there is no leader until the operator accepts the loss.
        let Some(healed) = self.healed.filter(|_| !record.forgets) else { return };
        let last = record.facts.last().map_or(0, |(at, _)| *at);
        let bound = record.ttl_us + record.ttl_us / 20 + 2_000_000;
        let long = |(since, _, _, over): &&(u64, Who, u64, Option<u64>)| {
            over.unwrap_or(last).saturating_sub((*since).max(healed)) > bound
        };
        let found = self.unheard.iter().find(long).copied();
        self.ensure(found.is_none(), "E9", || {
            format!("a leader lease (since, holder, epoch, until) is not known to its holder: {found:?}")
        });
    }

    /// EL2: without any fault the first leader stays.
    fn leader_stays(&mut self, record: &Record) {
        let elected = self.elected.len();
        self.ensure(!record.calm || elected <= 1, "EL2", || {
            format!("{elected} nodes were elected where nothing goes wrong")
        });
    }
}

#[cfg(test)]
mod tests;
