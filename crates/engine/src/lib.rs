//! Storage engines: the contracts that a node needs, and the engines that implement them.
//!
//! - [`Journal`]: the ordered batches of events, and the snapshots that shorten their replay.
//! - [`Register`]: cells with compare-and-set.
//! - [`Logs`]: the output of running tasks.
//! - [`bus::Bus`]: messages between nodes and workers.
//! - [`Shared`]: all of them, on an engine that several nodes use at once.
//! - [`mod@file`]: the embedded engine. [`memory`]: the same contracts without a disk.
//! - `redis` (with the feature of that name): a server that several nodes use.
//! - `s3` (likewise): objects in a bucket.
//! - `sql`: on a database server, with the feature `mysql` or `postgres`.
//! - [`disk`]: the only access to files, real or simulated.
//! - [`suite`]: the conformance suite that every engine's tests call.
//!
//! **Invariant:** an engine knows bytes and positions, never what an event means.

pub mod batch_frame;
pub mod bus;
mod chain;
mod clock;
mod contract;
pub mod disk;
mod fault;
pub mod file;
mod limit;
mod log_throttle;
pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;
mod register;
#[cfg(feature = "s3")]
pub mod s3;
mod shared;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub mod sql;
pub mod suite;

pub use chain::*;
pub use clock::*;
pub use contract::*;
pub use log_throttle::*;
pub use register::*;
pub use shared::*;
