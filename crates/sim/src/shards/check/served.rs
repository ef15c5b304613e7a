//! The actions of workers: two honest workers never serve the same shard at the same time, tokens grow from one to the next, and where
//! only workers fail, every shard is served again in time.

use std::collections::BTreeMap;

use orchestrix_core::Name;

use crate::check::Violation;
use crate::shards::coverage::ShardCovered;
use crate::shards::plan::ShardPlan;
use crate::shards::record::{Kind, Record, Served};
use crate::world::{MS, SECOND};

pub(super) fn check(record: &mut Record, plan: &ShardPlan) -> Vec<Violation> {
    let mut by_shard: BTreeMap<(Name, u32), Vec<Served>> = BTreeMap::new();
    for served in &record.served {
        let service = record.processes[served.process].service.clone();
        by_shard.entry((service, served.shard)).or_default().push(*served);
    }
    let mut found = Vec::new();
    for ((service, shard), mut of_shard) in by_shard {
        of_shard.sort_by_key(|served| (served.from_us, served.to_us, served.process));
        found.extend(overlaps(record, &service, shard, &of_shard));
        if plan.calm {
            found.extend(gaps(record, plan, &service, shard, &of_shard));
        }
    }
    found
}

/// H2 and H5, for one shard. What comes of workers that know nothing of generations is counted.
fn overlaps(record: &mut Record, service: &Name, shard: u32, of_shard: &[Served]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut before: Vec<Served> = Vec::new();
    for next in of_shard {
        for earlier in before.iter().filter(|earlier| earlier.process != next.process) {
            let older = if earlier.token <= next.token { earlier } else { next };
            let is_plain = record.processes[older.process].kind.is_plain();
            if earlier.to_us > next.from_us {
                let by = earlier.to_us.min(next.to_us) - next.from_us;
                if is_plain {
                    record.coverage.add(ShardCovered::PlainOverlap);
                    record.coverage.add_many(ShardCovered::PlainOverlapMs, by / MS);
                } else {
                    let what = format!(
                        "shard {shard} of {service} was served by {} and {} at once for {by} µs: {earlier:?}, {next:?}",
                        record.processes[earlier.process].worker, record.processes[next.process].worker
                    );
                    found.push(Violation::new("H2", what));
                }
            }
        }
        if let Some(last) = before.last().filter(|last| last.process != next.process) {
            record.coverage.add(ShardCovered::ServerChanged);
            let aware = [last, next].iter().all(|it| record.processes[it.process].kind == Kind::Aware);
            if aware && next.token <= last.token {
                let what = format!("shard {shard} of {service} has no larger token: {last:?}, {next:?}");
                found.push(Violation::new("H5", what));
            }
        }
        before.retain(|earlier| earlier.to_us > next.from_us);
        before.push(*next);
    }
    found
}

/// HL1: after a worker's death its shards are served again when its time is over and the next has heard of it. Every
/// further trouble in between may take as long again.
fn gaps(
    record: &Record,
    plan: &ShardPlan,
    service: &Name,
    shard: u32,
    of_shard: &[Served],
) -> Vec<Violation> {
    let mut found = Vec::new();
    let bound = plan.lease_ms * MS * 102 / 100 + plan.beat_ms() * MS * 102 / 100 + 3 * SECOND;
    let ends = record.rested_us.unwrap_or(0);
    let mut until = of_shard.first().map_or(0, |first| first.from_us);
    for from in of_shard.iter().map(|served| served.from_us).chain([ends]) {
        if from > until {
            let within = record
                .troubles
                .iter()
                .filter(|(of, at)| of == service && (until.saturating_sub(MS)..=from).contains(at));
            let troubles = 1 + within.count() as u64;
            if from - until > troubles * bound {
                let gap = (from - until) / MS;
                let what =
                    format!("shard {shard} of {service} was not served for {gap} ms, from {until} µs on");
                found.push(Violation::new("HL1", what));
            }
        }
        let served = of_shard.iter().filter(|served| served.from_us == from).map(|served| served.to_us);
        until = until.max(served.max().unwrap_or(0));
    }
    found
}
