//! How long there is no leader after a leader was killed or stopped: three nodes on one engine, beside etcd.
//!
//! All is timed by this process: from the signal until a task that was submitted through another node is
//! acknowledged by a new leader. What the old leader still acknowledges on its way out does not count.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use orchestrix_testbed::{Server, Store};
use rustix::process::Signal;
use serde::Serialize;
use serde_json::Value;

use crate::etcd;
use crate::figures::{Goal, median};
use crate::http::{self, QUEUE, get};
use crate::process::start_node;
use crate::setup::Setup;
use crate::stores::Kind;

/// The length of a leader lease: the shortest that etcd grants.
pub(crate) const TTL: Duration = Duration::from_secs(2);
/// Both renew three times in that time.
const RENEW: Duration = Duration::from_millis(TTL.as_millis() as u64 / 3);
pub(crate) const NODES: usize = 3;
/// Between two tries of a client that was not answered.
const TRY_AGAIN: Duration = Duration::from_millis(2);
/// Nobody takes over for so long: something is broken.
pub(crate) const GIVE_UP: Duration = Duration::from_secs(30);

const KILLED_WANTED: Duration = Duration::from_millis(TTL.as_millis() as u64 + 100);
const STOPPED_WANTED: Duration = Duration::from_millis(100);
const ENGINES: [Kind; 3] = [Kind::Redis, Kind::MariaDb, Kind::Postgres];

/// Whose leaders change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Contender {
    On(Kind),
    Etcd,
}

/// Why a leader is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Loss {
    Killed,
    Stopped,
}

/// All changes of leader of one kind.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FailoverFigure {
    pub(crate) contender: Contender,
    pub(crate) loss: Loss,
    pub(crate) times: usize,
    pub(crate) median_seconds: f64,
    pub(crate) worst_seconds: f64,
}

impl Contender {
    fn label(self) -> String {
        match self {
            Self::On(kind) => format!("Orchestrix on {}", kind.label()),
            Self::Etcd => "etcd".to_owned(),
        }
    }
}

impl Loss {
    pub(crate) const ALL: [Self; 2] = [Self::Killed, Self::Stopped];

    pub(crate) fn signal(self) -> Signal {
        match self {
            Self::Killed => Signal::KILL,
            Self::Stopped => Signal::TERM,
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Killed => "`kill -9`",
            Self::Stopped => "SIGTERM",
        }
    }
}

/// Somebody whose leader can be taken away.
trait Leaders {
    /// Waits until one leads, the others follow, and all of them know it.
    fn settle(&mut self) -> Result<()>;
    /// Removes the leader, measures the time until another acts, and puts it back as a follower.
    fn lose(&mut self, loss: Loss) -> Result<Duration>;
}

/// # Errors
/// When a server is missing, or no node takes over.
pub(crate) fn measure(setup: &Setup) -> Result<Vec<FailoverFigure>> {
    let mut figures = Vec::new();
    for kind in ENGINES {
        let mut cluster = Cluster::start(setup, kind)?;
        figures.extend(repeat(setup, Contender::On(kind), &mut cluster)?);
    }
    let mut candidates = etcd::Candidates::start(&setup.data.join("failover-etcd"))?;
    figures.extend(repeat(setup, Contender::Etcd, &mut candidates)?);
    Ok(figures)
}

fn repeat(setup: &Setup, contender: Contender, leaders: &mut dyn Leaders) -> Result<Vec<FailoverFigure>> {
    let mut seconds = [Vec::new(), Vec::new()];
    for n in 0..setup.handovers {
        for (loss, seconds) in Loss::ALL.into_iter().zip(&mut seconds) {
            let (label, total) = (contender.label(), setup.handovers);
            setup.step(&format!("change of leader: {label}, {}, {} of {total}", loss.label(), n + 1));
            let context = || format!("{label}, {}", loss.label());
            leaders.settle().with_context(context)?;
            thread::sleep(phase(n, setup.handovers));
            let took = leaders.lose(loss).with_context(context)?;
            seconds.push(took.as_secs_f64());
        }
    }
    let figures = Loss::ALL.into_iter().zip(seconds);
    Ok(figures.map(|(loss, seconds)| FailoverFigure::new(contender, loss, seconds)).collect())
}

/// How long after the last renewal a leader goes decides how long it is missed: spread evenly over all of them.
fn phase(n: usize, total: usize) -> Duration {
    RENEW.mul_f64((n as f64 + 0.5) / total as f64)
}

