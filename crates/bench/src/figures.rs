//! What was measured, and what it is held against.

use serde::Serialize;

use crate::engines::EngineFigure;
use crate::failover::FailoverFigure;
use crate::links::LinkFigures;
use crate::requests::RequestFigures;
use crate::shards::ShardFigures;

/// Waiting tasks in the goals about a long queue.
pub(crate) const MILLION: usize = 1_000_000;

/// Nobody stores a task in less than one sync and one round trip. Further below that than by chance, the
/// figures are those of a machine that was busy with something else.
const PLAUSIBLE_MIN: f64 = 0.8;

/// Who was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Who {
    Orchestrix,
    Redis,
    Beanstalkd,
    /// What the disk and the network of this machine cost without any server.
    Machine,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Measure {
    SyncP50,
    RoundTripP50,
    InProcess,
    Batches,
    OneByOne,
    SubmitP50,
    SubmitP99,
    MemoryPerTask,
    Restart,
    SnapshotPause,
    LongestTurn,
    CostOfBacklog,
    SpeedUnderBacklog,
}

/// How a value reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    PerSecond,
    Microseconds,
    Milliseconds,
    Seconds,
    Bytes,
    Times,
}

/// One number, who has it, and what has to be known to read it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) measure: Measure,
    pub(crate) who: Who,
    pub(crate) value: f64,
    pub(crate) note: String,
}

/// Something we want to be true of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Goal {
    pub(crate) what: String,
    pub(crate) measured: String,
    pub(crate) wanted: String,
    pub(crate) reached: bool,
}

/// All figures of one run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Figures {
    /// Waiting tasks in the part about a long queue.
    pub(crate) backlog: usize,
    pub(crate) all: Vec<Figure>,
    pub(crate) engines: Vec<EngineFigure>,
    pub(crate) failovers: Vec<FailoverFigure>,
    pub(crate) shards: Option<ShardFigures>,
    pub(crate) links: Option<LinkFigures>,
    pub(crate) requests: Option<RequestFigures>,
}

impl Who {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Orchestrix => "Orchestrix",
            Self::Redis => "Redis Streams",
            Self::Beanstalkd => "beanstalkd",
            Self::Machine => "this machine",
        }
    }
}

impl Measure {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::SyncP50 => "write 4 KiB and fdatasync, p50",
            Self::RoundTripP50 => "200 bytes there and back over loopback TCP, p50",
            Self::InProcess => "life cycles in process, 256 in flight",
            Self::Batches => "life cycles in batches of 256, 8 connections",
            Self::OneByOne => "life cycles one by one, 256 in flight",
            Self::SubmitP50 => "one client alone submits, p50",
            Self::SubmitP99 => "one client alone submits, p99",
            Self::MemoryPerTask => "memory per waiting task of 200 bytes",
            Self::Restart => "start after kill -9 to the first lease",
            Self::SnapshotPause => "longest pause of the loop for a snapshot",
            Self::LongestTurn => "longest turn of the loop",
            Self::CostOfBacklog => "CPU per life cycle with the long queue / with 1,000 waiting",
            Self::SpeedUnderBacklog => "life cycles per second with the long queue / with 1,000 waiting",
        }
    }

    pub(crate) fn unit(self) -> Unit {
        match self {
            Self::InProcess | Self::Batches | Self::OneByOne => Unit::PerSecond,
            Self::SyncP50 | Self::RoundTripP50 | Self::SubmitP50 | Self::SubmitP99 => Unit::Microseconds,
            Self::SnapshotPause | Self::LongestTurn => Unit::Milliseconds,
            Self::Restart => Unit::Seconds,
            Self::MemoryPerTask => Unit::Bytes,
            Self::CostOfBacklog | Self::SpeedUnderBacklog => Unit::Times,
        }
    }

    fn larger_is_better(self) -> bool {
        self.unit() == Unit::PerSecond || self == Self::SpeedUnderBacklog
    }
}

impl Unit {
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Self::PerSecond => format!("{}/s", thousands(value)),
            Self::Microseconds if value < 100.0 => format!("{value:.1} µs"),
            Self::Microseconds => format!("{} µs", thousands(value)),
            Self::Milliseconds => format!("{value:.2} ms"),
            Self::Seconds => format!("{value:.2} s"),
            Self::Bytes => format!("{} bytes", thousands(value)),
            Self::Times => format!("{value:.2} ×"),
        }
    }
}

impl Figure {
    pub(crate) fn new(measure: Measure, who: Who, value: f64, note: impl Into<String>) -> Self {
        Self { measure, who, value, note: note.into() }
    }

