//! Campaigns against the real binary: the program that ships, as a process, between faults that a machine
//! really has.
//!
//! A campaign draws everything from a seed and runs round after round until its budget is used up. What it
//! cannot choose is when the machine does what, so a seed repeats the faults and not every microsecond.
//!
//! **Invariant:** a fault counts only if it happened: a process that had to die at a call died at that call, and
//! a lease that had to run out ran out. A round that missed its fault is a failure of the campaign.

mod ack_log;
mod blocked;
mod clocks;
mod cut;
mod freezes;
mod full;
mod ground;
mod kills;
mod load;
mod nodes;
mod oracle;
mod points;
mod process;
mod rolling;
mod servers;
mod sockets;
mod strace;
mod syncs;
mod upgrade;
mod wires;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use crate::rng::Rng;

/// A campaign against the real binary.
#[derive(Clone, Copy, Debug)]
pub struct RealCampaign {
    pub name: &'static str,
    /// What goes wrong in it.
    pub what: &'static str,
    /// How much of the time of all campaigns it is worth.
    pub share: u32,
    /// Rounds after which it must have seen everything.
    pub enough: u64,
    run: fn(&Trial<'_>) -> Tried,
}

/// Every campaign there is.
pub const REAL_CAMPAIGNS: [RealCampaign; 15] = [
    RealCampaign {
        name: "kills",
        what: "kill -9 at any time, also while it recovers",
        share: 5,
        enough: kills::ENOUGH,
        run: kills::run,
    },
    RealCampaign {
        name: "points",
        what: "kill -9 at the entry of a named call",
        share: 6,
        enough: points::ENOUGH,
        run: points::run,
    },
    RealCampaign {
        name: "syncs",
        what: "a write or a sync fails with EIO",
        share: 3,
        enough: syncs::ENOUGH,
        run: syncs::run,
    },
    RealCampaign {
        name: "full",
        what: "a small disk is full",
        share: 2,
        enough: full::ENOUGH,
        run: full::run,
    },
    RealCampaign {
        name: "freezes",
        what: "server and workers frozen across ends of leases",
        share: 4,
        enough: freezes::ENOUGH,
        run: freezes::run,
    },
    RealCampaign {
        name: "clocks",
        what: "the date jumps by seconds to ten years",
        share: 2,
        enough: clocks::ENOUGH,
        run: clocks::run,
    },
    RealCampaign {
        name: "sockets",
        what: "a thousand bad connections and JSON bombs",
        share: 4,
        enough: sockets::ENOUGH,
        run: sockets::run,
    },
    RealCampaign {
        name: "blocked",
        what: "nobody reads the log; syncs hang",
        share: 2,
        enough: blocked::ENOUGH,
        run: blocked::run,
    },
    RealCampaign {
        name: "nodes-redis",
        what: "three nodes on Redis: leaders and engine in trouble",
        share: 4,
        enough: nodes::ENOUGH,
        run: nodes::on_redis,
    },
    RealCampaign {
        name: "nodes-mariadb",
        what: "three nodes on MariaDB: leaders and engine in trouble",
        share: 4,
        enough: nodes::ENOUGH,
        run: nodes::on_mariadb,
    },
    RealCampaign {
        name: "nodes-postgres",
        what: "three nodes on PostgreSQL: leaders and engine in trouble",
        share: 4,
        enough: nodes::ENOUGH,
        run: nodes::on_postgres,
    },
    RealCampaign {
        name: "nodes-s3",
        what: "three nodes on a bucket: leaders and store in trouble",
        share: 4,
        enough: nodes::ENOUGH,
        run: nodes::on_s3,
    },
    RealCampaign {
        name: "nodes-cut",
        what: "three nodes on Redis: wires are pulled",
        share: 3,
        enough: cut::ENOUGH,
        run: cut::run,
    },
    RealCampaign {
        name: "nodes-rolling",
        what: "three nodes on Redis: restarted one after the other",
        share: 2,
        enough: rolling::ENOUGH,
        run: rolling::run,
    },
    RealCampaign {
        name: upgrade::NAME,
        what: "three nodes on Redis: upgraded one after the other",
        share: 2,
        enough: upgrade::ENOUGH,
        run: upgrade::run,
    },
];

/// What a campaign is run with.
#[derive(Clone, Copy, Debug)]
pub struct Trial<'a> {
    /// The program that ships.
    pub binary: &'a Path,
    /// An earlier one, whose nodes are upgraded.
    pub old_binary: Option<&'a Path>,
    pub seed: u64,
    /// At most so many rounds.
    pub rounds: u64,
    /// No new round after this time.
    pub time: Duration,
    /// Counts ended rounds, for the progress display.
    pub ended: &'a AtomicU64,
}