impl FailoverFigure {
    fn new(contender: Contender, loss: Loss, mut seconds: Vec<f64>) -> Self {
        let median_seconds = median(&mut seconds);
        let worst_seconds = seconds[seconds.len() - 1];
        Self { contender, loss, times: seconds.len(), median_seconds, worst_seconds }
    }

    /// What is wanted of us, and held against the worst of all times. Others have no goals.
    pub(crate) fn goal(&self) -> Option<Goal> {
        let Contender::On(kind) = self.contender else { return None };
        let (what, wanted) = match self.loss {
            Loss::Killed => ("killed", KILLED_WANTED),
            Loss::Stopped => ("stopped", STOPPED_WANTED),
        };
        Some(Goal {
            what: format!(
                "three nodes on {}: a new leader acknowledges after the old one was {what}, worst of {}",
                kind.label(),
                self.times
            ),
            measured: format!("{} (median {})", shown(self.worst_seconds), shown(self.median_seconds)),
            wanted: format!("≤ {}", shown(wanted.as_secs_f64())),
            reached: self.worst_seconds <= wanted.as_secs_f64(),
        })
    }
}

/// The table of this part, its head included. A ratio above 1 is in our favour.
pub(crate) fn rows(figures: &[FailoverFigure]) -> Vec<Vec<String>> {
    let head = ["who", "the leader gets", "times", "median", "× TTL", "worst", "× TTL", "× etcd, median"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let times = |seconds: f64| format!("{:.3}", seconds / TTL.as_secs_f64());
    rows.extend(figures.iter().map(|figure| {
        let same = |other: &&FailoverFigure| other.contender == Contender::Etcd && other.loss == figure.loss;
        let etcd = figures.iter().find(same).filter(|_| figure.contender != Contender::Etcd);
        vec![
            figure.contender.label(),
            figure.loss.label().to_owned(),
            figure.times.to_string(),
            shown(figure.median_seconds),
            times(figure.median_seconds),
            shown(figure.worst_seconds),
            times(figure.worst_seconds),
            etcd.map_or("–".to_owned(), |etcd| {
                format!("{:.2}", etcd.median_seconds / figure.median_seconds)
            }),
        ]
    }));
    rows
}

fn shown(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.0} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
}

/// Three nodes and their engine.
struct Cluster {
    program: PathBuf,
    folder: PathBuf,
    /// First to go: a node without its engine complains.
    nodes: Vec<Server>,
    leader: usize,
    store: Store,
}

impl Cluster {
    fn start(setup: &Setup, kind: Kind) -> Result<Self> {
        setup.step(&format!("change of leader: starting {} and {NODES} nodes", kind.label()));
        let folder = setup.data.join(format!("failover-{}", kind.label()));
        let store = kind.start(&folder)?;
        let program = setup.program.clone();
        let mut cluster = Self { program, folder, nodes: Vec::new(), leader: 0, store };
        for n in 0..NODES {
            cluster.nodes.push(cluster.launch(n)?);
        }
        Ok(cluster)
    }

    fn launch(&self, n: usize) -> Result<Server> {
        let (ttl, name, url) = (format!("{}ms", TTL.as_millis()), name(n), self.store.url());
        let folder = self.folder.with_extension(&name);
        start_node(&self.program, &folder, &["--engine", &url, "--node", &name, "--leader-ttl", &ttl])
    }

    /// Who leads, as far as a node knows, and since which position.
    fn view(&self, n: usize) -> Result<(Option<String>, u64)> {
        let view: Value = serde_json::from_str(&get(self.nodes[n].address(), "/v1/cluster")?)?;
        let leader = view["leader"].as_str().map(str::to_owned);
        Ok((leader, view["term"].as_u64().context("/v1/cluster has no term")?))
    }

    /// Submits through a node until a leader of a later term has acknowledged.
    fn acknowledged(&self, through: usize, term: u64, since: Instant) -> Result<Duration> {
        let mut client = Client { address: self.nodes[through].address(), connection: None };
        let mut acknowledged = Vec::new();
        while since.elapsed() < GIVE_UP {
            match client.submit() {
                Some(id) => acknowledged.push((since.elapsed(), id)),
                None => thread::sleep(TRY_AGAIN),
            }
            if acknowledged.is_empty() {
                continue;
            }
            // The view may be a moment late, so all messages since then are examined.
            let (_, now) = self.view(through)?;
            let first = acknowledged.iter().find(|(_, id)| now > term && *id > now);
            if let Some((took, _)) = first {
                return Ok(*took);
            }
            thread::sleep(TRY_AGAIN);
        }
        bail!("no node took over in {} s", GIVE_UP.as_secs())
    }
}