    pub(crate) fn shown(&self) -> String {
        self.measure.unit().show(self.value)
    }
}

impl Figures {
    pub(crate) fn add(&mut self, figures: Vec<Figure>) {
        self.all.extend(figures);
    }

    /// The best of several shapes of the same thing.
    pub(crate) fn best(&self, measure: Measure, who: Who) -> Option<&Figure> {
        let mut same = self.all.iter().filter(|figure| figure.measure == measure && figure.who == who);
        let first = same.next()?;
        Some(same.fold(first, |best, next| {
            if (next.value > best.value) == measure.larger_is_better() { next } else { best }
        }))
    }

    fn value(&self, measure: Measure, who: Who) -> Option<f64> {
        self.best(measure, who).map(|figure| figure.value)
    }

    /// How much better Orchestrix is than a peer: 2 is twice as fast, or half as much of what should be small.
    pub(crate) fn ratio(&self, measure: Measure, peer: Who) -> Option<f64> {
        let (ours, theirs) = (self.value(measure, Who::Orchestrix)?, self.value(measure, peer)?);
        Some(if measure.larger_is_better() { ours / theirs } else { theirs / ours })
    }

    /// Every goal whose parts were measured.
    pub(crate) fn goals(&self) -> Vec<Goal> {
        let ours = |measure| self.best(measure, Who::Orchestrix);
        let long = format!("with {} waiting tasks", thousands(self.backlog as f64));
        let at_least = |measure: Measure, what: &str, want: f64| {
            ours(measure).map(|figure| goal(what.to_owned(), figure, want, figure.value >= want, "≥"))
        };
        let at_most = |measure: Measure, what: &str, want: f64| {
            ours(measure)
                .map(|figure| goal(format!("{what} {long}"), figure, want, figure.value <= want, "≤"))
        };
        let goals = [
            at_least(Measure::InProcess, "life cycles in process, 256 in flight", 250_000.0),
            self.batch_goal(),
            at_least(Measure::OneByOne, "life cycles over HTTP one by one, 256 in flight", 20_000.0),
            self.alone_goal(),
            at_most(Measure::MemoryPerTask, "memory per task", 450.0),
            at_most(Measure::Restart, "start after kill -9 to the first lease", 1.5),
            at_most(Measure::SnapshotPause, "longest pause of the loop for a snapshot", 5.0),
            at_most(Measure::CostOfBacklog, "CPU per life cycle, relative to 1,000 waiting,", 1.3),
        ];
        let engines = self.engines.iter().flat_map(EngineFigure::goals);
        let failovers = self.failovers.iter().filter_map(FailoverFigure::goal);
        let shards = self.shards.iter().flat_map(ShardFigures::goals);
        let links = self.links.iter().flat_map(LinkFigures::goals);
        let requests = self.requests.iter().flat_map(RequestFigures::goals);
        let others = engines.chain(failovers).chain(links).chain(requests).chain(shards);
        goals.into_iter().flatten().chain(others).collect()
    }

    fn batch_goal(&self) -> Option<Goal> {
        let ratio = self.ratio(Measure::Batches, Who::Redis)?;
        let what = "life cycles over HTTP in batches, relative to Redis Streams".to_owned();
        Some(times(what, ratio, "≥ 1.00 ×", ratio >= 1.0))
    }

    fn alone_goal(&self) -> Option<Goal> {
        let floor =
            self.value(Measure::SyncP50, Who::Machine)? + self.value(Measure::RoundTripP50, Who::Machine)?;
        let ratio = self.value(Measure::SubmitP50, Who::Orchestrix)? / floor;
        let what = "one client alone submits (p50), relative to one sync and one round trip".to_owned();
        let mut goal = times(what, ratio, "≤ 1.50 ×", (PLAUSIBLE_MIN..=1.5).contains(&ratio));
        if ratio < PLAUSIBLE_MIN {
            goal.measured.push_str(" (not plausible: other work disturbed the run)");
        }
        Some(goal)
    }
}

fn goal(what: String, figure: &Figure, want: f64, reached: bool, sign: &str) -> Goal {
    let wanted = format!("{sign} {}", figure.measure.unit().show(want));
    Goal { what, measured: figure.shown(), wanted, reached }
}

fn times(what: String, ratio: f64, wanted: &str, reached: bool) -> Goal {
    Goal { what, measured: Unit::Times.show(ratio), wanted: wanted.to_owned(), reached }
}

