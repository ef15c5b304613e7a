//! A long queue: what a waiting task costs in memory, in time and after a crash.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use orchestrix_testbed::Server;

use crate::beanstalkd::{self, Beanstalkd};
use crate::figures::{Figure, Measure, Who, median, thousands};
use crate::http::{Http, get, metric};
use crate::load::{Alone, Dialect, Ticket, fill, run_cycles};
use crate::process::{spawn_orchestrix, start_node};
use crate::redis::{self, Redis};
use crate::setup::Setup;
use crate::throughput::BATCHES;

/// The short queue that the long one is compared with.
const FEW: usize = 1_000;
/// Pairs of windows whose median counts.
const PAIRS: usize = 5;
/// Windows until a snapshot has to be taken.
const SNAPSHOT_WINDOWS: usize = 60;
/// From the page of metrics: snapshots taken, how long they kept the loop, and its longest turn, since the start.
const SNAPSHOTS: &str = "orchestrix_snapshots_total";
const SNAPSHOT_PAUSE: &str = "orchestrix_snapshot_pause_max_seconds";
const LONGEST_TURN: &str = "orchestrix_turn_busy_max_seconds";
/// The same with the waits for a processor and for the disk.
const LONGEST_TURN_WAITED: &str = "orchestrix_turn_max_seconds";

/// Everything about a long queue, beside both peers.
///
/// # Errors
/// When a server does not start, refuses something or goes away.
pub(crate) fn measure(setup: &Setup) -> Result<Vec<Figure>> {
    let folder = setup.folder("backlog", Who::Orchestrix)?;
    let server = start_node(&setup.program, &folder, &[])?;
    let memory = fill_up(setup, Who::Orchestrix, &server, Http::new)?;
    drop(server);
    let (server, restart) = restart(setup, Who::Orchestrix, || spawn_orchestrix(&setup.program, &folder))?;
    let mut figures = vec![memory, restart];
    figures.extend(compare_cost(setup, &server)?);
    figures.extend(pauses(setup, &server)?);
    drop(server);
    std::fs::remove_dir_all(&folder)?;
    if setup.peers {
        figures.extend(measure_redis(setup).context("Redis with a long queue")?);
        figures.extend(measure_beanstalkd(setup).context("beanstalkd with a long queue")?);
    }
    Ok(figures)
}

fn measure_redis(setup: &Setup) -> Result<Vec<Figure>> {
    let folder = setup.folder("backlog", Who::Redis)?;
    let server = redis::start(&folder)?;
    let memory = fill_up(setup, Who::Redis, &server, Redis::new)?;
    drop(server);
    let (server, restart) = restart(setup, Who::Redis, || redis::spawn(&folder))?;
    drop(server);
    std::fs::remove_dir_all(&folder)?;
    Ok(vec![memory, restart])
}

fn measure_beanstalkd(setup: &Setup) -> Result<Vec<Figure>> {
    let folder = setup.folder("backlog", Who::Beanstalkd)?;
    let server = beanstalkd::start(&folder, beanstalkd::Sync::Never)?;
    let memory = fill_up(setup, Who::Beanstalkd, &server, |_| Beanstalkd)?;
    drop(server);
    let spawn = |folder: &Path| beanstalkd::spawn(folder, beanstalkd::Sync::BeforeTheAnswer);
    let (server, restart) = restart(setup, Who::Beanstalkd, || spawn(&folder))?;
    drop(server);
    std::fs::remove_dir_all(&folder)?;
    Ok(vec![memory, restart])
}

/// Fills a new server and returns how much memory a waiting task takes.
fn fill_up<D: Dialect>(
    setup: &Setup,
    who: Who,
    server: &Server,
    dialect: impl Fn(usize) -> D,
) -> Result<Figure> {
    setup.step(&format!("long queue: {}, filling", who.label()));
    let (before, total) = (server.memory()?, setup.backlog);
    setup.count(total as u64);
    let start = Instant::now();
    fill(server.address(), BATCHES, total, dialect, |done| setup.counted(done))?;
    let seconds = start.elapsed().as_secs_f64();
    server.wait_until_quiet()?;
    let grown = server.memory()?.saturating_sub(before);
    let note =
        format!("{} tasks, stored in {seconds:.1} s, VmRSS less that at the start", thousands(total as f64));
    Ok(Figure::new(Measure::MemoryPerTask, who, grown as f64 / total as f64, note))
}

