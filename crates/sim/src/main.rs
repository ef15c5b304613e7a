//! `prove`: runs worlds, and campaigns against the real binary, and prints a table of them.

#![expect(clippy::print_stdout, reason = "it prints its findings")]
#![expect(clippy::print_stderr, reason = "it says how far it is")]

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use clap::Parser;
use orchestrix_core::FoundBy;
use orchestrix_sim::{
    Campaign, ClusterPlan, ClusterWorld, DamageCampaign, Length, Plan, REAL_CAMPAIGNS, RealCampaign, Row,
    ShardWorldPlan, Shrink, Trial, Violation, World, damage, fuzz, prove, prove_calm, prove_clusters,
    prove_shards, run_cluster_plan, run_plan, run_shards_plan, shrink, table,
};

// Worlds allocate much and free it soon.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs the coordinator between faults, in simulated worlds, on damaged disks and as a real process, and holds it
/// against its invariants.
#[derive(Debug, Parser)]
#[command(
    name = "prove",
    after_help = "EXAMPLES\n  prove --seconds 60\n  prove --seconds 600 --binary target/release/orchestrix\n  \
                  prove --seed 4711 --tell\n  prove --seed 4711 --shrink\n  prove --binary target/release/orchestrix --only kills --seed 7 --rounds 1000"
)]
struct Args {
    /// Run for so long. In 150 and more, a campaign that has run too few rounds to see everything is a failure; in
    /// less, it is a warning
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// At most so many worlds
    #[arg(long, default_value_t = u64::MAX)]
    worlds: u64,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Run the world of this seed alone; with --only, the seed of the campaign
    #[arg(long)]
    seed: Option<u64>,
    /// With --seed: print everything that happens
    #[arg(long)]
    tell: bool,
    /// With --seed: if the world fails, look for a simpler one that breaks the same invariant
    #[arg(long, requires = "seed")]
    shrink: bool,
    /// The program that ships; without it no campaign against it is run
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// The program of an earlier version; without it no node is upgraded
    #[arg(long, value_name = "FILE", requires = "binary")]
    old_binary: Option<PathBuf>,
    /// The script that fuzzes all decoders; without it none is
    #[arg(long, value_name = "FILE")]
    fuzzer: Option<PathBuf>,
    /// Run this alone: worlds, cluster, shards, calm, damage, fuzz, or a campaign against the binary: kills, points, syncs, full,
    /// freezes, clocks, sockets, blocked, nodes-redis, nodes-mariadb, nodes-postgres, nodes-s3, nodes-cut, nodes-rolling or nodes-upgrade
    #[arg(long, value_name = "NAME", value_parser = part)]
    only: Option<Part>,
    /// With --only and a campaign against the binary: at most so many rounds, however long they take
    #[arg(long, requires = "only")]
    rounds: Option<u64>,
    /// Plant every bug in turn and say in how many worlds it is found, after so many seconds without one; needs the
    /// feature `planted`
    #[arg(long, conflicts_with = "plant")]
    bugs: bool,
    /// Plant this bug first
    #[arg(long, value_name = "NAME")]
    plant: Option<String>,
}

/// Something that can be tried.
#[derive(Clone, Copy, Debug)]
enum Part {
    Worlds,
    Cluster,
    Shards,
    Calm,
    Damage,
    Fuzz,
    Real(RealCampaign),
}

