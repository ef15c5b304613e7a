//! Tests of a client against nodes that fail, and the nodes for them.

pub(crate) mod fake;
mod rolling_restart;
mod several_addresses;