/// The same load on the full server and on one with a short queue, in turns.
fn compare_cost(setup: &Setup, full: &Server) -> Result<Vec<Figure>> {
    let folder = setup.folder("few", Who::Orchestrix)?;
    let few = start_node(&setup.program, &folder, &[])?;
    fill(few.address(), BATCHES, FEW, Http::new, |_| {})?;
    let (mut costs, mut speeds) = (Vec::new(), Vec::new());
    for pair in 1..=PAIRS {
        setup.step(&format!("long queue: cost of a life cycle, pair {pair}"));
        let (small, large) = (window(setup, &few)?, window(setup, full)?);
        costs.push(large.cpu_us / small.cpu_us);
        speeds.push(large.per_second / small.per_second);
    }
    drop(few);
    std::fs::remove_dir_all(&folder)?;
    let note = format!(
        "{} waiting against 1,000, batches, median of {PAIRS} pairs of windows",
        thousands(setup.backlog as f64)
    );
    Ok(vec![
        Figure::new(Measure::CostOfBacklog, Who::Orchestrix, median(&mut costs), note.clone()),
        Figure::new(Measure::SpeedUnderBacklog, Who::Orchestrix, median(&mut speeds), note),
    ])
}

struct Window {
    cpu_us: f64,
    per_second: f64,
}

fn window(setup: &Setup, server: &Server) -> Result<Window> {
    let before = server.cpu()?;
    let rate = run_cycles(server.address(), BATCHES, setup.window, Http::new)?;
    let used = server.cpu()?.saturating_sub(before);
    ensure!(!used.is_zero(), "the window was too short to see the processor time of the server");
    Ok(Window { cpu_us: used.as_secs_f64() * 1e6 / rate.total as f64, per_second: rate.per_second })
}

/// From starting the process to holding the first task.
fn restart(setup: &Setup, who: Who, spawn: impl Fn() -> Result<Server>) -> Result<(Server, Figure)> {
    setup.step(&format!("long queue: {}, starting after kill -9", who.label()));
    let start = Instant::now();
    let server = spawn()?;
    server.wait_for(|| Ok(try_lease(who, &server).ok().flatten()))?;
    let took = start.elapsed();
    let note = format!("{} tasks waiting", thousands(setup.backlog as f64));
    Ok((server, Figure::new(Measure::Restart, who, took.as_secs_f64(), note)))
}

fn try_lease(who: Who, server: &Server) -> Result<Option<Ticket>> {
    match who {
        Who::Orchestrix => Alone::connect(server.address(), Http::new(0))?.lease(),
        Who::Redis => Alone::connect(server.address(), Redis::new(0))?.lease(),
        Who::Beanstalkd => Alone::connect(server.address(), Beanstalkd)?.lease(),
        Who::Machine => unreachable!("the machine is not a server"),
    }
}

/// Loads the full server until it has taken a snapshot since its start, and returns how long that kept its loop
/// from deciding, and how long a turn of decisions took.
fn pauses(setup: &Setup, server: &Server) -> Result<Vec<Figure>> {
    let look = |name: &str| metric(&get(server.address(), "/metrics")?, name);
    for _ in 0..SNAPSHOT_WINDOWS {
        if look(SNAPSHOTS)? > 0.0 {
            break;
        }
        setup.step("long queue: life cycles until a snapshot is taken");
        run_cycles(server.address(), BATCHES, setup.window.min(Duration::from_secs(1)), Http::new)?;
    }
    let taken = look(SNAPSHOTS)?;
    ensure!(taken > 0.0, "no snapshot was taken under load");
    let waiting = thousands(setup.backlog as f64);
    let pause = format!("processor time, {waiting} waiting, under batches; snapshots taken: {taken}");
    let waited = look(LONGEST_TURN_WAITED)? * 1e3;
    let turn = format!("processor time; {waited:.1} ms with all waits for a processor and the disk");
    Ok(vec![
        Figure::new(Measure::SnapshotPause, Who::Orchestrix, look(SNAPSHOT_PAUSE)? * 1e3, pause),
        Figure::new(Measure::LongestTurn, Who::Orchestrix, look(LONGEST_TURN)? * 1e3, turn),
    ])
}
