//! Options of a node, with defaults.

use orchestrix_core::limits::QUEUES_MAX;
use orchestrix_core::{FORMAT, Retention};

use crate::bus::BusOptions;
use crate::shards::ShardTimes;

/// Settings of a node. None of them changes what a journal means.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name of this node, for people.
    pub node: String,
    /// How long ended tasks are kept.
    pub retention: Retention,
    /// Queues that may have tasks at one time; a task for one more is refused.
    pub queues_max: usize,
    /// Questions that may wait for the loop; one more is answered `overloaded`.
    pub queue_max: usize,
    /// Lease calls that may wait for a task; one more is answered `overloaded`.
    pub polls_max: usize,
    /// Bytes of journal after which a snapshot is taken, or twice the bytes of the last one if that is more.
    pub snapshot_bytes: u64,
    /// Bytes of events kept in memory for `GET /v1/events` to resume from.
    pub event_ring_bytes: usize,
    /// Bytes of output kept per task.
    pub log_task_bytes: u64,
    /// Bytes of one line of output; the rest of a longer line is cut.
    pub log_line_bytes: usize,
    pub shards: ShardTimes,
    /// How tasks are offered over a bus, if there is one.
    pub bus: Option<BusOptions>,
    /// The newest format of the journal that this node reads. Only simulations set it lower, to play an earlier version.
    pub reads: u8,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            node: "node-1".to_owned(),
            retention: Retention::default(),
            queues_max: QUEUES_MAX,
            queue_max: 8_192,
            polls_max: 20_000,
            snapshot_bytes: 128 << 20,
            event_ring_bytes: 8 << 20,
            log_task_bytes: 10 << 20,
            log_line_bytes: 16 << 10,
            shards: ShardTimes::default(),
            bus: None,
            reads: FORMAT,
        }
    }
}
