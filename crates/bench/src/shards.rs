//! Shards: how long a plan takes and how much it moves, what a thousand workers cost, how long a shard is without one.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use orchestrix_core::shards::{Place, plan};
use orchestrix_testbed::Server;
use serde::Serialize;

use crate::figures::{Goal, median};
use crate::process::{free_address, start_node};
use crate::setup::Setup;
use crate::shard_workers::Worker;

/// The largest plan that is promised to be quick.
const PLANNED: (u32, usize) = (100_000, 1_000);
/// Shards and workers that moves are counted with.
const MOVED: [(u32, usize); 2] = [(1_024, 10), (1_024, 100)];
/// Workers with a heartbeat every second, and their shards.
const CROWD: usize = 1_000;
const CROWD_SHARDS: u32 = 10_000;
/// Workers of which one goes.
const TEAM: usize = 10;
const TEAM_SHARDS: u32 = 100;
/// How long a worker of the team may be silent.
const LEASE: Duration = Duration::from_secs(2);
const CHECK: Duration = Duration::from_millis(500);

const PLAN_WANTED: Duration = Duration::from_millis(50);
const PROCESSOR_WANTED: f64 = 0.2;
const ANSWER_WANTED: Duration = Duration::from_millis(20);
const KILLED_WANTED: Duration = Duration::from_millis(3_000);
const LEFT_WANTED: Duration = Duration::from_millis(100);

/// All that this part measures.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ShardFigures {
    plans: Vec<PlanFigure>,
    moves: Vec<MoveFigure>,
    crowd: CrowdFigure,
    killed: GapFigure,
    left: GapFigure,
}

#[derive(Clone, Debug, Serialize)]
struct PlanFigure {
    what: &'static str,
    seconds: f64,
}

/// How many shards moved, by us and by splitting anew.
#[derive(Clone, Debug, Serialize)]
struct MoveFigure {
    shards: u32,
    workers: usize,
    what: &'static str,
    least: usize,
    ours: usize,
    anew: usize,
}

#[derive(Clone, Debug, Serialize)]
struct CrowdFigure {
    heartbeats: usize,
    /// Of one processor.
    processor: f64,
    heartbeat_p50_seconds: f64,
    heartbeat_p99_seconds: f64,
    register_p99_seconds: f64,
}

/// How long shards had no worker.
#[derive(Clone, Debug, Serialize)]
struct GapFigure {
    times: usize,
    median_seconds: f64,
    worst_seconds: f64,
}

/// # Errors
/// When the coordinator does not do what it should.
pub(crate) fn measure(setup: &Setup) -> Result<ShardFigures> {
    setup.step("shards: plans");
    let plans = plans();
    let moves = MOVED.into_iter().flat_map(|(shards, workers)| moves(shards, workers)).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    setup.step(&format!("shards: {CROWD} workers over ZeroMQ"));
    let crowd = runtime.block_on(crowd(setup)).context("a thousand workers")?;
    let mut gaps = [Vec::new(), Vec::new()];
    let (_server, zmq) = start(setup, "team")?;
    for n in 0..setup.handovers {
        for (gap, says_so) in gaps.iter_mut().zip([false, true]) {
            let how = if says_so { "leaves" } else { "falls silent" };
            setup.step(&format!("shards: a worker {how}, {} of {}", n + 1, setup.handovers));
            gap.push(runtime.block_on(gone(zmq, says_so)).with_context(|| format!("a worker {how}"))?);
        }
    }
    let [killed, left] = gaps.map(GapFigure::new);
    Ok(ShardFigures { plans, moves, crowd, killed, left })
}

/// Who has what after a plan; whatever is withdrawn passes at once.
fn planned(holders: &mut [Option<usize>], workers: usize) -> Duration {
    let places = vec![Place { capacity: None }; workers];
    let began = Instant::now();
    let withdrawn = plan(&places, holders, None, |shard| holders[shard as usize].is_none());
    let took = began.elapsed();
    withdrawn.withdraw.iter().for_each(|shard| holders[*shard as usize] = None);
    let given = plan(&places, holders, None, |shard| holders[shard as usize].is_none());
    given.give.iter().for_each(|(shard, worker)| holders[*shard as usize] = Some(*worker));
    took
}

