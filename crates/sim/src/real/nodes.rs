//! `nodes-…`: three nodes on one engine. The leader is killed, frozen, stopped, held inside an append; the engine is
//! killed. After each fault there is a leader soon, and everything acknowledged is there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use orchestrix_client::Client;
use orchestrix_core::wire::Cluster;
use orchestrix_testbed::{Kind, Store};
use rustix::process::Signal;
use tokio::task::JoinHandle;

use super::ack_log::AckLog;
use super::load::{Actor, Answered};
use super::oracle::hold;
use super::process::{Coordinator, PATIENCE, eventually};
use super::servers;
use super::strace::{Injection, On, Writes};
use super::{Checked, Round, Trial, Tried};

pub(super) const NODES: usize = 3;
const SUBMITTERS: usize = 3;
const WORKERS: usize = 3;
const PAYLOAD: usize = 100;
/// A killed leader is replaced within its time and this; the machine that runs all of it may be busy.
const REPLACED_MARGIN: Duration = Duration::from_secs(3);
/// How long the load waits for an answer of a node that may be cut off.
const ANSWER: Duration = Duration::from_secs(10);
/// Between two tries of a client without an answer.
const PAUSE: Duration = Duration::from_millis(20);

const MUST: &[&str] = &[
    "leaders killed",
    "silent leaders told",
    "leaders frozen",
    "leaders stopped",
    "engines killed",
    "woken leaders that lost their leader lease",
    "stale appends refused",
    "completions",
    "passwords changed",
    // A bucket has no limit of clients, and is never read-only.
    "engines that refused",
];

/// Each kind of round once.
pub(super) const ENOUGH: u64 = 7;

pub(super) fn on_redis(trial: &Trial<'_>) -> Tried {
    run(trial, Kind::Redis)
}

pub(super) fn on_mariadb(trial: &Trial<'_>) -> Tried {
    run(trial, Kind::MariaDb)
}

pub(super) fn on_s3(trial: &Trial<'_>) -> Tried {
    run(trial, Kind::SeaweedFs)
}

pub(super) fn on_postgres(trial: &Trial<'_>) -> Tried {
    run(trial, Kind::Postgres)
}

fn run(trial: &Trial<'_>, kind: Kind) -> Tried {
    let mut cluster: Option<Nodes> = None;
    let must = match kind {
        Kind::Redis | Kind::MariaDb | Kind::Postgres => MUST,
        Kind::SeaweedFs => &MUST[..MUST.len() - 1],
    };
    trial.rounds(ENOUGH, must, |round| {
        let here = match cluster.take() {
            Some(cluster) => cluster,
            None => Nodes::start(trial, kind)?,
        };
        cluster.insert(here).round(round)
    })
}

/// An object store is asked more often for each thing, and looked at less often.
fn ttl(kind: Kind) -> Duration {
    match kind {
        Kind::Redis | Kind::MariaDb | Kind::Postgres => Duration::from_millis(1_500),
        Kind::SeaweedFs => Duration::from_secs(5),
    }
}

/// A node of a number that is not started yet.
pub(super) fn prepare(
    trial: &Trial<'_>,
    engine: &Store,
    number: usize,
    ttl: Duration,
    more: &[&str],
) -> Checked<Coordinator> {
    let (url, name, ttl) = (engine.url(), format!("n{number}"), format!("{}ms", ttl.as_millis()));
    let options = ["--engine", &url, "--node", &name, "--leader-ttl", &ttl, "--snapshot-after", "256KiB"];
    Coordinator::prepare(trial.binary, &[&options, more].concat())
}

/// Three nodes, their engine, and what they are held to.
pub(super) struct Nodes {
    engine: Store,
    kind: Kind,
    /// How long a leader holds its leader lease.
    pub(super) ttl: Duration,
    pub(super) nodes: Vec<Coordinator>,
    ack_log: Arc<AckLog>,
    acknowledged: u64,
    completed: usize,
}

/// Clients of the nodes, until they are stopped.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    actors: Vec<JoinHandle<Checked>>,
}

impl Nodes {
    fn start(trial: &Trial<'_>, kind: Kind) -> Checked<Self> {
        let (engine, ttl) = (Store::start(kind)?, ttl(kind));
        let mut nodes = Vec::new();
        for n in 0..NODES {
            nodes.push(prepare(trial, &engine, n, ttl, &[])?);
        }
        Self::launch(engine, ttl, nodes)
    }

