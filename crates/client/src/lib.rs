//! The client of Orchestrix: submit tasks, watch them, and execute them.
//!
//! - [`Client`] calls the HTTP interface: one method per route, with the types of [`wire`].
//! - [`Worker`] leases tasks and runs an async handler for each of them, with heartbeats, cancellation,
//!   batched completions and a graceful stop.
//! - `BusWorker` (feature `bus`) runs the same handlers, and knows only a Redis server that carries a bus.
//! - [`ShardWorker`] divides the shards of a service with other workers, each to one at a time, over HTTP or ZeroMQ.
//!
//! A task is executed at least once and has at most one accepted outcome. Every store that a handler writes to
//! should refuse a [fencing token](Job::lease_id) that is smaller than the largest one it has seen.
//!
//! # Several addresses
//!
//! Every node of a cluster takes every request, so a client needs the addresses of some of them, one to 16:
//!
//! ```no_run
//! # async fn example() -> Result<(), orchestrix_client::Error> {
//! use orchestrix_client::{Client, Key, new_task};
//!
//! let client = Client::new("http://10.0.0.1:3000,http://10.0.0.2:3000,http://10.0.0.3:3000")?;
//! let mut task = new_task("mail", &"ada@example.org")?;
//! // With a key it is safe to submit again when a node dies before it has answered.
//! task.key = Some(Key::new("welcome-ada").expect("letters and dashes are a key"));
//! let submitted = client.submit(&task).await?;
//! // Every node that answers this knows of the submit.
//! let view = client.task(submitted.id).await?;
//! # Ok(())
//! # }
//! ```
//!
//! The client asks the first address for as long as it answers. When it refuses or breaks the connection, does not
//! answer in time, or answers with a problem of its own (`no_leader`, `stopping`, `overloaded`, `behind`, `outcome_unknown`,
//! `internal`), the next try goes to the next address, and so does everything after it: heartbeats and completions of
//! a [`Worker`], too, so that its leases outlive the node that granted them. [Events](Client::events) and
//! [logs](Client::follow_logs) go on at the next address after the last thing that was seen. The number of tries
//! and the waits between them are those of [`ClientBuilder::retries`], however many addresses there are; while nodes
//! answer that there is no leader, a call goes on for the time of [`ClientBuilder::wait_for_leader`]. An [`Error`] in the end
//! names all that were tried.
//!
//! A client remembers the highest position of the journal that any answer named, and sends it along when it reads,
//! so that a node that is behind waits instead of answering from an older state. If all nodes stay behind it, the
//! read fails with `behind`, and the client forgets the position: they may have begun a new journal.
//!
//! # Repeats
//!
//! **Invariant:** a request is repeated only when a repeat is harmless. Nothing here invents an idempotency
//! key: a submit without one is never sent twice, unless the first one certainly did nothing. [`Client::retry`],
//! [`Client::lead`], a submit without a key, a batch with such a submit and [`Client::append_logs`] without an
//! offset end with [`Error::is_outcome_unknown`] when the connection breaks; everything else is sent again.

mod addresses;
#[cfg(feature = "bus")]
mod bus;
mod call;
mod client;
mod clock;
mod error;
mod exchange;
mod feed;
#[doc(hidden)]
pub mod fuzz_api;
mod random;
mod retry;
mod shards;
mod sse;
#[cfg(test)]
mod tests;
mod transport;
mod tried;
mod walk;
mod worker;

#[cfg(feature = "bus")]
pub use bus::BusWorker;
pub use client::{Client, ClientBuilder, new_task};
pub use clock::{BootClock, Clock};
pub use error::Error;
pub use feed::{EventFeed, FeedEvent, LogFeed};
pub use orchestrix_core::wire;
pub use orchestrix_core::wire::events::Event;
pub use orchestrix_core::{Json, Key, LeaseId, Name, Position, TaskId, TaskState, Timestamp};
pub use shards::{Shard, ShardWorker};
pub use walk::{TaskQuery, TaskWalk};
pub use worker::{Job, JobError, Notice, Noticed, Stop, Worker};
