//! `nodes-rolling`: three nodes are restarted one after the other under load. No call fails that the client repeats.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use orchestrix_client::Client;
use orchestrix_testbed::{Kind, Store, free_port};
use rustix::process::Signal;
use tokio::task::JoinHandle;

use super::load::{Actor, Answered};
use super::nodes::{NODES, Nodes, prepare};
use super::process::{PATIENCE, eventually};
use super::{Checked, Round, Trial, Tried, failed};

const ACTORS: usize = 3;
const TTL: Duration = Duration::from_millis(1_500);
/// More than a restart takes, with the waits between them.
const RETRIES: u32 = 12;

const MUST: &[&str] = &["nodes restarted", "leaders among them", "completions"];

pub(super) const ENOUGH: u64 = 2;

pub(super) fn run(trial: &Trial<'_>) -> Tried {
    let mut cluster: Option<Nodes> = None;
    trial.rounds(ENOUGH, MUST, |round| {
        let here = match cluster.take() {
            Some(cluster) => cluster,
            None => start(trial)?,
        };
        roll(cluster.insert(here), round)
    })
}

fn start(trial: &Trial<'_>) -> Checked<Nodes> {
    let engine = Store::start(Kind::Redis)?;
    let mut nodes = Vec::new();
    for n in 0..NODES {
        nodes.push(prepare(trial, &engine, n, TTL, &[])?.on_port(free_port()));
    }
    Nodes::launch(engine, TTL, nodes)
}

fn roll(cluster: &mut Nodes, round: &mut Round<'_>) -> Checked {
    let users = Users::start(cluster, round)?;
    let rolled = restart_all(cluster, round);
    users.end(round)?;
    rolled?;
    cluster.hold(round)
}

fn restart_all(cluster: &mut Nodes, round: &mut Round<'_>) -> Checked {
    let mut completed = cluster.completions()?;
    for node in 0..NODES {
        completed = used(cluster, completed)?;
        let leader = cluster.leader(round, None)?;
        cluster.nodes[node].signal(Signal::TERM)?;
        let ended = cluster.nodes[node].ended()?;
        if ended.code != Some(0) {
            return Err(format!("a node that was told to stop ended with {ended:?}"));
        }
        cluster.nodes[node].launch()?;
        round.tried.faults += 1;
        round.tried.see("nodes restarted", 1);
        round.tried.see("leaders among them", u64::from(leader == node));
    }
    Ok(())
}

/// Waits until more is completed. A restart before a client has used the node proves nothing.
pub(super) fn used(cluster: &Nodes, completed: usize) -> Checked<usize> {
    eventually("something is completed between two restarts", || {
        let now = cluster.completions()?;
        Ok((now > completed).then_some(now))
    })
}

/// Users of the nodes, with the client that repeats safe calls. A call that fails all the same is a broken promise.
pub(super) struct Users {
    stop: Arc<AtomicBool>,
    actors: Vec<JoinHandle<Checked>>,
}

impl Users {
    pub(super) fn start(cluster: &Nodes, round: &Round<'_>) -> Checked<Self> {
        let addresses: Vec<String> = cluster.nodes.iter().map(|node| node.url()).collect();
        let client = Client::builder_of(&addresses).timeout(PATIENCE).retries(RETRIES);
        let client = client.build().map_err(failed("make a client"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut actors = Vec::new();
        for n in 0..ACTORS {
            let name = |kind: &str| format!("{kind}{n}-{}", round.number);
            let (submitter, worker) =
                (cluster.actor(client.clone(), name("s")), cluster.actor(client.clone(), name("w")));
            actors.push(round.runtime.spawn(submit_all(submitter, Arc::clone(&stop))));
            actors.push(round.runtime.spawn(work_all(worker, Arc::clone(&stop))));
        }
        Ok(Self { stop, actors })
    }

    pub(super) fn end(self, round: &Round<'_>) -> Checked {
        self.stop.store(true, Relaxed);
        for actor in self.actors {
            round.runtime.block_on(actor).map_err(|error| format!("the load stopped: {error}"))??;
        }
        Ok(())
    }
}

async fn submit_all(actor: Actor, stop: Arc<AtomicBool>) -> Checked {
    for count in 0.. {
        if stop.load(Relaxed) {
            break;
        }
        answered(actor.submit(count).await?, "a submit")?;
    }
    Ok(())
}

async fn work_all(actor: Actor, stop: Arc<AtomicBool>) -> Checked {
    for count in 0.. {
        if stop.load(Relaxed) {
            break;
        }
        answered(actor.work(count, 100).await?, "a call of a worker")?;
    }
    Ok(())
}

fn answered(answered: Answered, what: &str) -> Checked {
    match answered {
        Answered::Yes => Ok(()),
        Answered::No => Err(format!("{what} failed, though the client repeats it")),
    }
}
