//! Life cycles in batches on the engines that nodes share, beside what each server does without a coordinator.
//!
//! Twice beside it. A node's own counters show how many batches it appended and how many bytes they had: a raw client
//! appends as many bytes to the same server, one append at a time, so what is compared is the time that the same appends
//! take. And raw clients store tasks, one entry or row for each and as many in a call, so what is compared is the tasks
//! that go through all of a life with those that are only stored. The windows of all three follow each other.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::figures::{Goal, Unit, median, percentile, thousands};
use crate::ours::{Ours, Way};
use crate::raw::Raw;
use crate::setup::Setup;
use crate::stores::Kind;
use crate::throughput::BATCHES;

/// Tasks per call: as many as wherever else there are batches.
const BATCH: usize = BATCHES.batch;
/// One caller, who waits for every answer; and several, who share appends.
const CALLERS: [usize; 2] = [1, BATCHES.connections];
/// Pairs of windows in a round. Disks of busy machines have fast and slow seconds: short windows get their share of both.
const PAIRS: usize = 8;
/// The share of what the server does by itself that we want to reach.
const RATIO_WANTED: f64 = 0.5;

/// What one number of callers came to on one engine: medians of all pairs of windows.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EngineFigure {
    pub(crate) engine: Kind,
    pub(crate) way: Way,
    pub(crate) callers: usize,
    pub(crate) cycles_per_second: f64,
    pub(crate) appends_per_second: f64,
    pub(crate) bytes_per_append: f64,
    pub(crate) raw_appends_per_second: f64,
    /// Time of the raw appends by the time of ours, in windows that follow each other.
    pub(crate) ratio: f64,
    /// Tasks that are only stored, where a call can store many.
    pub(crate) raw_tasks_per_second: Option<f64>,
    /// Life cycles by tasks that are only stored, in windows that follow each other.
    pub(crate) tasks_ratio: Option<f64>,
    /// How much of the time a batch was on its way to the server, from 0 to 1.
    pub(crate) inside: f64,
    /// Half of all ratios are between these.
    pub(crate) middle_half: (f64, f64),
}

/// A window of ours, and one of each raw measure right after.
#[derive(Clone, Copy, Debug)]
struct Pair {
    cycles_per_second: f64,
    appends_per_second: f64,
    bytes_per_append: f64,
    inside: f64,
    raw_per_second: f64,
    raw_tasks_per_second: Option<f64>,
}

/// # Errors
/// When a server is not there, refuses something or goes away.
pub(crate) fn measure(setup: &Setup, figures: &mut Vec<EngineFigure>) -> Result<()> {
    for kind in setup.stores.iter().copied() {
        setup.step(&format!("{}: starting", kind.label()));
        figures.extend(measure_one(setup, kind).with_context(|| format!("on {}", kind.label()))?);
    }
    Ok(())
}

fn measure_one(setup: &Setup, kind: Kind) -> Result<Vec<EngineFigure>> {
    let store = kind.start(&setup.data.join(format!("engine-{}", kind.label())))?;
    let mut raw = Raw::connect(kind, &store, CALLERS[CALLERS.len() - 1], BATCH)?;
    let mut figures = Vec::new();
    for way in Way::ALL {
        let label = format!("batches on {}, {}", kind.label(), way.label());
        setup.step(&format!("{label}: starting"));
        let folder = setup.data.join(format!("engine-{}-{}", kind.label(), way.label()));
        let ours = way.start(setup, &store.url(), &folder)?;
        let mut pairs = vec![Vec::new(); CALLERS.len()];
        for n in 1..=setup.rounds {
            for (callers, pairs) in CALLERS.iter().zip(&mut pairs) {
                setup.step(&format!("{label}, callers: {callers}, round {n}"));
                for _ in 0..PAIRS {
                    pairs.push(pair(&ours, &mut raw, *callers, setup.window / PAIRS as u32)?);
                }
            }
        }
        ours.stop()?;
        figures
            .extend(CALLERS.iter().zip(&pairs).map(|(callers, pairs)| summary(kind, way, *callers, pairs)));
    }
    Ok(figures)
}

fn pair(ours: &Ours, raw: &mut Raw, callers: usize, window: Duration) -> Result<Pair> {
    let (before, start) = (ours.counted()?, Instant::now());
    let rate = ours.run(callers, BATCH, window)?;
    let seconds = start.elapsed().as_secs_f64();
    let spent = ours.counted()?.since(before);
    let bytes_per_append = spent.bytes / spent.batches;
    let raw_per_second = raw.appends(bytes_per_append.round() as usize, window)?;
    let raw_tasks_per_second = raw.tasks(callers, window)?;
    Ok(Pair {
        cycles_per_second: rate.per_second,
        appends_per_second: rate.per_second * spent.batches / rate.total as f64,
        bytes_per_append,
        inside: spent.seconds / seconds,
        raw_per_second,
        raw_tasks_per_second,
    })
}

