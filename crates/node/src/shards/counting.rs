//! Counters of shards: every event, and how long shards have no worker.

use orchestrix_core::{ShardEvent, Timestamp};

use super::soft::ShardDecisions;
use crate::decider::Decider;
use crate::request::Recipient;

impl<R: Recipient> ShardDecisions<R> {
    /// Counts an event before it is applied.
    pub(super) fn count(&mut self, decider: &Decider<R>, event: &ShardEvent, at: Timestamp) {
        let stats = &decider.stats;
        match event {
            ShardEvent::ShardsMoved(event) => {
                stats.shards_withdrawn.add(event.withdrawn.len());
                stats.shards_granted.add(event.granted.iter().map(|grant| grant.shards.len()).sum());
                let shards = event.granted.iter().flat_map(|grant| grant.shards.iter());
                for vacant_ms in self.fill(&event.service, shards, at) {
                    stats.shard_vacant.observe_us(vacant_ms * 1_000);
                }
            }
            ShardEvent::ShardsLetGo(event) => {
                if event.overruled == Some(true) {
                    stats.shards_overruled.add(event.shards.len());
                }
                self.vacate(&event.service, event.shards.iter(), at);
            }
            ShardEvent::ShardWorkerLeft(event) => {
                let there = decider.state.service(&event.service);
                let shards = there.into_iter().flat_map(|known| known.tokens_of(&event.worker));
                self.vacate(&event.service, shards.map(|(shard, _)| shard), at);
            }
            ShardEvent::ShardWorkerJoined(_)
            | ShardEvent::ShardCountSet(_)
            | ShardEvent::ShardWeightsSet(_) => {}
        }
    }
}
