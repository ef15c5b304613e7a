//! A coordinator on an engine and its callers: in this program, as a library, or behind HTTP.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use orchestrix_leadership::Candidate;
use orchestrix_node::{HighWater, Member, Membership, Node, NodeRole, Options};
use orchestrix_testbed::Server;
use serde::Serialize;
use tokio::runtime::Runtime;

use crate::http::{Http, get, metric};
use crate::inprocess::run_callers;
use crate::load::{Rate, Shape, run_cycles};
use crate::process::start_node;
use crate::setup::Setup;
use crate::stores::engine;

/// How long a leader that falls silent is waited for, and how long a call on an engine may take.
const LEADER_TTL: Duration = Duration::from_secs(10);
const ENGINE_TIMEOUT: Duration = Duration::from_secs(2);
/// Nobody else stands for leader.
const ELECTED_WITHIN: Duration = Duration::from_secs(30);

/// How callers reach the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Way {
    Library,
    Http,
}

/// A coordinator that runs.
pub(crate) enum Ours {
    Library { runtime: Runtime, member: Member, node: Node },
    Http(Server),
}

/// Counters of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    pub(crate) batches: f64,
    pub(crate) bytes: f64,
    /// That batches were on their way.
    pub(crate) seconds: f64,
}

impl Way {
    pub(crate) const ALL: [Self; 2] = [Self::Library, Self::Http];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Library => "library",
            Self::Http => "HTTP",
        }
    }

    /// Starts a coordinator that is reached in this way.
    ///
    /// # Errors
    /// When the engine is not there, or refuses something.
    pub(crate) fn start(self, setup: &Setup, engine: &str, folder: &Path) -> Result<Ours> {
        match self {
            Self::Library => Ours::in_this_program(engine),
            Self::Http => Ok(Ours::Http(start_node(&setup.program, folder, &["--engine", engine])?)),
        }
    }
}

impl Ours {
    fn in_this_program(url: &str) -> Result<Self> {
        let url = url.to_owned();
        // Callers need no more than one thread; the node has its own.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (member, node) = runtime.block_on(async {
            let open = move || -> Result<Member> {
                let name = "bench".to_owned();
                let incarnation = format!("bench-{}", std::process::id());
                Ok(Member::open(Membership {
                    engine: engine(&url, ENGINE_TIMEOUT)?,
                    me: Candidate { name: name.clone(), incarnation, address: "http://127.0.0.1".to_owned() },
                    leadership: orchestrix_leadership::Options::first_come(LEADER_TTL),
                    node: Options { node: name, ..Options::default() },
                    high_water: HighWater::in_memory(),
                })?)
            };
            let member = tokio::task::spawn_blocking(open).await.context("opening stopped")??;
            let mut roles = member.roles();
            let led = tokio::time::timeout(
                ELECTED_WITHIN,
                roles.wait_for(|role| !matches!(role, NodeRole::Follows)),
            );
            let role = led.await.context("no leader was elected")??.clone();
            match role {
                NodeRole::Leads(node) => Ok((member, node)),
                NodeRole::Follows => Err(anyhow!("it was waited for")),
            }
        })?;
        Ok(Self::Library { runtime, member, node })
    }

    /// Runs life cycles for the length of a window, so many tasks in a call.
    ///
    /// # Errors
    /// When the coordinator refuses something or goes away.
    pub(crate) fn run(&self, callers: usize, batch: usize, window: Duration) -> Result<Rate> {
        match self {
            Self::Library { runtime, node, .. } => {
                runtime.block_on(run_callers(node, callers, batch, window))
            }
            Self::Http(server) => run_cycles(
                server.address(),
                Shape { connections: callers, lanes: 1, batch },
                window,
                Http::new,
            ),
        }
    }

    /// # Errors
    /// When the coordinator does not answer.
    pub(crate) fn counted(&self) -> Result<Counted> {
        match self {
            Self::Library { node, .. } => {
                let stats = node.stats();
                let (batches, bytes) = (stats.batches.get() as f64, stats.batch_bytes.get() as f64);
                Ok(Counted { batches, bytes, seconds: stats.sync.sum_us() as f64 / 1e6 })
            }
            Self::Http(server) => {
                let page = get(server.address(), "/metrics")?;
                Ok(Counted {
                    batches: metric(&page, "orchestrix_journal_batches_total")?,
                    bytes: metric(&page, "orchestrix_journal_bytes_total")?,
                    seconds: metric(&page, "orchestrix_journal_sync_seconds_sum")?,
                })
            }
        }
    }

    /// Lets the next one lead.
    ///
    /// # Errors
    /// When the last of it could not be written.
    pub(crate) fn stop(self) -> Result<()> {
        match self {
            Self::Library { runtime, member, .. } => Ok(runtime.block_on(member.stop())?),
            Self::Http(server) => {
                drop(server);
                Ok(())
            }
        }
    }
}

impl Counted {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            batches: self.batches - before.batches,
            bytes: self.bytes - before.bytes,
            seconds: self.seconds - before.seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_those_of_the_window_alone() {
        let before = Counted { batches: 10.0, bytes: 1_000.0, seconds: 1.0 };
        let spent = Counted { batches: 40.0, bytes: 7_000.0, seconds: 1.5 }.since(before);
        assert_eq!((spent.batches, spent.bytes, spent.seconds), (30.0, 6_000.0, 0.5));
    }
}
