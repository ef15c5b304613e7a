//! Options of the bus, with the defaults that its users know.

use std::time::Duration;

/// Times of a cluster on a bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusOptions {
    /// How long a lease of the bus lasts after a heartbeat that names it.
    pub lease: Duration,
    /// How often a node sends a heartbeat to the others (`HeartbeatInterval`).
    pub heartbeat_interval: Duration,
    /// A node of which nothing was heard for so long is dead (`DeadNodeTimeout`).
    pub dead_node_timeout: Duration,
    /// How long a node that drains waits for a new owner before it asks again (`HandoffAckTimeout`).
    pub handoff_ack_timeout: Duration,
    /// How often it asks again (`HandoffMaxRetries`).
    pub handoff_max_retries: u32,
    /// How long a drain takes at most (`HandoffHardTimeout`).
    pub handoff_hard_timeout: Duration,
    /// How often the leader looks for leases without an owner (`OrphanCheckInterval`).
    pub orphan_check_interval: Duration,
}

impl Default for BusOptions {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(60),
            heartbeat_interval: Duration::from_secs(10),
            dead_node_timeout: Duration::from_secs(30),
            handoff_ack_timeout: Duration::from_secs(5),
            handoff_max_retries: 3,
            handoff_hard_timeout: Duration::from_secs(60),
            orphan_check_interval: Duration::from_secs(30),
        }
    }
}