    /// Starts all of them.
    pub(super) fn launch(engine: Store, ttl: Duration, mut nodes: Vec<Coordinator>) -> Checked<Self> {
        nodes.iter_mut().try_for_each(Coordinator::launch)?;
        let ack_log = Arc::new(AckLog::create(nodes[0].file("ack-log"))?);
        let kind = engine.kind();
        Ok(Self { engine, kind, ttl, nodes, ack_log, acknowledged: 0, completed: 0 })
    }

    fn round(&mut self, round: &mut Round<'_>) -> Checked {
        let leader = self.leader(round, None)?;
        let load = self.start_load(round)?;
        std::thread::sleep(Duration::from_millis(round.rng.range(50, 300)));
        // The first rounds have one of each kind.
        let kind = if round.number <= ENOUGH { round.number % 7 } else { round.rng.range(0, 7) };
        match kind {
            0 => self.hold_inside_an_append(round, leader)?,
            1 => self.kill_leader(round, leader)?,
            2 => self.freeze_leader(round, leader)?,
            3 => self.stop_leader(round, leader)?,
            4 => self.refuse(round)?,
            5 => self.change_password(round)?,
            _ => self.kill_engine(round)?,
        }
        round.tried.faults += 1;
        load.end(round)?;
        self.hold(round)
    }

    /// The number of the node that the nodes say leads, other than one that did.
    pub(super) fn leader(&self, round: &Round<'_>, other_than: Option<usize>) -> Checked<usize> {
        let running = self.nodes.iter().enumerate().filter(|(n, _)| Some(*n) != other_than);
        let running: Vec<&Coordinator> = running.map(|(_, node)| node).collect();
        eventually("a node leads, and knows it", || {
            for node in &running {
                let Ok(Cluster { leader: Some(leader), .. }) =
                    round.runtime.block_on(node.client()?.cluster())
                else {
                    continue;
                };
                let number: Option<usize> = leader.strip_prefix('n').and_then(|n| n.parse().ok());
                if number.is_some() && number != other_than {
                    return Ok(number);
                }
            }
            Ok(None)
        })
    }

    /// Waits until a call to another node is decided, and says how long that took.
    fn decided(&self, round: &Round<'_>, lost: usize, since: Instant) -> Checked<Duration> {
        let next = (lost + 1) % NODES;
        let client = self.nodes[next].client()?;
        eventually("another node decides", || Ok(round.runtime.block_on(client.queues()).ok()))?;
        Ok(since.elapsed())
    }

    pub(super) fn replaced(
        &self,
        round: &mut Round<'_>,
        lost: usize,
        since: Instant,
        bound: Duration,
    ) -> Checked {
        let took = self.decided(round, lost, since)?;
        if took > bound + REPLACED_MARGIN {
            return Err(format!("another node decided only after {took:?}, the bound is {bound:?}"));
        }
        let now = self.leader(round, Some(lost))?;
        (now != lost).then_some(()).ok_or_else(|| format!("n{lost} still leads"))
    }

    fn kill_leader(&mut self, round: &mut Round<'_>, leader: usize) -> Checked {
        self.nodes[leader].kill()?;
        round.tried.see("leaders killed", 1);
        let killed = Instant::now();
        self.expect_age(round, leader)?;
        self.replaced(round, leader, killed, self.ttl)?;
        self.nodes[leader].launch()
    }

    /// No node knows yet that the leader is gone, so its state has an age; and it is not well when that is twice the
    /// time in which a leader renews.
    fn expect_age(&self, round: &mut Round<'_>, killed: usize) -> Checked {
        let (client, name) = (self.nodes[(killed + 1) % NODES].client()?, format!("n{killed}"));
        let renew = self.ttl / 3;
        eventually("the age of a dead leader is told", || {
            // The engine may be busy with the election.
            let Ok(view) = round.runtime.block_on(client.cluster()) else { return Ok(None) };
            if view.leader.as_deref() != Some(&*name) {
                return Ok(Some(()));
            }
            let age = view.leader_seen_ms.map(Duration::from_millis);
            let age = age.ok_or_else(|| format!("{name} is dead, and its age is not told: {view:?}"))?;
            if age > 2 * renew && view.why.is_empty() {
                return Err(format!("the last sign of {name} is {age:?} old, and all is well"));
            }
            round.tried.see("silent leaders told", u64::from(!view.why.is_empty()));
            Ok(None)
        })
    }

