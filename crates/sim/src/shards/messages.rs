//! Messages between workers of services and the coordinator: lost, doubled, and so late that another order comes of it.

use crate::rng::Rng;
use crate::shards::coverage::ShardCovered;
use crate::shards::plan::{Fate, ShardPlan};
use crate::shards::record::Record;
use crate::world::MS;

/// One copy of a message on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copy {
    /// It takes so many microseconds.
    Quick(u64),
    /// It takes so many, and much may have changed by then.
    Late(u64),
}

/// The copies of one message that arrive; none if it is lost.
pub(crate) fn copies(
    plan: Option<&ShardPlan>,
    faulty: bool,
    rng: &mut Rng,
    record: &mut Record,
) -> Vec<Copy> {
    let Some(plan) = plan.filter(|_| faulty) else { return vec![Copy::Quick(rng.range(20, 500))] };
    record.messages += 1;
    let late = Copy::Late(plan.latest * plan.lease_ms * MS);
    match plan.fates.iter().find(|(number, _)| *number == record.messages) {
        Some((_, Fate::Lost)) => return Vec::new(),
        Some((_, Fate::Doubled)) => return vec![Copy::Quick(rng.range(20, 500)), late],
        Some((_, Fate::Late)) => return vec![late],
        None => {}
    }
    if rng.chance(plan.lost) {
        record.coverage.add(ShardCovered::MessageLost);
        return Vec::new();
    }
    let doubled = rng.chance(plan.doubled);
    if doubled {
        record.coverage.add(ShardCovered::MessageDoubled);
    }
    (0..=u32::from(doubled))
        .map(|_| {
            if !rng.chance(plan.late) {
                return Copy::Quick(rng.range(20, 500));
            }
            record.coverage.add(ShardCovered::MessageLate);
            // A little late as often as so late that everything else is over.
            let most = plan.latest * plan.lease_ms * MS;
            Copy::Late(if rng.chance(500_000) {
                rng.skewed(100 * MS, most)
            } else {
                rng.range(100 * MS, most)
            })
        })
        .collect()
}
