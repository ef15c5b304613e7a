//! `orchestrix-bench`: measures a coordinator beside its peers, in one run, on one machine.
//!
//! The parts, each in its file: `alone` (one client, beside what disk and network cost), `inprocess` (the
//! library), `throughput` (many clients), `million` (a long queue), `engines` (nodes on a shared engine, beside what
//! its server does by itself), `failover` (changes of leader, beside etcd), `links` (what clients of followers cost the
//! leader), `requests` (what a request costs, beside another binary), `shards` (plans, moves, and many workers over
//! ZeroMQ, which `shard_workers` plays). `load` drives all servers alike; `http`, `redis` and `beanstalkd` are what they
//! understand, `raw` and `sql` what servers of engines do; `stores` and `process` start servers. `figures` knows the
//! goals, `report` writes them down, `page` is the rest of the text.
//!
//! **Invariant:** nothing is measured in memory and called a disk, and every figure is from this run.

mod alone;
mod beanstalkd;
mod disk;
mod engines;
mod etcd;
mod failover;
mod figures;
mod http;
mod inprocess;
mod links;
mod load;
mod machine;
mod million;
mod ours;
mod page;
mod payload;
mod process;
mod raw;
mod redis;
mod report;
mod requests;
mod setup;
mod shard_workers;
mod shards;
mod sql;
mod stores;
mod throughput;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};

use self::figures::{Figures, MILLION};
use self::machine::Machine;
use self::report::Report;
use self::setup::{Setup, Size};
use self::stores::Kind;

/// The whole run, in a quarter of an hour.
const FULL: Size =
    Size { window: Duration::from_secs(2), rounds: 5, samples: 3_000, backlog: MILLION, handovers: 20 };
/// A look, in a minute or two. Goals about a million tasks are held against fewer.
const QUICK: Size =
    Size { window: Duration::from_millis(400), rounds: 2, samples: 500, backlog: 100_000, handovers: 2 };

/// The program that is measured: it stands beside this one.
const PROGRAM: &str = "orchestrix";

/// What is measured in this program should allocate as the binary does.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures a coordinator beside Redis Streams, beanstalkd, what engines do by themselves, and etcd.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "orchestrix-bench",
    version,
    after_help = "EXAMPLES\n  orchestrix-bench --quick\n  orchestrix-bench --only in-process,batches --no-peers"
)]
struct BenchArgs {
    /// Folder on a disk for everything that is stored; removed at the end [default: in ./target, or here]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART")]
    only: Vec<Part>,
    /// Only these servers, in the part about engines [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SERVER")]
    stores: Vec<Kind>,
    /// Fewer tasks and shorter windows: a look, not a measurement
    #[arg(long)]
    quick: bool,
    /// Without any other server, and so without the parts that need one
    #[arg(long)]
    no_peers: bool,
    /// Write the page for the documents
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Length of one window of load, in milliseconds
    #[arg(long, value_name = "MS")]
    window_ms: Option<u64>,
    /// Tasks of the long queue
    #[arg(long, value_name = "N")]
    tasks: Option<usize>,
    /// The binary whose `serve` is measured [default: `orchestrix` beside this one]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Another binary, usually an older one, beside which requests are measured
    #[arg(long, value_name = "FILE")]
    old: Option<PathBuf>,
    /// How often servers take turns; the median counts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=99))]
    turns: Option<u16>,
    /// Write one JSON value instead of tables
    #[arg(long)]
    json: bool,
}

/// A part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// What a synced write and a round trip cost; `alone` measures it too
    Machine,
    /// One client alone
    Alone,
    /// Through the library
    InProcess,
    /// Over HTTP, 256 tasks per call
    Batches,
    /// Over HTTP, one task per call
    OneByOne,
    /// A long queue
    Million,
    /// Batches on Redis, MariaDB, PostgreSQL and S3, beside what these do by themselves
    Engines,
    /// Changes of leader among three nodes, beside etcd
    Failover,
    /// What a leader pays for clients of its followers
    Links,
    /// Processor time of a request, beside that of the binary that `--old` names
    Requests,
    /// Plans and moves of shards, and a thousand workers over ZeroMQ
    Shards,
}

impl Part {
    /// Whether there is nothing to measure without another server.
    fn needs_peers(self) -> bool {
        matches!(self, Self::Engines | Self::Failover | Self::Links)
    }
}