/// How the time is divided between worlds, worlds with several nodes, worlds with shards, calm ones, damage, fuzzing and
/// the campaigns against the binary together.
const SHARES: [u32; 7] = [16, 11, 8, 2, 8, 15, 40];
/// Between two lines of progress where nothing can be written over.
const PROGRESS: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(bug) = &args.plant
        && !orchestrix_core::plant(bug)
    {
        println!("no bug {bug:?} can be planted here; the feature `planted` is needed");
        return ExitCode::FAILURE;
    }
    if args.bugs {
        return plant_all(&args);
    }
    match (args.seed, args.only) {
        (Some(seed), None) => return run_one(seed, &args),
        (Some(seed), Some(Part::Cluster)) => return run_one_cluster(seed, &args),
        (Some(seed), Some(Part::Shards)) => return run_one_with_shards(seed, &args),
        (_, _) => {}
    }
    let time = Duration::from_secs(args.seconds);
    let rows = match args.only {
        Some(part) => run_part(part, &args, time).into_iter().collect(),
        None => run_all(&args, time),
    };
    if rows.is_empty() {
        println!(
            "this needs --binary FILE, --fuzzer FILE for `fuzz`, or --old-binary FILE for `nodes-upgrade`"
        );
        return ExitCode::FAILURE;
    }
    let length = Length::of(time);
    print!("{}", table(&rows, length));
    if rows.iter().all(|row| row.is_good(length)) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn part(name: &str) -> Result<Part, String> {
    match name {
        "worlds" => Ok(Part::Worlds),
        "cluster" => Ok(Part::Cluster),
        "shards" => Ok(Part::Shards),
        "calm" => Ok(Part::Calm),
        "damage" => Ok(Part::Damage),
        "fuzz" => Ok(Part::Fuzz),
        name => RealCampaign::named(name).map(Part::Real).ok_or_else(|| {
            let names: Vec<&str> = REAL_CAMPAIGNS.iter().map(|campaign| campaign.name).collect();
            format!("there are worlds, cluster, shards, calm, damage, fuzz, {}", names.join(", "))
        }),
    }
}

/// Everything that can be tried with what was given, each for its share of the time.
fn run_all(args: &Args, time: Duration) -> Vec<Row> {
    let given = [true, true, true, true, true, args.fuzzer.is_some(), args.binary.is_some()];
    let whole: u32 = SHARES.iter().zip(given).filter(|(_, given)| *given).map(|(share, _)| share).sum();
    let [worlds, cluster, shards, calm, damage, fuzz, real] = SHARES.map(|share| time * share / whole);
    let mut parts = vec![(Part::Worlds, worlds), (Part::Cluster, cluster), (Part::Shards, shards)];
    parts.extend([(Part::Calm, calm), (Part::Damage, damage), (Part::Fuzz, fuzz)]);
    let shares: u32 = REAL_CAMPAIGNS.iter().map(|campaign| campaign.share).sum();
    parts.extend(REAL_CAMPAIGNS.map(|campaign| (Part::Real(campaign), real * campaign.share / shares)));
    parts.into_iter().filter_map(|(part, time)| run_part(part, args, time)).collect()
}

/// Nothing, if what it needs was not given.
fn run_part(part: Part, args: &Args, time: Duration) -> Option<Row> {
    let seed = args.seed.unwrap_or(args.first);
    match part {
        Part::Worlds => {
            let outcome = run_worlds("worlds", args, time, |campaign, count| prove(campaign, count));
            Some(Row::of_worlds("worlds", "prove", &outcome))
        }
        Part::Cluster => {
            let label = "cluster: several nodes";
            let outcome = run_worlds(label, args, time, |campaign, count| prove_clusters(campaign, count));
            Some(Row::of_worlds("cluster", "prove --only cluster", &outcome))
        }
        Part::Shards => {
            let label = "shards: workers that divide them";
            let outcome = run_worlds(label, args, time, |campaign, count| prove_shards(campaign, count));
            Some(Row::of_worlds("shards", "prove --only shards", &outcome))
        }
        Part::Calm => {
            let label = "calm: days of several nodes";
            let outcome = run_worlds(label, args, time, |campaign, count| prove_calm(campaign, count));
            Some(Row::of_calm(&outcome))
        }
        Part::Damage => Some(run_damage(seed, time)),
        Part::Fuzz => {
            let script = args.fuzzer.as_deref()?;
            let done = AtomicU64::new(0);
            Some(with_progress("fuzz: all decoders", "targets", &done, || fuzz(script, time, &done)))
        }
        Part::Real(campaign) => {
            if campaign.needs_old_binary() && args.old_binary.is_none() {
                return None;
            }
            let time = if args.rounds.is_some() { Duration::MAX } else { time };
            Some(run_real(&campaign, args.binary.as_deref()?, seed, args, time))
        }
    }
}

fn run_damage(seed: u64, time: Duration) -> Row {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let campaign = DamageCampaign { first_seed: seed, seeds: u64::MAX, time, threads };
    let done = AtomicU64::new(0);
    Row::of_damage(&with_progress("damage: flips, cuts, sectors, losses of power", "lives", &done, || {
        damage(campaign)
    }))
}