/// What a campaign tried, and what came of it.
#[derive(Debug, Default)]
pub struct Tried {
    pub name: &'static str,
    pub rounds: u64,
    pub faults: u64,
    /// Answers that the coordinator was held to.
    pub acknowledged: u64,
    pub seen: BTreeMap<&'static str, u64>,
    /// Rounds after which everything must have been seen.
    pub enough: u64,
    /// What so many rounds must have seen and did not.
    pub missing: Vec<&'static str>,
    /// Broken promises, with the round that found them.
    pub violations: Vec<(u64, String)>,
}

/// A promise that was kept, or the sentence that says which one was not.
pub(crate) type Checked<T = ()> = Result<T, String>;

/// One round of a campaign.
pub(crate) struct Round<'a> {
    pub(crate) number: u64,
    pub(crate) rng: Rng,
    /// For the clients of the coordinator.
    pub(crate) runtime: &'a Runtime,
    pub(crate) tried: &'a mut Tried,
}

impl RealCampaign {
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        REAL_CAMPAIGNS.into_iter().find(|campaign| campaign.name == name)
    }

    /// Whether there is nothing to try without an earlier program.
    #[must_use]
    pub fn needs_old_binary(&self) -> bool {
        self.name == upgrade::NAME
    }

    #[must_use]
    pub fn run(&self, trial: &Trial<'_>) -> Tried {
        Tried { name: self.name, ..(self.run)(trial) }
    }
}

impl Trial<'_> {
    /// Runs rounds until the budget is used up or one fails: what comes after a broken promise says nothing. After
    /// `enough` rounds all of `must` has to have been seen.
    pub(crate) fn rounds(
        &self,
        enough: u64,
        must: &[&'static str],
        mut round: impl FnMut(&mut Round<'_>) -> Checked,
    ) -> Tried {
        let (start, mut seeds) = (Instant::now(), Rng::new(self.seed));
        let mut tried = Tried { enough, ..Tried::default() };
        let runtime = match process::runtime() {
            Ok(runtime) => runtime,
            Err(why) => return Tried { violations: vec![(0, why)], ..tried },
        };
        for number in 1..=self.rounds {
            if start.elapsed() >= self.time || !tried.violations.is_empty() {
                break;
            }
            let rng = seeds.fork();
            let ended = round(&mut Round { number, rng, runtime: &runtime, tried: &mut tried });
            if let Err(violation) = ended {
                tried.violations.push((number, violation));
            }
            tried.rounds = number;
            self.ended.fetch_add(1, Relaxed);
        }
        if tried.rounds >= enough {
            tried.missing = must.iter().copied().filter(|what| !tried.seen.contains_key(what)).collect();
        }
        tried
    }
}

impl Tried {
    /// Whether every promise was kept and everything was seen that had to be.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.violations.is_empty() && self.missing.is_empty()
    }

    pub(crate) fn see(&mut self, what: &'static str, times: u64) {
        if times > 0 {
            *self.seen.entry(what).or_default() += times;
        }
    }
}

/// Something other than a promise went wrong: nothing is proved then either.
pub(crate) fn failed<E: std::fmt::Display>(doing: &str) -> impl FnOnce(E) -> String {
    move |error| format!("cannot {doing}: {error}")
}