    /// Half of its time to ten times it: it may keep its leader lease, or wake up without it.
    fn freeze_leader(&mut self, round: &mut Round<'_>, leader: usize) -> Checked {
        let tenths = if round.number <= ENOUGH { 25 } else { [5, 10, 15, 30, 100][round.rng.index(5)] };
        self.nodes[leader].signal(Signal::STOP)?;
        let frozen = Instant::now();
        round.tried.see("leaders frozen", 1);
        let time = self.ttl * tenths / 10;
        if tenths > 20 {
            self.replaced(round, leader, frozen, self.ttl)?;
        }
        std::thread::sleep(time.saturating_sub(frozen.elapsed()));
        self.nodes[leader].signal(Signal::CONT)?;
        if tenths > 20 {
            round.tried.see("woken leaders that lost their leader lease", 1);
        }
        Ok(())
    }

    fn stop_leader(&mut self, round: &mut Round<'_>, leader: usize) -> Checked {
        let stopped = Instant::now();
        self.nodes[leader].signal(Signal::TERM)?;
        round.tried.see("leaders stopped", 1);
        self.replaced(round, leader, stopped, Duration::from_millis(100))?;
        let ended = self.nodes[leader].ended()?;
        if ended.code != Some(0) {
            return Err(format!("a leader that was told to stop ended with {ended:?}"));
        }
        self.nodes[leader].launch()
    }

    fn kill_engine(&mut self, round: &mut Round<'_>) -> Checked {
        self.engine.server.kill();
        round.tried.see("engines killed", 1);
        std::thread::sleep(Duration::from_millis(round.rng.range(10, 2_000)));
        Ok(self.engine.server.launch()?)
    }

    /// The engine refuses every request for about as long as a switchover takes. No node ends because of it.
    fn refuse(&mut self, round: &mut Round<'_>) -> Checked {
        if matches!(self.kind, Kind::SeaweedFs) {
            return self.kill_engine(round);
        }
        let refusal = servers::refuse(&self.engine)?;
        round.tried.see("engines that refused", 1);
        let says_so = || -> Checked<Option<()>> {
            let why = self.nodes.iter().map(|node| {
                round.runtime.block_on(node.client()?.cluster()).map_err(|error| error.to_string())
            });
            let why: Checked<Vec<Cluster>> = why.collect();
            Ok(why?.iter().all(|cluster| !cluster.why.is_empty()).then_some(()))
        };
        eventually("every node says what it waits for", says_so)?;
        std::thread::sleep(Duration::from_millis(round.rng.range(10, 3_000)));
        refusal.end()?;
        self.outlive(round)
    }

    /// The password of the nodes is changed under them, and set back. Meanwhile every node says so in `why`, in `/ready` and in
    /// its log, and none ends.
    fn change_password(&mut self, round: &mut Round<'_>) -> Checked {
        let (waits, logged) =
            ("cannot use the engine and waits", "cannot use the engine: waiting until it answers");
        let lines = |node: &Coordinator| node.said().matches(logged).count();
        let before: Vec<usize> = self.nodes.iter().map(lines).collect();
        servers::change_password(&self.engine)?;
        round.tried.see("passwords changed", 1);
        for (n, node) in self.nodes.iter().enumerate() {
            let says_so = || -> Checked<Option<()>> {
                let cluster = round.runtime.block_on(node.client()?.cluster());
                let cluster = cluster.map_err(|error| error.to_string())?;
                let why = cluster.why.iter().any(|why| why.contains(waits));
                let ready = node.get("/ready")?.contains("waiting for the engine: ");
                Ok((why && ready && lines(node) > before[n]).then_some(()))
            };
            eventually(&format!("n{n} says that it is not let in"), says_so)?;
        }
        std::thread::sleep(Duration::from_millis(round.rng.range(10, 1_000)));
        servers::restore_password(&self.engine)?;
        self.outlive(round)
    }

    /// Every node is there and answers.
    fn outlive(&self, round: &Round<'_>) -> Checked {
        for (n, node) in self.nodes.iter().enumerate() {
            let client = node.client()?;
            let queues = || Ok(round.runtime.block_on(client.queues()).ok());
            eventually(&format!("n{n} outlives the refusals"), queues)?;
        }
        Ok(())
    }

