//! Shards: what a service divides among its workers.

mod allocate;

pub use allocate::{Place, Plan, plan};