fn summary(engine: Kind, way: Way, callers: usize, pairs: &[Pair]) -> EngineFigure {
    let middle = |value: fn(&Pair) -> f64| median(&mut pairs.iter().map(value).collect::<Vec<_>>());
    let mut ratios: Vec<f64> =
        pairs.iter().map(|pair| pair.appends_per_second / pair.raw_per_second).collect();
    let ratio = median(&mut ratios);
    let (mut raw_tasks, mut tasks_ratios): (Vec<f64>, Vec<f64>) = pairs
        .iter()
        .filter_map(|pair| pair.raw_tasks_per_second.map(|raw| (raw, pair.cycles_per_second / raw)))
        .unzip();
    let stored = !raw_tasks.is_empty();
    EngineFigure {
        engine,
        way,
        callers,
        cycles_per_second: middle(|pair| pair.cycles_per_second),
        appends_per_second: middle(|pair| pair.appends_per_second),
        bytes_per_append: middle(|pair| pair.bytes_per_append),
        raw_appends_per_second: middle(|pair| pair.raw_per_second),
        ratio,
        raw_tasks_per_second: stored.then(|| median(&mut raw_tasks)),
        tasks_ratio: stored.then(|| median(&mut tasks_ratios)),
        inside: middle(|pair| pair.inside),
        middle_half: (percentile(&mut ratios, 0.25), percentile(&mut ratios, 0.75)),
    }
}

impl EngineFigure {
    /// There is none on S3, where a node waits on purpose.
    pub(crate) fn goals(&self) -> Vec<Goal> {
        let engine = match self.engine {
            Kind::SeaweedFs => return Vec::new(),
            Kind::Redis | Kind::MariaDb | Kind::Postgres => self.engine.label(),
        };
        let (raw, callers) = (self.engine.raw(), callers(self.callers));
        let goal = |what: String, ratio: f64| Goal {
            what,
            measured: Unit::Times.show(ratio),
            wanted: format!("≥ {}", Unit::Times.show(RATIO_WANTED)),
            reached: ratio >= RATIO_WANTED,
        };
        let cycles =
            format!("life cycles in batches of {BATCH} on {engine}, {}, {callers}", self.way.label());
        let stored =
            self.tasks_ratio.map(|ratio| goal(format!("{cycles}, relative to tasks only stored"), ratio));
        let appends = goal(format!("{cycles}: its appends, relative to {raw} of the same bytes"), self.ratio);
        stored.into_iter().chain([appends]).collect()
    }
}

/// The table of this part, its head included.
pub(crate) fn rows(figures: &[EngineFigure]) -> Vec<Vec<String>> {
    let head = [
        "engine",
        "through",
        "callers",
        "life cycles",
        "tasks only stored",
        "× stored",
        "appends",
        "bytes each",
        "raw appends",
        "× raw",
        "half of all between",
        "inside appends",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(figures.iter().map(|figure| {
        vec![
            figure.engine.label().to_owned(),
            figure.way.label().to_owned(),
            figure.callers.to_string(),
            Unit::PerSecond.show(figure.cycles_per_second),
            figure.raw_tasks_per_second.map_or("–".to_owned(), |tasks| Unit::PerSecond.show(tasks)),
            figure.tasks_ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.2}")),
            Unit::PerSecond.show(figure.appends_per_second),
            thousands(figure.bytes_per_append),
            format!("{} {}", Unit::PerSecond.show(figure.raw_appends_per_second), figure.engine.raw()),
            format!("{:.2}", figure.ratio),
            format!("{:.2} and {:.2}", figure.middle_half.0, figure.middle_half.1),
            format!("{:.0} %", figure.inside * 100.0),
        ]
    }));
    rows
}

fn callers(count: usize) -> String {
    if count == 1 { "one caller".to_owned() } else { format!("{count} callers") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(ours: f64, raw: f64) -> Pair {
        Pair {
            cycles_per_second: ours * 33.0,
            appends_per_second: ours,
            bytes_per_append: 10_000.0,
            inside: 0.75,
            raw_per_second: raw,
            raw_tasks_per_second: Some(ours * 66.0),
        }
    }

    #[test]
    fn a_ratio_is_of_one_pair_and_the_median_counts() {
        // A slow machine in the second pair is one for both.
        let pairs = [pair(300.0, 500.0), pair(60.0, 100.0), pair(200.0, 500.0), pair(450.0, 500.0)];
        let figure = summary(Kind::Redis, Way::Http, 1, &pairs);
        assert!((figure.ratio - 0.6).abs() < 1e-9);
        assert_eq!(figure.middle_half, (0.4, 0.6));
        assert_eq!(figure.appends_per_second, 200.0);
        assert!((figure.tasks_ratio.unwrap() - 0.5).abs() < 1e-9);
        let reached =
            |figure: EngineFigure| figure.goals().iter().map(|goal| goal.reached).collect::<Vec<_>>();
        assert_eq!(reached(figure), [true, true]);
        assert_eq!(reached(summary(Kind::Redis, Way::Http, 1, &pairs[2..3])), [true, false]);
        let on_s3 = Pair { raw_tasks_per_second: None, ..pairs[0] };
        assert_eq!(summary(Kind::SeaweedFs, Way::Http, 1, &[on_s3]).tasks_ratio, None);
        assert!(reached(summary(Kind::SeaweedFs, Way::Http, 1, &[on_s3])).is_empty());
    }

    #[test]
    fn a_row_tells_what_was_compared() {
        let figure = summary(Kind::Postgres, Way::Library, 8, &[pair(300.0, 500.0)]);
        let row = rows(&[figure]).pop().unwrap();
        assert_eq!(
            row,
            [
                "PostgreSQL",
                "library",
                "8",
                "9,900/s",
                "19,800/s",
                "0.50",
                "300/s",
                "10,000",
                "500/s `INSERT`",
                "0.60",
                "0.60 and 0.60",
                "75 %"
            ]
        );
    }
}