fn run_real(campaign: &RealCampaign, binary: &Path, seed: u64, args: &Args, time: Duration) -> Row {
    let (ended, old_binary) = (AtomicU64::new(0), args.old_binary.as_deref());
    let rounds = args.rounds.unwrap_or(u64::MAX);
    let trial = Trial { binary, old_binary, seed, rounds, time, ended: &ended };
    let label = format!("{}: {}", campaign.name, campaign.what);
    let tried = with_progress(&label, "rounds", &ended, || campaign.run(&trial));
    Row::of_real(&tried, binary, seed)
}

/// Runs worlds of a kind.
fn run_worlds<T>(
    label: &str,
    args: &Args,
    time: Duration,
    run: fn(Campaign, &(dyn Fn(u64) + Sync)) -> T,
) -> T {
    let ended = AtomicU64::new(0);
    let count = |_| {
        ended.fetch_add(1, Relaxed);
    };
    with_progress(label, "worlds", &ended, || run(campaign(args, time), &count))
}

fn campaign(args: &Args, time: Duration) -> Campaign {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    Campaign { first_seed: args.first, seeds: args.worlds, time, threads }
}

/// Says on standard error how far it is while something runs: one line that changes on a terminal, else a line
/// every half minute.
fn with_progress<T>(what: &str, unit: &str, ended: &AtomicU64, run: impl FnOnce() -> T) -> T {
    let (done, wait) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || tell_progress(what, unit, ended, &wait));
        let outcome = run();
        drop(done);
        outcome
    })
}

fn tell_progress(what: &str, unit: &str, ended: &AtomicU64, wait: &Receiver<()>) {
    let (began, terminal) = (Instant::now(), std::io::stderr().is_terminal());
    let every = if terminal { Duration::from_millis(200) } else { PROGRESS };
    let line = || format!("{what}: {} {unit} in {} s", ended.load(Relaxed), began.elapsed().as_secs());
    while wait.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
        if terminal {
            eprint!("\r\x1b[K{}", line());
            // A line that is not shown at once is shown with the next.
            let _ = std::io::stderr().flush();
        } else {
            eprintln!("{}", line());
        }
    }
    if terminal {
        eprint!("\r\x1b[K");
    }
}

fn run_one(seed: u64, args: &Args) -> ExitCode {
    let plan = shrunk(Plan::draw(seed), args, |plan| run_plan(plan).violations);
    println!("{plan:#?}");
    let world = World::new(plan);
    let ended = if args.tell { world.telling() } else { world }.run();
    tell_one(&ended.listing, ended.seconds, ended.calls, &ended.violations)
}

fn run_one_cluster(seed: u64, args: &Args) -> ExitCode {
    let plan = shrunk(ClusterPlan::draw(seed), args, |plan| run_cluster_plan(plan).violations);
    println!("{plan:#?}");
    let world = ClusterWorld::new(plan);
    let ended = if args.tell { world.telling() } else { world }.run();
    tell_one(&ended.listing, ended.seconds, ended.calls, &ended.violations)
}

fn run_one_with_shards(seed: u64, args: &Args) -> ExitCode {
    let plan = shrunk(ShardWorldPlan::draw(seed), args, |plan| run_shards_plan(plan).violations);
    println!("{plan:#?}");
    let ended = if args.tell { plan.listing() } else { run_shards_plan(plan) };
    tell_one(&ended.listing, ended.seconds, ended.calls, &ended.violations)
}

/// If it is asked for and the world of a plan fails, a simpler one that breaks the same invariant.
fn shrunk<P: Shrink + Clone>(plan: P, args: &Args, run: impl Fn(P) -> Vec<Violation>) -> P {
    if !args.shrink {
        return plan;
    }
    let Some(broken) = run(plan.clone()).into_iter().next() else { return plan };
    shrink(plan, |plan| run(plan.clone()).iter().any(|violation| violation.invariant == broken.invariant))
}

