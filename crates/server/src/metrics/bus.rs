//! Numbers about the bus. Those that say "at the leader" are 0 elsewhere.

use super::{Kind, Row, Unit, counter, gauge};

pub(super) const ROWS: &[Row] = &[
    counter("orchestrix_bus_offers_total", "Tasks offered over the bus, at the leader.", |s| &s.bus.offered),
    counter(
        "orchestrix_bus_leases_started_total",
        "Leases that workers of the bus started, at the leader.",
        |s| &s.bus.started,
    ),
    gauge("orchestrix_bus_leases", "Leases of the bus, at the leader: so many tasks have channels.", |s| {
        &s.bus.leases
    }),
    gauge("orchestrix_bus_orphans", "Leases of the bus that no node owns, at the leader.", |s| {
        &s.bus.orphans
    }),
    Row {
        name: "orchestrix_bus_lag_seconds",
        kind: Kind::Gauge,
        meaning: "How long the oldest of these has no owner, at the leader.",
        unit: Unit::Millis,
        value: |s| &s.bus.lag_ms,
    },
    counter("orchestrix_bus_messages_malformed_total", "Messages on the bus that could not be used.", |s| {
        &s.bus.malformed
    }),
    counter(
        "orchestrix_bus_channels_outlived_total",
        "Channels that were closed after their lease was forgotten, at the leader.",
        |s| &s.bus.leftovers,
    ),
    counter("orchestrix_bus_reports_total", "Reports of this node to the leader.", |s| &s.bus.reports),
    counter("orchestrix_bus_report_items_total", "What workers had said in these reports.", |s| {
        &s.bus.report_items
    }),
    gauge("orchestrix_bus_owned", "Leases that this node owns.", |s| &s.bus.owned),
    gauge("orchestrix_bus_draining", "1 while this node drains.", |s| &s.bus.drains),
    counter("orchestrix_bus_adopted_total", "Leases that this node took over from another.", |s| {
        &s.bus.adopted
    }),
    counter(
        "orchestrix_bus_assigned_total",
        "Leases that the leader gave to a node because none had taken them.",
        |s| &s.bus.assigned,
    ),
    counter(
        "orchestrix_bus_rebalanced_total",
        "Leases that the leader asked to move from a node that had many.",
        |s| &s.bus.moved,
    ),
    counter("orchestrix_bus_nodes_lost_total", "Nodes that the leader found dead.", |s| &s.bus.nodes_lost),
    counter(
        "orchestrix_bus_drained_at_once_total",
        "Leases that this node gave away while it drained (case A).",
        |s| &s.bus.drained_at_once,
    ),
    counter(
        "orchestrix_bus_drained_later_total",
        "The same after it had asked more than once (case B).",
        |s| &s.bus.drained_later,
    ),
    counter(
        "orchestrix_bus_drained_released_total",
        "Leases that this node released because none took them (case C).",
        |s| &s.bus.drained_released,
    ),
    counter(
        "orchestrix_bus_drained_alone_total",
        "Leases that this node left because it was the last one (case D).",
        |s| &s.bus.drained_alone,
    ),
];