fn plans() -> Vec<PlanFigure> {
    let (shards, workers) = PLANNED;
    let measured = |what, before: &dyn Fn() -> Vec<Option<usize>>, workers| {
        let mut seconds: Vec<f64> = (0..5).map(|_| planned(&mut before(), workers).as_secs_f64()).collect();
        PlanFigure { what, seconds: median(&mut seconds) }
    };
    let settled = || {
        let mut holders = vec![None; shards as usize];
        planned(&mut holders, workers);
        holders
    };
    vec![
        measured("from nothing", &|| vec![None; shards as usize], workers),
        measured("one worker comes", &settled, workers + 1),
        measured("the last worker goes", &|| without_last(settled(), workers), workers - 1),
    ]
}

/// The shards of the last worker are free.
fn without_last(mut holders: Vec<Option<usize>>, workers: usize) -> Vec<Option<usize>> {
    holders.iter_mut().for_each(|holder| *holder = holder.filter(|worker| worker + 1 < workers));
    holders
}

/// A worker comes, and a worker goes: what moves beyond what must.
fn moves(shards: u32, workers: usize) -> [MoveFigure; 2] {
    let count = shards as usize;
    let mut before = vec![None; count];
    planned(&mut before, workers);
    let changed = |before: &[Option<usize>], after: &[Option<usize>]| {
        before.iter().zip(after).filter(|(before, after)| before != after).count()
    };
    let of = |what, least, now: usize, held: Vec<Option<usize>>| {
        let (mut ours, mut anew) = (held, vec![None; count]);
        planned(&mut ours, now);
        planned(&mut anew, now);
        MoveFigure {
            shards,
            workers,
            what,
            least,
            ours: changed(&before, &ours),
            anew: changed(&before, &anew),
        }
    };
    let had = before.iter().filter(|holder| **holder == Some(workers - 1)).count();
    [
        of("one worker comes", count / (workers + 1), workers + 1, before.clone()),
        of("one worker goes", had, workers - 1, without_last(before.clone(), workers)),
    ]
}

/// A coordinator, and its ZeroMQ address.
fn start(setup: &Setup, name: &str) -> Result<(Server, SocketAddr)> {
    let zmq = free_address();
    let (lease, check) = (format!("{}ms", LEASE.as_millis()), format!("{}ms", CHECK.as_millis()));
    let address = zmq.to_string();
    let mut options = vec!["--zmq", &address];
    if name == "team" {
        options.extend(["--shard-lease", &lease, "--shard-check", &check]);
    }
    Ok((start_node(&setup.program, &setup.data.join(format!("shards-{name}")), &options)?, zmq))
}

/// A thousand workers with a heartbeat every second; now and then one registers again.
async fn crowd(setup: &Setup) -> Result<CrowdFigure> {
    let (server, zmq) = start(setup, "crowd")?;
    let mut workers = Vec::with_capacity(CROWD);
    for n in 0..CROWD {
        workers.push(Worker::connect(zmq, format!("w{n:04}"), CROWD_SHARDS).await?);
    }
    let coming = workers.iter_mut().map(Worker::register);
    futures_util::future::try_join_all(coming).await?;
    // Shares settle: the first workers have released their excess.
    for _ in 0..3 {
        futures_util::future::try_join_all(workers.iter_mut().map(Worker::heartbeat)).await?;
        tokio::time::sleep(Duration::from_millis(600)).await;
    }
    let length = setup.window.mul_f64(5.0).max(Duration::from_secs(2));
    let (cpu, began) = (server.cpu()?, Instant::now());
    let all = workers.into_iter().enumerate().map(|(n, worker)| {
        let phase = Duration::from_secs(1).mul_f64(n as f64 / CROWD as f64);
        beat(worker, began + phase, began + length, n % 20 == 0)
    });
    let beats = futures_util::future::try_join_all(all).await?;
    let processor = (server.cpu()? - cpu).as_secs_f64() / began.elapsed().as_secs_f64();
    let mut heartbeats: Vec<f64> = beats.iter().flat_map(|(heartbeats, _)| heartbeats).copied().collect();
    let mut registers: Vec<f64> = beats.iter().flat_map(|(_, registers)| registers).copied().collect();
    ensure!(!heartbeats.is_empty() && !registers.is_empty(), "the window is too short");
    Ok(CrowdFigure {
        heartbeats: heartbeats.len(),
        processor,
        heartbeat_p50_seconds: median(&mut heartbeats),
        heartbeat_p99_seconds: p99(&mut heartbeats),
        register_p99_seconds: p99(&mut registers),
    })
}