fn main() -> ExitCode {
    match run(&BenchArgs::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The receiver may be gone.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures, and writes the result to stdout. Takes minutes and all of the machine. A goal that is not reached is no error.
fn run(args: &BenchArgs) -> Result<()> {
    let beside = std::env::current_exe()?.with_file_name(PROGRAM);
    let program = program(args.program.as_deref().unwrap_or(&beside), "--program")?;
    let old = args.old.as_deref().map(|old| self::program(old, "--old")).transpose()?;
    ensure!(
        old.is_some() || !args.only.contains(&Part::Requests),
        "requests are measured beside a binary that --old names"
    );
    let start = Instant::now();
    let parent = data_folder(args.data.as_deref())?;
    let folder = tempfile::Builder::new().prefix("orchestrix-bench-").tempdir_in(&parent)?;
    process::end_when_interrupted(folder.path().to_owned())?;
    machine::check_disk(folder.path())?;
    let facts = Machine::look(folder.path(), versions(args)?)?;
    let setup = Setup::new(folder.path().to_owned(), program, !args.no_peers, args.stores(), size(args))?;
    let mut figures = Figures { backlog: setup.backlog, ..Figures::default() };
    let measured = measure(&setup, args, old.as_deref(), &mut figures);
    setup.finish();
    let report = Report::new(facts, figures, start.elapsed().as_secs_f64());
    // What came before a part that failed took minutes; only the page is for whole runs.
    tell(&report, args.json, args.write.as_deref().filter(|_| measured.is_ok()))?;
    measured
}

/// Every part that was asked for, one after the other.
fn measure(setup: &Setup, args: &BenchArgs, old: Option<&Path>, figures: &mut Figures) -> Result<()> {
    let wanted = |part: Part| args.wants(part);
    if wanted(Part::Alone) {
        figures.add(alone::measure_alone(setup).context("one client alone")?);
    } else if wanted(Part::Machine) {
        figures.add(alone::measure_machine(setup).context("the machine")?);
    }
    if wanted(Part::InProcess) {
        figures.add(inprocess::measure(&setup.data, setup.window, |step| setup.step(step))?);
    }
    if wanted(Part::Batches) {
        figures.add(throughput::measure_batches(setup).context("batches")?);
    }
    if wanted(Part::OneByOne) {
        figures.add(throughput::measure_one_by_one(setup).context("one by one")?);
    }
    if wanted(Part::Million) {
        figures.add(million::measure(setup).context("a long queue")?);
    }
    if wanted(Part::Engines) {
        engines::measure(setup, &mut figures.engines).context("engines")?;
    }
    if wanted(Part::Failover) {
        figures.failovers = failover::measure(setup).context("changes of leader")?;
    }
    if wanted(Part::Links) {
        figures.links = Some(links::measure(setup).context("clients at followers")?);
    }
    if let Some(old) = old.filter(|_| wanted(Part::Requests)) {
        figures.requests = Some(requests::measure(setup, old).context("requests")?);
    }
    if wanted(Part::Shards) {
        figures.shards = Some(shards::measure(setup).context("shards")?);
    }
    Ok(())
}

impl BenchArgs {
    fn wants(&self, part: Part) -> bool {
        match &self.only[..] {
            [] => !(self.no_peers && part.needs_peers()),
            only => only.contains(&part),
        }
    }

    fn stores(&self) -> Vec<Kind> {
        if self.stores.is_empty() { Kind::ALL.to_vec() } else { self.stores.clone() }
    }
}

fn size(args: &BenchArgs) -> Size {
    let mut size = if args.quick { QUICK } else { FULL };
    if let Some(ms) = args.window_ms {
        size.window = Duration::from_millis(ms);
    }
    if let Some(tasks) = args.tasks {
        size.backlog = tasks;
    }
    if let Some(turns) = args.turns {
        size.rounds = usize::from(turns);
    }
    size
}

/// The versions of all servers that are needed; looking for them first fails early.
fn versions(args: &BenchArgs) -> Result<Vec<(&'static str, String)>> {
    if args.no_peers {
        let needs = args.only.iter().find(|part| part.needs_peers());
        ensure!(needs.is_none(), "{needs:?} is about other servers: it cannot be had with --no-peers");
        return Ok(Vec::new());
    }
    let mut versions = Vec::new();
    let (engines, failover) = (args.wants(Part::Engines), args.wants(Part::Failover));
    let links = args.wants(Part::Links);
    let streams =
        [Part::Alone, Part::Batches, Part::OneByOne, Part::Million].into_iter().any(|part| args.wants(part));
    if streams {
        versions.push(("beanstalkd", beanstalkd::version()?));
    }
    for kind in Kind::ALL {
        let engines = engines && args.stores().contains(&kind);
        let needed = match kind {
            Kind::Redis => streams || engines || failover || links,
            Kind::MariaDb | Kind::Postgres => engines || failover,
            Kind::SeaweedFs => engines,
        };
        if needed {
            versions.push((kind.label(), kind.version()?));
        }
    }
    if failover {
        versions.push(("etcd", etcd::version()?));
    }
    Ok(versions)
}

/// A binary to measure, by a path that holds wherever it is started.
fn program(asked: &Path, option: &str) -> Result<PathBuf> {
    asked.canonicalize().with_context(|| format!("there is no {}; name one with {option}", asked.display()))
}

/// Where data goes: what was asked for, else where builds go, else here.
fn data_folder(asked: Option<&Path>) -> Result<PathBuf> {
    let target = Path::new("target");
    let folder = match asked {
        Some(folder) => folder,
        None if target.is_dir() => target,
        None => Path::new("."),
    };
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder.canonicalize()?)
}

fn tell(report: &Report, json: bool, page: Option<&Path>) -> Result<()> {
    if let Some(page) = page {
        ensure!(!report.goals.is_empty(), "nothing was measured that the page could tell");
        fs::write(page, report.page()).with_context(|| format!("cannot write {}", page.display()))?;
    }
    let text = if json { format!("{}\n", serde_json::to_string(report)?) } else { report.text() };
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}