/// A whole number in groups of three digits.
pub(crate) fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// The value below which a share (0 to 1) of the samples lies. Sorts them.
pub(crate) fn percentile(samples: &mut [f64], share: f64) -> f64 {
    assert!(!samples.is_empty(), "a percentile needs samples");
    samples.sort_by(f64::total_cmp);
    let rank = (samples.len() as f64 * share).ceil().max(1.0) as usize;
    samples[rank.min(samples.len()) - 1]
}

pub(crate) fn median(samples: &mut [f64]) -> f64 {
    percentile(samples, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(all: &[(Measure, Who, f64)]) -> Figures {
        let all = all.iter().map(|(measure, who, value)| Figure::new(*measure, *who, *value, "")).collect();
        Figures { backlog: MILLION, all, ..Figures::default() }
    }

    #[test]
    fn a_percentile_is_a_sample_with_that_share_at_or_below_it() {
        let mut samples: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(median(&mut samples), 50.0);
        assert_eq!(percentile(&mut samples, 0.99), 99.0);
        assert_eq!(percentile(&mut samples, 1.0), 100.0);
        assert_eq!(percentile(&mut [7.0], 0.01), 7.0);
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!(thousands(7.0), "7");
        assert_eq!(thousands(999.6), "1,000");
        assert_eq!(thousands(123_456.0), "123,456");
        assert_eq!(thousands(1_234_567.0), "1,234,567");
    }

    #[test]
    fn the_headline_is_the_best_shape() {
        let run = figures(&[
            (Measure::InProcess, Who::Orchestrix, 100.0),
            (Measure::InProcess, Who::Orchestrix, 300.0),
            (Measure::InProcess, Who::Orchestrix, 200.0),
            (Measure::Restart, Who::Redis, 3.0),
            (Measure::Restart, Who::Redis, 2.0),
        ]);
        assert_eq!(run.best(Measure::InProcess, Who::Orchestrix).unwrap().value, 300.0);
        assert_eq!(run.best(Measure::Restart, Who::Redis).unwrap().value, 2.0);
        assert!(run.best(Measure::Restart, Who::Beanstalkd).is_none());
    }

    #[test]
    fn a_ratio_above_one_is_always_in_our_favour() {
        let run = figures(&[
            (Measure::Batches, Who::Orchestrix, 200.0),
            (Measure::Batches, Who::Redis, 100.0),
            (Measure::Restart, Who::Orchestrix, 1.0),
            (Measure::Restart, Who::Redis, 4.0),
        ]);
        assert_eq!(run.ratio(Measure::Batches, Who::Redis), Some(2.0));
        assert_eq!(run.ratio(Measure::Restart, Who::Redis), Some(4.0));
        assert_eq!(run.ratio(Measure::Restart, Who::Beanstalkd), None);
    }

    #[test]
    fn a_goal_is_judged_only_when_everything_it_needs_was_measured() {
        let alone = figures(&[(Measure::Batches, Who::Orchestrix, 200.0)]);
        assert!(alone.goals().is_empty(), "no peer to compare with");
        let both =
            figures(&[(Measure::Batches, Who::Orchestrix, 200.0), (Measure::Batches, Who::Redis, 201.0)]);
        assert!(!both.goals()[0].reached);
    }

    #[test]
    fn a_goal_at_its_limit_is_reached() {
        let run = figures(&[
            (Measure::InProcess, Who::Orchestrix, 250_000.0),
            (Measure::MemoryPerTask, Who::Orchestrix, 450.1),
        ]);
        let goals = run.goals();
        assert!(goals[0].reached);
        assert!(!goals[1].reached);
        assert_eq!(goals[1].what, "memory per task with 1,000,000 waiting tasks");
    }

    #[test]
    fn one_client_alone_is_held_against_a_sync_and_a_round_trip() {
        let run = figures(&[
            (Measure::SyncP50, Who::Machine, 80.0),
            (Measure::RoundTripP50, Who::Machine, 20.0),
            (Measure::SubmitP50, Who::Orchestrix, 149.0),
        ]);
        let goals = run.goals();
        assert_eq!(goals[0].measured, "1.49 ×");
        assert!(goals[0].reached);
    }

    #[test]
    fn a_task_stored_in_less_than_one_sync_is_not_believed() {
        let run = figures(&[
            (Measure::SyncP50, Who::Machine, 3_700.0),
            (Measure::RoundTripP50, Who::Machine, 10.0),
            (Measure::SubmitP50, Who::Orchestrix, 230.0),
        ]);
        let goals = run.goals();
        assert!(goals[0].measured.contains("not plausible"));
        assert!(!goals[0].reached);
    }
}