    /// Threads of the leader are held where they send, for longer than a leader lease without proof lasts. When the one
    /// with a batch goes on, another has written.
    fn hold_inside_an_append(&mut self, round: &mut Round<'_>, leader: usize) -> Checked {
        let micros = 2 * self.ttl.as_micros();
        let fault = format!("delay_enter={micros}");
        let injection = Injection {
            call: "sendto,writev",
            on: On::Anything,
            fault: &fault,
            nth: 5,
            writes: Writes::Untold,
        };
        for _ in 0..10 {
            let leader = self.leader(round, None).unwrap_or(leader);
            let before = self.stale_appends()?;
            let tracer = injection.attach(&self.nodes[leader])?;
            eventually("the leader is held and replaced", || {
                let led = round.runtime.block_on(self.nodes[(leader + 1) % NODES].client()?.cluster());
                let replaced = led.is_ok_and(|led| led.leader != Some(format!("n{leader}")));
                Ok((replaced || self.stale_appends()? > before).then_some(()))
            })?;
            std::thread::sleep(self.ttl);
            drop(tracer);
            let refused = self.stale_appends()? - before;
            round.tried.see("stale appends refused", refused);
            if refused > 0 {
                break;
            }
        }
        Ok(())
    }

    fn stale_appends(&self) -> Checked<u64> {
        self.nodes.iter().map(|node| node.metric("orchestrix_stale_appends_total")).sum()
    }

    pub(super) fn start_load(&self, round: &Round<'_>) -> Checked<Load> {
        let stop = Arc::new(AtomicBool::new(false));
        let client = |node: &Coordinator| node.client_with(ANSWER, 0);
        let clients: Checked<Vec<Client>> = self.nodes.iter().map(client).collect();
        let clients = clients?;
        let actor = |kind: &str, n: usize| {
            self.actor(clients[n % NODES].clone(), format!("{kind}{n}-{}", round.number))
        };
        let mut actors = Vec::new();
        for n in 0..SUBMITTERS {
            actors.push(round.runtime.spawn(go_on(
                actor("s", n),
                clients.clone(),
                Arc::clone(&stop),
                Part::Submit,
            )));
        }
        for n in 0..WORKERS {
            actors.push(round.runtime.spawn(go_on(
                actor("w", n),
                clients.clone(),
                Arc::clone(&stop),
                Part::Work,
            )));
        }
        Ok(Load { stop, actors })
    }

    /// A client of the nodes.
    pub(super) fn actor(&self, client: Client, name: String) -> Actor {
        Actor { client, ack_log: Arc::clone(&self.ack_log), name, payload: PAYLOAD }
    }

    /// How many tasks were completed so far.
    pub(super) fn completions(&self) -> Checked<usize> {
        Ok(self.ack_log.settle()?.completed.len())
    }

    /// Checks the nodes against every acknowledgement, through one of them.
    pub(super) fn hold(&mut self, round: &mut Round<'_>) -> Checked {
        self.leader(round, None)?;
        let node = round.rng.index(NODES);
        let client = self.nodes[node].client_with(PATIENCE, 10)?;
        let found = round.runtime.block_on(hold(&client, &self.ack_log, PAYLOAD))?;
        found.tell(round.tried);
        round.tried.acknowledged += found.acked.acknowledged - self.acknowledged;
        self.acknowledged = found.acked.acknowledged;
        round.tried.see("completions", (found.acked.completed.len() - self.completed) as u64);
        self.completed = found.acked.completed.len();
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Part {
    Submit,
    Work,
}

/// Continues until it is stopped; after a node without an answer it asks the next.
async fn go_on(mut actor: Actor, clients: Vec<Client>, stop: Arc<AtomicBool>, part: Part) -> Checked {
    let mut node = 0;
    for count in 0.. {
        if stop.load(Relaxed) {
            break;
        }
        let answered = match part {
            Part::Submit => actor.submit(count).await?,
            Part::Work => actor.work(count, 100).await?,
        };
        if answered == Answered::No {
            node += 1;
            actor.client = clients[node % clients.len()].clone();
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(())
}

impl Load {
    pub(super) fn end(self, round: &Round<'_>) -> Checked {
        self.stop.store(true, Relaxed);
        for actor in self.actors {
            round.runtime.block_on(actor).map_err(|error| format!("the load stopped: {error}"))??;
        }
        Ok(())
    }
}
