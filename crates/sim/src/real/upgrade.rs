//! `nodes-upgrade`: three nodes of an earlier program are stopped and started as this one, node by node under load: in one
//! round the followers first, in the next the leader first. No call fails that the client repeats.

use std::time::Duration;

use orchestrix_testbed::{Kind, Store, free_port};
use rustix::process::Signal;

use super::nodes::{NODES, Nodes, prepare};
use super::rolling::{self, Users};
use super::{Checked, Round, Trial, Tried};

pub(super) const NAME: &str = "nodes-upgrade";
const TTL: Duration = Duration::from_millis(1_500);

const MUST: &[&str] = &["nodes upgraded", "leaders upgraded first", "leaders upgraded last", "completions"];

/// Both orders.
pub(super) const ENOUGH: u64 = 2;

pub(super) fn run(trial: &Trial<'_>) -> Tried {
    trial.rounds(ENOUGH, MUST, |round| {
        let Some(old) = trial.old_binary else {
            return Err("there is no earlier program: give --old-binary FILE".to_owned());
        };
        let engine = Store::start(Kind::Redis)?;
        let earlier = Trial { binary: old, ..*trial };
        let mut nodes = Vec::new();
        for n in 0..NODES {
            nodes.push(prepare(&earlier, &engine, n, TTL, &[])?.on_port(free_port()));
        }
        upgrade(&mut Nodes::launch(engine, TTL, nodes)?, trial, round)
    })
}

fn upgrade(cluster: &mut Nodes, trial: &Trial<'_>, round: &mut Round<'_>) -> Checked {
    let users = Users::start(cluster, round)?;
    let upgraded = upgrade_all(cluster, trial, round);
    users.end(round)?;
    upgraded?;
    cluster.hold(round)
}

fn upgrade_all(cluster: &mut Nodes, trial: &Trial<'_>, round: &mut Round<'_>) -> Checked {
    let leader_first = round.number.is_multiple_of(2);
    let mut left: Vec<usize> = (0..NODES).collect();
    let mut completed = cluster.completions()?;
    while !left.is_empty() {
        // Old and new nodes together are used, or this proves nothing.
        completed = rolling::used(cluster, completed)?;
        let leader = cluster.leader(round, None)?;
        let is_next = |node: &usize| (*node == leader) == leader_first;
        let at = left.iter().position(is_next).unwrap_or(0);
        let node = left.remove(at);
        if node == leader && left.len() == NODES - 1 {
            round.tried.see("leaders upgraded first", 1);
        } else if node == leader && left.is_empty() {
            round.tried.see("leaders upgraded last", 1);
        }
        cluster.nodes[node].signal(Signal::TERM)?;
        let ended = cluster.nodes[node].ended()?;
        if ended.code != Some(0) {
            return Err(format!("a node that was told to stop ended with {ended:?}"));
        }
        cluster.nodes[node].becomes(trial.binary);
        cluster.nodes[node].launch()?;
        round.tried.faults += 1;
        round.tried.see("nodes upgraded", 1);
    }
    rolling::used(cluster, completed).map(drop)
}