impl Leaders for Cluster {
    fn settle(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            let views: Result<Vec<_>> = (0..NODES).map(|n| self.view(n)).collect();
            let (leaders, terms): (Vec<_>, Vec<_>) = views?.into_iter().unzip();
            let agreed = leaders.iter().all(|leader| *leader == leaders[0]);
            let agreed = agreed && terms.iter().all(|term| *term == terms[0]);
            let leader = leaders[0].as_deref().and_then(|leader| (0..NODES).find(|n| name(*n) == leader));
            if let Some(leader) = leader.filter(|_| agreed) {
                self.leader = leader;
                return Ok(());
            }
            ensure!(start.elapsed() < GIVE_UP, "the nodes do not agree on a leader: {leaders:?}");
            thread::sleep(TRY_AGAIN);
        }
    }

    fn lose(&mut self, loss: Loss) -> Result<Duration> {
        let through = (self.leader + 1) % NODES;
        let (_, term) = self.view(through)?;
        let since = Instant::now();
        self.nodes[self.leader].signal(loss.signal())?;
        let took = self.acknowledged(through, term, since)?;
        let mut gone = self.nodes.remove(self.leader);
        gone.wait_for_end()?;
        self.nodes.insert(self.leader, self.launch(self.leader)?);
        Ok(took)
    }
}

impl Leaders for etcd::Candidates {
    fn settle(&mut self) -> Result<()> {
        self.wait_for_all()
    }

    fn lose(&mut self, loss: Loss) -> Result<Duration> {
        self.replace(loss.signal())
    }
}

/// Submits over one connection, which is made again when it broke.
struct Client {
    address: SocketAddr,
    connection: Option<http::Alone>,
}

impl Client {
    /// The id of a task that was acknowledged.
    fn submit(&mut self) -> Option<u64> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => http::Alone::connect(self.address).ok()?,
        };
        let body = format!(r#"{{"queue":"{QUEUE}","payload":"hello"}}"#);
        let (status, text) = connection.ask("POST", "/v1/tasks", body.as_bytes()).ok()?;
        self.connection = Some(connection);
        let task: Value = serde_json::from_str(&text).ok().filter(|_| status == 201)?;
        task["id"].as_u64()
    }
}

fn name(n: usize) -> String {
    format!("n{n}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_spread_over_the_time_between_two_renewals() {
        let phases: Vec<Duration> = (0..4).map(|n| phase(n, 4)).collect();
        assert!(phases.is_sorted() && phases[0] > Duration::ZERO && phases[3] < RENEW);
        assert_eq!(phases[1] - phases[0], phases[3] - phases[2]);
    }

    #[test]
    fn the_worst_time_must_meet_the_goal_and_the_median_is_shown() {
        let figure = FailoverFigure::new(Contender::On(Kind::Redis), Loss::Killed, vec![1.9, 2.2, 1.5]);
        let goal = figure.goal().unwrap();
        assert!(!goal.reached);
        assert_eq!((goal.wanted.as_str(), goal.measured.as_str()), ("≤ 2.10 s", "2.20 s (median 1.90 s)"));
        let figure = FailoverFigure::new(Contender::On(Kind::Redis), Loss::Stopped, vec![0.1]);
        assert!(figure.goal().unwrap().reached);
        assert!(FailoverFigure::new(Contender::Etcd, Loss::Stopped, vec![0.1]).goal().is_none());
    }

    #[test]
    fn a_row_has_multiples_of_the_ttl_and_the_ratio_to_etcd() {
        let figures = [
            FailoverFigure::new(Contender::On(Kind::MariaDb), Loss::Killed, vec![2.0]),
            FailoverFigure::new(Contender::Etcd, Loss::Stopped, vec![0.003]),
            FailoverFigure::new(Contender::Etcd, Loss::Killed, vec![2.5]),
        ];
        let rows = rows(&figures);
        let ours = ["Orchestrix on MariaDB", "`kill -9`", "1", "2.00 s", "1.000", "2.00 s", "1.000", "1.25"];
        assert_eq!(rows[1], ours);
        assert_eq!(rows[2][3..], ["3 ms", "0.002", "3 ms", "0.002", "–"]);
    }
}
