//! Three real nodes on each kind of real server: leaders are killed, frozen, stopped and held inside an append, and the
//! server is killed. `make prove` does more of it.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../support/campaign.rs"]
mod campaign;
mod pruned;

use campaign::holds;

#[test]
fn three_nodes_on_redis_are_one_coordinator() {
    holds("nodes-redis");
}

#[test]
fn three_nodes_on_mariadb_are_one_coordinator() {
    holds("nodes-mariadb");
}

#[test]
fn three_nodes_on_a_bucket_are_one_coordinator() {
    holds("nodes-s3");
}

#[test]
fn a_node_whose_wire_is_pulled_is_replaced_and_comes_back() {
    holds("nodes-cut");
}

#[test]
fn a_rolling_restart_fails_no_call_that_the_client_repeats() {
    holds("nodes-rolling");
}

#[test]
fn three_nodes_on_postgres_are_one_coordinator() {
    holds("nodes-postgres");
}
