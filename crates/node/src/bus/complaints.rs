//! Messages that cannot be used: all are counted, and the log names each source once a minute.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::Name;

use crate::stats::Stats;

const PAUSE: Duration = Duration::from_secs(60);
/// Sources that are remembered. Above that, the log says less.
const SOURCES_MAX: usize = 1_000;

pub(crate) struct Complaints {
    stats: Arc<Stats>,
    /// When the log named a source last.
    named: BTreeMap<(&'static str, Option<Name>), Duration>,
}

impl Complaints {
    pub(crate) fn new(stats: Arc<Stats>) -> Self {
        Self { stats, named: BTreeMap::new() }
    }

    /// A message on a channel cannot be used; `from` is the worker, if it said so much.
    pub(crate) fn about(&mut self, channel: &'static str, from: Option<&Name>, why: &str, now: Duration) {
        self.stats.bus.malformed.add(1);
        let source = (channel, from.cloned());
        let is_due = self.named.get(&source).is_none_or(|named| now.saturating_sub(*named) >= PAUSE);
        if !is_due {
            return;
        }
        self.named.retain(|_, named| now.saturating_sub(*named) < PAUSE);
        if self.named.len() >= SOURCES_MAX {
            return;
        }
        let worker = from.map_or("", Name::as_str);
        tracing::warn!(channel, worker, why, "a message on the bus cannot be used; it is dropped");
        self.named.insert(source, now);
    }
}
