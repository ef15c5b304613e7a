//! The client of Orchestrix: submit tasks, watch them, and execute them.
//!
//! - [`Client`] speaks the HTTP interface: one method per route, the types are those of [`wire`].
//! - [`Worker`] leases tasks and runs an async handler for each of them, with heartbeats, cancellation,
//!   batched completions and a graceful stop.
//!
//! A task is executed at least once and has at most one accepted outcome. Whatever a handler writes to
//! should refuse a [fencing token](Job::lease_id) that is smaller than the largest one it has seen.
//!
//! **Invariant:** a request is repeated only when a repeat is harmless. Nothing here invents an idempotency
//! key: a submit without one is never sent twice, unless the first one certainly did nothing.

mod client;
mod clock;
#[doc(hidden)]
pub mod doors;
mod error;
#[cfg(test)]
mod fake;
mod feed;
mod random;
mod retry;
mod sse;
mod transport;
mod walk;
mod worker;

pub use client::{Client, ClientBuilder, new_task};
pub use clock::{BootClock, Clock};
pub use error::Error;
pub use feed::{EventFeed, FeedEvent, LogFeed};
pub use orchestrix_core::wire;
pub use orchestrix_core::{Json, Key, LeaseId, Name, Position, TaskId, TaskState, Timestamp};
pub use walk::{TaskQuery, TaskWalk};
pub use worker::{Job, JobError, Notice, Noticed, Stop, Worker};
