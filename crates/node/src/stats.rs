//! Counters of a node since its start. Counted outside the fold: a replay counts nothing.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that only grows, or a gauge that is set.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    pub fn raise(&self, n: u64) {
        self.0.fetch_max(n, Relaxed);
    }

    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Durations in buckets, in microseconds.
#[derive(Debug, Default)]
pub struct Histogram {
    /// Observations up to the bound of the same place in [`Histogram::BOUNDS_US`]; the last is unbounded.
    buckets: [Counter; Histogram::BOUNDS_US.len() + 1],
    sum_us: Counter,
}

impl Histogram {
    /// Upper bounds of the buckets, in microseconds.
    pub const BOUNDS_US: [u64; 12] =
        [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 250_000, 1_000_000, 10_000_000];

    pub fn observe_us(&self, us: u64) {
        let place = Self::BOUNDS_US.partition_point(|bound| *bound < us);
        self.buckets[place].add(1);
        self.sum_us.add(us);
    }

    /// Observations per bucket, not accumulated.
    pub fn buckets(&self) -> impl Iterator<Item = u64> {
        self.buckets.iter().map(Counter::get)
    }

    #[must_use]
    pub fn sum_us(&self) -> u64 {
        self.sum_us.get()
    }
}

/// All counters. `metrics.rs` of the server explains each.
#[derive(Debug, Default)]
pub struct Stats {
    pub submitted: Counter,
    pub submit_repeats: Counter,
    pub leased: Counter,
    pub extended: Counter,
    pub completed: Counter,
    pub failed: Counter,
    pub released: Counter,
    pub expired_silent: Counter,
    pub expired_timeout: Counter,
    pub cancelled: Counter,
    pub ttl_expired: Counter,
    pub retried: Counter,
    pub purged: Counter,
    pub keys_forgotten_early: Counter,
    pub dead_letters: Counter,
    /// Grants of a task whose last lease ended by time: its worker may still be at it.
    pub duplicate_executions: Counter,
    /// Reports under a lease that is not valid.
    pub stale_reports: Counter,
    /// Reports that repeat one that was accepted.
    pub repeated_reports: Counter,
    pub refused: Counter,
    pub overloaded: Counter,
    pub storage_full: Counter,
    /// Leases given back because the caller had disconnected.
    pub abandoned: Counter,

    pub position: Counter,
    pub durable: Counter,
    pub term: Counter,
    pub epoch: Counter,
    /// The format of the journal, while this node leads.
    pub format: Counter,
    pub tasks_leased: Counter,
    pub polls: Counter,
    /// Batches refused because another node had written.
    pub stale_appends: Counter,
    /// Rounds that moved or granted shards.
    pub shard_rounds: Counter,
    /// Shards withdrawn from workers.
    pub shards_withdrawn: Counter,
    pub shards_granted: Counter,
    /// Shards that were taken from plain workers which had not said that they stopped.
    pub shards_overruled: Counter,
    /// Services that were forgotten because they had no workers for long.
    pub services_expired: Counter,
    /// Workers of services that fell silent.
    pub shard_workers_lost: Counter,
    pub batches: Counter,
    pub batch_bytes: Counter,
    pub sync: Histogram,
    /// Time that shards were without a worker, from the end of one to the grant to the next.
    pub shard_vacant: Histogram,
    /// How long the loop was busy without looking at new questions.
    pub step: Histogram,
    pub turn_max_us: Counter,
    /// The longest that a snapshot kept the loop from deciding, at one go, in processor time of the loop.
    pub snapshot_pause_max_us: Counter,
    /// The same in processor time of the loop: waiting for a processor does not count.
    pub turn_busy_max_us: Counter,
    pub snapshots: Counter,
    pub snapshot_failures: Counter,
    pub snapshot_position: Counter,
    /// 1 while the journal lives from its reserve.
    pub space_low: Counter,
    pub keys_remembered: Counter,
    pub log_lines: Counter,
    pub log_lines_dropped: Counter,
    pub bus: BusStats,
}

/// Counters about the bus.
#[derive(Debug, Default)]
pub struct BusStats {
    /// Messages that cannot be used.
    pub malformed: Counter,
    /// Tasks that were offered, at the leader.
    pub offered: Counter,
    /// Leases that workers started, at the leader.
    pub started: Counter,
    /// Leases of the bus, at the leader: as many tasks have channels.
    pub leases: Counter,
    /// Those of them that nobody owns.
    pub orphans: Counter,
    /// How long the oldest of these is without an owner, in milliseconds.
    pub lag_ms: Counter,
    /// Reports that this node sent, and what workers had said in them.
    pub reports: Counter,
    pub report_items: Counter,
    /// Leases that this node owns.
    pub owned: Counter,
    /// 1 while this node takes no more.
    pub drains: Counter,
    /// Leases that this node took because another died, drained or had too many.
    pub adopted: Counter,
    /// Leases that the leader gave to a node because nobody took them.
    pub assigned: Counter,
    /// Leases that the leader asked to move, so that nodes have alike.
    pub moved: Counter,
    /// Nodes that the leader found dead.
    pub nodes_lost: Counter,
    /// Leases that this node gave away when it drained, and that another took at once (A).
    pub drained_at_once: Counter,
    /// The same after it had asked again (B).
    pub drained_later: Counter,
    /// Leases that it released because nobody took them (C).
    pub drained_released: Counter,
    /// Leases that it left because there was no other node (D).
    pub drained_alone: Counter,
    /// Channels that outlived their leases.
    pub leftovers: Counter,
}
