//! Faults that a machine really has, on the real binary: a disk that fails, a disk that is full, a process that is
//! frozen, a clock that jumps, a log that nobody reads, callers that mean ill. `make prove` does more of it.

#[path = "../support/campaign.rs"]
mod campaign;

use campaign::holds;

#[test]
fn a_sync_that_fails_stops_it_and_nothing_acknowledged_is_lost() {
    holds("syncs");
}

#[test]
fn a_full_disk_refuses_new_tasks_lets_old_ones_end_and_recovers() {
    holds("full");
}

#[test]
fn a_freeze_ends_no_lease_early_and_no_task_late() {
    holds("freezes");
}

#[test]
fn a_clock_that_jumps_ends_no_lease_and_forgets_no_task() {
    holds("clocks");
}

#[test]
fn blocked_pipes_stop_nothing_and_hanging_syncs_are_reported() {
    holds("blocked");
}

#[test]
fn a_thousand_bad_connections_delay_no_other() {
    holds("sockets");
}
