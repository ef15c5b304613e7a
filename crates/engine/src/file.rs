//! The embedded engine: a journal, its snapshots and task logs as files in one folder.
//!
//! Start with [`FileJournal::start`], load a snapshot, then [`Opening::replay`] hands out every batch after
//! it in one pass and leaves a journal that can be appended to. `docs/journal.md` has the byte layout and
//! the rules of recovery.
//!
//! **Invariant:** a batch is durable before `append` answers, a durable batch is never cut off or skipped,
//! and after a failed write or sync nothing is written any more.

mod floor;
mod journal;
pub(crate) mod layout;
mod logs;
mod names;
mod opening;
mod segment;
mod segment_pool;
mod snapshot;
mod verify;

pub use journal::FileJournal;
pub use logs::{FileLogs, LogRecovery, TASK_CHUNKS_MAX};
pub use opening::{Cut, Opening, Recovery, take_lock};
pub use verify::{Batches, Damage, Report, SnapshotReport, verify, verify_disk};

/// How a file journal uses its folder.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// How long segments are, in bytes. `None`: from 1 MiB to 64 MiB, each up to twice as long as the one
    /// before, and at most a sixteenth of what is free.
    pub segment_bytes: Option<u64>,
    pub prepare: Prepare,
}

/// Who writes the zeros of the next segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prepare {
    /// A thread, ahead of need.
    #[default]
    Thread,
    /// The caller, whenever a spare was used: one thread, the same order every time.
    Inline,
}
