//! `prove`: runs worlds and prints what was seen.

#![expect(clippy::print_stdout, reason = "it prints its findings")]

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use orchestrix_sim::{Campaign, Plan, Sight, World, prove};

/// Runs the coordinator in simulated worlds full of faults and holds it against its invariants.
#[derive(Debug, Parser)]
#[command(name = "prove", after_help = "EXAMPLES\n  prove --seconds 60\n  prove --seed 4711 --tell")]
struct Args {
    /// Run for so long
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// At most so many worlds
    #[arg(long, default_value_t = u64::MAX)]
    worlds: u64,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Run this seed alone
    #[arg(long)]
    seed: Option<u64>,
    /// With --seed: print everything that happens
    #[arg(long)]
    tell: bool,
    /// Plant every bug in turn and say in how many worlds it is found; needs the feature `planted`
    #[arg(long)]
    bugs: bool,
    /// Plant this bug first
    #[arg(long, value_name = "NAME")]
    plant: Option<String>,
}

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
    match args.seed {
        Some(seed) => run_one(seed, args.tell),
        None => run_many(&args),
    }
}

fn run_one(seed: u64, tell: bool) -> ExitCode {
    let plan = Plan::draw(seed);
    println!("{plan:#?}");
    let mut world = World::new(plan);
    if tell {
        world = world.telling();
    }
    let ended = world.run();
    for line in &ended.told {
        println!("{line}");
    }
    println!("{} simulated seconds, {} calls", ended.seconds, ended.calls);
    for violation in &ended.violations {
        println!("VIOLATION {violation}");
    }
    if ended.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Plants every bug in turn. All must be found.
fn plant_all(args: &Args) -> ExitCode {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let time = Duration::from_secs(args.seconds);
    // A planted bug may panic anywhere; that it did is what counts.
    std::panic::set_hook(Box::new(|_| {}));
    let mut unfound = 0;
    println!("{:<24} {:>7} {:>7}  {:<40} found by", "bug", "worlds", "first", "what it does");
    for (bug, what) in orchestrix_core::bugs_of_worlds() {
        if !orchestrix_core::plant(bug) {
            println!("nothing can be planted in this build: the feature `planted` is needed");
            return ExitCode::FAILURE;
        }
        let campaign = Campaign { first_seed: args.first, seeds: args.worlds, time, threads };
        let outcome = prove(campaign, |_| {});
        let mut found: Vec<&str> = outcome.failed.iter().map(|(_, violation)| violation.invariant).collect();
        found.sort_unstable();
        found.dedup();
        let first = outcome.failed.iter().map(|(seed, _)| seed - args.first + 1).min();
        let first = first.map_or("never".to_owned(), |first| first.to_string());
        unfound += u32::from(outcome.failed.is_empty());
        println!("{bug:<24} {:>7} {first:>7}  {what:<40} {}", outcome.worlds, found.join(" "));
    }
    if unfound == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_many(args: &Args) -> ExitCode {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let time = Duration::from_secs(args.seconds);
    let campaign = Campaign { first_seed: args.first, seeds: args.worlds, time, threads };
    let start = std::time::Instant::now();
    let outcome = prove(campaign, |_| {});
    let took = start.elapsed().as_secs_f64();
    println!("worlds            {:>12}", outcome.worlds);
    println!("run twice         {:>12}", outcome.repeated);
    println!("simulated hours   {:>12.1}", outcome.simulated_seconds as f64 / 3_600.0);
    println!("times real time   {:>12.0}", outcome.simulated_seconds as f64 / took);
    println!("answered calls    {:>12}", outcome.calls);
    for (sight, count) in outcome.seen.all() {
        println!("{:<22} {count:>7}", format!("{sight:?}"));
    }
    let missing: Vec<Sight> = outcome.seen.missing();
    for (seed, violation) in &outcome.failed {
        println!("FAILED seed {seed}: {violation}");
        println!("       again with: prove --seed {seed} --tell");
    }
    println!("violations        {:>12}", outcome.failed.len());
    if !missing.is_empty() {
        println!("never seen: {missing:?}");
    }
    if outcome.failed.is_empty() && missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
