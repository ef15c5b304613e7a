//! The wires of a node, and `orchestrix serve`.
//!
//! - [`http::start`] puts a node on a socket; tests and embedders use it directly.
//! - [`mod@zmq`] puts it on another, for workers with shards that speak ZeroMQ.
//! - [`serve`] is the whole process: settings, recovery, signals, exit codes.
//!
//! **Invariant:** nothing here decides anything about tasks. Requests become calls of
//! [`orchestrix_node::Node`], answers become JSON.

mod bus;
pub mod config;
mod coordinator;
mod descriptors;
pub mod engine;
pub mod http;
pub mod line_queue;
mod link;
pub mod metrics;
mod printing;
mod private;
pub mod reaping;
pub mod serve;
pub mod tokens;
pub mod units;
pub mod zmq;