fn tell_one(listing: &[String], seconds: u64, calls: u64, violations: &[Violation]) -> ExitCode {
    for line in listing {
        println!("{line}");
    }
    println!("{seconds} simulated seconds, {calls} calls");
    for violation in violations {
        println!("VIOLATION {violation}");
    }
    if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs worlds without a bug, in which nothing may be found, and then with every bug in turn. Each must be found by an
/// invariant that it breaks: what else goes wrong in its worlds does not count.
fn plant_all(args: &Args) -> ExitCode {
    let campaign = campaign(args, Duration::from_secs(args.seconds));
    // A planted bug may panic anywhere; the panic is reported with the others.
    std::panic::set_hook(Box::new(|_| {}));
    let kinds: [(&str, Found, Run); 3] = [
        ("worlds", Found::Worlds, |campaign| {
            let outcome = prove(campaign, |_| {});
            (outcome.worlds, outcome.failed)
        }),
        ("worlds with several nodes", Found::Cluster, |campaign| {
            let outcome = prove_clusters(campaign, |_| {});
            (outcome.worlds, outcome.failed)
        }),
        ("worlds with shards", Found::Shards, |campaign| {
            let outcome = prove_shards(campaign, |_| {});
            (outcome.worlds, outcome.failed)
        }),
    ];
    let mut unfound = 0;
    for (name, kind, run) in kinds {
        let only = match args.only {
            None => true,
            Some(Part::Worlds) => kind == Found::Worlds,
            Some(Part::Cluster) => kind == Found::Cluster,
            Some(Part::Shards) => kind == Found::Shards,
            Some(Part::Calm | Part::Damage | Part::Fuzz | Part::Real(_)) => false,
        };
        if !only {
            continue;
        }
        let _ = orchestrix_core::plant("");
        let (worlds, failed) = run(campaign);
        if let Some((seed, violation)) = failed.first() {
            println!("without a bug, seed {seed} has a violation: {violation}");
            return ExitCode::FAILURE;
        }
        println!("{worlds} {name} without a bug, and nothing found");
        println!(
            "{:<26} {:>7} {:>7}  {:<40} found by (and beside it)",
            "bug", "worlds", "first", "what it does"
        );
        for bug in orchestrix_core::BUGS {
            let by = match (bug.found_by, kind) {
                (FoundBy::Worlds(by), Found::Worlds)
                | (FoundBy::Cluster(by), Found::Cluster)
                | (FoundBy::Shards(by), Found::Shards) => by,
                (FoundBy::Worlds(_) | FoundBy::Cluster(_) | FoundBy::Shards(_) | FoundBy::Test(..), _) => {
                    continue;
                }
            };
            if !orchestrix_core::plant(bug.name) {
                println!("nothing can be planted in this build: the feature `planted` is needed");
                return ExitCode::FAILURE;
            }
            let (worlds, failed) = run(campaign);
            let found = Shown::of(&failed, by);
            unfound += u32::from(found.first.is_none());
            let first = found.first.map_or("never".to_owned(), |seed| (seed - args.first + 1).to_string());
            println!("{:<26} {worlds:>7} {first:>7}  {:<40} {found}", bug.name, bug.what);
        }
    }
    if unfound == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs worlds of one kind; says how many, and what was broken in which.
type Run = fn(Campaign) -> (u64, Vec<(u64, Violation)>);

/// Which kind of worlds looks for a bug.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Worlds,
    Cluster,
    Shards,
}

/// What worlds with a planted bug showed.
struct Shown {
    /// The first seed in which an invariant failed that the bug breaks.
    first: Option<u64>,
    /// These, and what else failed.
    by: BTreeSet<&'static str>,
    beside: BTreeSet<&'static str>,
}

impl Shown {
    fn of(failed: &[(u64, Violation)], by: &[&str]) -> Self {
        let failed = || failed.iter().map(|(seed, violation)| (*seed, violation.invariant));
        let expected = |invariant: &&str| by.contains(invariant);
        Self {
            first: failed().filter(|(_, invariant)| expected(invariant)).map(|(seed, _)| seed).min(),
            by: failed().map(|(_, invariant)| invariant).filter(expected).collect(),
            beside: failed().map(|(_, invariant)| invariant).filter(|found| !expected(found)).collect(),
        }
    }
}

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words = |set: &BTreeSet<&'static str>| set.iter().copied().collect::<Vec<_>>().join(" ");
        write!(f, "{}", words(&self.by))?;
        if self.beside.is_empty() { Ok(()) } else { write!(f, " ({})", words(&self.beside)) }
    }
}
