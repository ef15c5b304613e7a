//! The HTTP interface of a node and `orchestrix serve`.
//!
//! - [`http::start`] puts a node on a socket; tests and embedders use it directly.
//! - [`serve`] is the whole process: settings, recovery, signals, exit codes.
//!
//! **Invariant:** nothing here decides anything about tasks. Requests become calls of
//! [`orchestrix_node::Node`], answers become JSON.

pub mod config;
pub mod http;
pub mod metrics;
pub mod serve;
pub mod tokens;
pub mod units;