/// One worker, a heartbeat every second; how long each answer took, and each to a worker that registers again.
async fn beat(
    mut worker: Worker,
    mut next: Instant,
    end: Instant,
    registers: bool,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut heartbeats, mut again) = (Vec::new(), Vec::new());
    while next < end {
        tokio::time::sleep_until(next.into()).await;
        heartbeats.push(worker.heartbeat().await?.as_secs_f64());
        if registers {
            again.push(worker.register().await?.as_secs_f64());
        }
        next += Duration::from_secs(1);
    }
    Ok((heartbeats, again))
}

fn p99(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() * 99 / 100).min(values.len() - 1)]
}

/// One of a team goes right after a heartbeat. How long until the others have all that it had.
async fn gone(zmq: SocketAddr, says_so: bool) -> Result<f64> {
    let mut team = Vec::new();
    for n in 0..TEAM {
        team.push(Worker::connect(zmq, format!("t{n}"), TEAM_SHARDS).await?);
    }
    futures_util::future::try_join_all(team.iter_mut().map(Worker::register)).await?;
    // Nothing moves any more, and the last round was a while ago.
    let settle = Instant::now() + Duration::from_millis(700);
    while Instant::now() < settle || held(&team) < TEAM_SHARDS as usize {
        futures_util::future::try_join_all(team.iter_mut().map(Worker::heartbeat)).await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut victim = team.pop().context("there is a last one")?;
    victim.heartbeat().await?;
    let began = Instant::now();
    if says_so {
        victim.leave().await?;
    } else {
        drop(victim);
    }
    let all = team.iter_mut().map(|worker| async {
        // Each of the others gets at least one of its shards.
        let had = worker.told.assigned_shards.len();
        loop {
            tokio::select! {
                told = worker.hear() => if told?.assigned_shards.len() > had { return Ok(()) },
                () = tokio::time::sleep(LEASE / 4) => drop(worker.heartbeat().await?),
            }
            if worker.told.assigned_shards.len() > had {
                return anyhow::Ok(());
            }
        }
    });
    futures_util::future::try_join_all(all).await?;
    let took = began.elapsed().as_secs_f64();
    for worker in &mut team {
        worker.leave().await?;
    }
    Ok(took)
}

fn held(team: &[Worker]) -> usize {
    team.iter().map(|worker| worker.told.assigned_shards.len()).sum()
}

impl GapFigure {
    fn new(mut seconds: Vec<f64>) -> Self {
        let median_seconds = median(&mut seconds);
        Self { times: seconds.len(), median_seconds, worst_seconds: seconds[seconds.len() - 1] }
    }
}

impl ShardFigures {
    pub(crate) fn goals(&self) -> Vec<Goal> {
        let within = |what: String, seconds: f64, wanted: Duration| Goal {
            what,
            measured: shown(seconds),
            wanted: format!("≤ {}", shown(wanted.as_secs_f64())),
            reached: seconds <= wanted.as_secs_f64(),
        };
        let slowest = self.plans.iter().map(|plan| plan.seconds).fold(0.0, f64::max);
        let (shards, workers) = PLANNED;
        let least = self.moves.iter().all(|figure| figure.ours == figure.least);
        let crowd = &self.crowd;
        vec![
            within(
                format!("a plan for {shards} shards and {workers} workers, the slowest"),
                slowest,
                PLAN_WANTED,
            ),
            Goal {
                what: "shards that move when a worker comes or goes, relative to what must".to_owned(),
                measured: format!("{:.2} ×", self.moves.iter().map(MoveFigure::times).fold(0.0, f64::max)),
                wanted: "1.00 ×".to_owned(),
                reached: least,
            },
            Goal {
                what: format!("{CROWD} ZeroMQ workers with a heartbeat every second, of one processor"),
                measured: format!("{:.1} %", crowd.processor * 100.0),
                wanted: format!("≤ {:.0} %", PROCESSOR_WANTED * 100.0),
                reached: crowd.processor <= PROCESSOR_WANTED,
            },
            within(
                "their heartbeats are answered (p99)".to_owned(),
                crowd.heartbeat_p99_seconds,
                ANSWER_WANTED,
            ),
            within(
                "a repeated registration is answered (p99)".to_owned(),
                crowd.register_p99_seconds,
                ANSWER_WANTED,
            ),
            within(
                format!("a killed worker's shards are held again, worst of {}", self.killed.times),
                self.killed.worst_seconds,
                KILLED_WANTED,
            ),
            within(
                format!("the shards of a worker that leaves are held again, worst of {}", self.left.times),
                self.left.worst_seconds,
                LEFT_WANTED,
            ),
        ]
    }

    /// The table of this part, its head included.
    pub(crate) fn rows(&self) -> Vec<Vec<String>> {
        let mut rows = vec![vec!["what".to_owned(), "measured".to_owned()]];
        let (shards, workers) = PLANNED;
        rows.extend(self.plans.iter().map(|plan| {
            vec![format!("plan for {shards} shards, {workers} workers, {}", plan.what), shown(plan.seconds)]
        }));
        rows.extend(self.moves.iter().map(|figure| {
            let MoveFigure { shards, workers, what, least, ours, anew } = figure;
            vec![
                format!("{shards} shards, {workers} workers, {what}: shards that move"),
                format!(
                    "{ours} of {least} that must; splitting anew {anew}, which is {:.1} ×",
                    *anew as f64 / *least as f64
                ),
            ]
        }));
        let CrowdFigure {
            heartbeats,
            processor,
            heartbeat_p50_seconds,
            heartbeat_p99_seconds,
            register_p99_seconds,
        } = &self.crowd;
        let gap = |gap: &GapFigure| {
            format!("median {}, worst {}", shown(gap.median_seconds), shown(gap.worst_seconds))
        };
        rows.extend(
            [
                (
                    format!("{CROWD} workers, {CROWD_SHARDS} shards: heartbeats counted"),
                    heartbeats.to_string(),
                ),
                (
                    "the coordinator's share of one processor".to_owned(),
                    format!("{:.1} %", processor * 100.0),
                ),
                ("a heartbeat is answered, p50".to_owned(), shown(*heartbeat_p50_seconds)),
                ("a heartbeat is answered, p99".to_owned(), shown(*heartbeat_p99_seconds)),
                ("a repeated registration is answered, p99".to_owned(), shown(*register_p99_seconds)),
                (
                    format!(
                        "a worker of {TEAM} is killed: its {} shards are held again",
                        TEAM_SHARDS / TEAM as u32
                    ),
                    gap(&self.killed),
                ),
                ("the same when it leaves".to_owned(), gap(&self.left)),
            ]
            .map(|(what, measured)| vec![what, measured]),
        );
        rows
    }
}

impl MoveFigure {
    fn times(&self) -> f64 {
        self.ours as f64 / self.least as f64
    }
}

fn shown(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 0.01 => format!("{:.2} ms", seconds * 1e3),
        seconds if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        seconds => format!("{seconds:.2} s"),
    }
}
