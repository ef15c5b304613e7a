//! What a request over HTTP costs: processor time of the server, beside that of another binary.
//!
//! Both run at the same time, each on a folder of its own, and take turns: while one is under load the other rests. What is
//! compared is processor time, kernel included, so it hardly matters how busy the machine is with something else.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use orchestrix_testbed::Server;
use serde::Serialize;

use crate::figures::{Goal, Unit, median, percentile};
use crate::http::Http;
use crate::load::{Alone, Shape, fill, run_counted};
use crate::process::start_node;
use crate::setup::Setup;

/// Submits of one client alone that are timed in a turn, and how many follow each other on one server.
const ALONE: usize = 2_000;
const IN_A_ROW: usize = 10;
/// Requests before anything counts.
const WARM_UP: usize = 2_000;
/// The kernel counts processor time in hundredths of a second, so a load takes about a second.
const LOADS: [Load; 5] = [
    Load { what: What::Submit, connections: 1, count: 6_000 },
    Load { what: What::Submit, connections: 64, count: 40_000 },
    Load { what: What::Submit, connections: 256, count: 40_000 },
    Load { what: What::LifeCycle, connections: 64, count: 15_000 },
    Load { what: What::LifeCycle, connections: 256, count: 15_000 },
];
/// With so many connections and more, requests are wanted to be cheaper.
const BUSY: usize = 64;
const COST_WANTED: f64 = 0.7;
/// One client alone: no slower, within what the same binary differs from itself.
const ALONE_WANTED: f64 = 1.05;

/// What one call of a load is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum What {
    Submit,
    LifeCycle,
}

#[derive(Clone, Copy, Debug)]
struct Load {
    what: What,
    connections: usize,
    count: usize,
}

/// What a run came to.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RequestFigures {
    pub(crate) turns: usize,
    pub(crate) costs: Vec<Cost>,
    /// Median wait of one client alone, in microseconds.
    pub(crate) alone: Pair,
}

/// Processor time of the server, in microseconds, for one submit or one life cycle.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cost {
    pub(crate) what: What,
    pub(crate) connections: usize,
    pub(crate) time: Pair,
}

/// The medians of both binaries, and the median of what the new one has of the old one's in each turn.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Pair {
    pub(crate) old_us: f64,
    pub(crate) new_us: f64,
    pub(crate) ratio: f64,
}

/// Measurements of both, turn by turn.
#[derive(Debug, Default)]
struct Turns(Vec<[f64; 2]>);

/// # Errors
/// When a server does not start, refuses something or goes away.
pub(crate) fn measure(setup: &Setup, old: &Path) -> Result<RequestFigures> {
    let programs = [old.to_owned(), setup.program.clone()];
    let (mut alone, mut costs) = (Turns::default(), LOADS.map(|_| Turns::default()));
    for turn in 0..setup.rounds {
        let servers = start(setup, &programs, turn)?;
        setup.step(&format!("requests: one client alone, turn {}", turn + 1));
        alone.0.push(wait_alone(&servers)?);
        for (load, costs) in LOADS.iter().zip(&mut costs) {
            let Load { what, connections, .. } = load;
            setup.step(&format!("requests: {what:?} with {connections} connections, turn {}", turn + 1));
            // Each is first in every other turn.
            let mut both = [0.0; 2];
            for who in [turn % 2, 1 - turn % 2] {
                both[who] = load.cost(&servers[who])?;
            }
            costs.0.push(both);
        }
    }
    let costs = LOADS.iter().zip(costs);
    let cost = |(load, turns): (&Load, Turns)| Cost {
        what: load.what,
        connections: load.connections,
        time: turns.pair(),
    };
    Ok(RequestFigures { turns: setup.rounds, costs: costs.map(cost).collect(), alone: alone.pair() })
}

/// Both servers on empty folders, and warm.
fn start(setup: &Setup, programs: &[PathBuf; 2], turn: usize) -> Result<[Server; 2]> {
    let launch = |who: &str, program: &Path| {
        let folder = setup.data.join(format!("requests-{who}-{turn}"));
        let server = start_node(program, &folder, &[]).with_context(|| program.display().to_string())?;
        let shape = Shape { connections: BUSY, lanes: 1, batch: 1 };
        run_counted(server.address(), shape, WARM_UP, Http::new)?;
        Ok::<_, anyhow::Error>(server)
    };
    Ok([launch("old", &programs[0])?, launch("new", &programs[1])?])
}

/// How long one client waits for a submit, at each of them.
fn wait_alone(servers: &[Server; 2]) -> Result<[f64; 2]> {
    let connect = |server: &Server| Alone::connect(server.address(), Http::new(0));
    let mut clients = [connect(&servers[0])?, connect(&servers[1])?];
    let mut samples = [const { Vec::new() }; 2];
    for _ in 0..ALONE.div_ceil(IN_A_ROW) {
        for (client, samples) in clients.iter_mut().zip(&mut samples) {
            for _ in 0..IN_A_ROW {
                samples.push(client.submit()?.as_secs_f64() * 1e6);
            }
        }
    }
    Ok(samples.map(|mut samples| percentile(&mut samples, 0.5)))
}

impl Load {
    /// Processor time of a server for one of these, in microseconds.
    fn cost(&self, server: &Server) -> Result<f64> {
        let shape = Shape { connections: self.connections, lanes: 1, batch: 1 };
        let before = server.cpu()?;
        match self.what {
            What::Submit => fill(server.address(), shape, self.count, Http::new, |_| ())?,
            What::LifeCycle => run_counted(server.address(), shape, self.count, Http::new)?,
        }
        let spent = server.cpu()? - before;
        Ok(spent.as_secs_f64() * 1e6 / self.count as f64)
    }
}

impl Turns {
    fn pair(self) -> Pair {
        let median_of = |take: fn(&[f64; 2]) -> f64| median(&mut self.0.iter().map(take).collect::<Vec<_>>());
        Pair {
            old_us: median_of(|both| both[0]),
            new_us: median_of(|both| both[1]),
            ratio: median_of(|both| both[1] / both[0]),
        }
    }
}

impl What {
    fn label(self) -> &'static str {
        match self {
            Self::Submit => "one submit",
            Self::LifeCycle => "one life cycle",
        }
    }
}

impl RequestFigures {
    pub(crate) fn goals(&self) -> Vec<Goal> {
        let goal = |what: String, ratio: f64, wanted: f64| Goal {
            what: format!("{what}, relative to the old binary, median of {}", self.turns),
            measured: Unit::Times.show(ratio),
            wanted: format!("≤ {}", Unit::Times.show(wanted)),
            reached: ratio <= wanted,
        };
        let busy = self.costs.iter().filter(|cost| cost.connections >= BUSY);
        let cost = |cost: &Cost| goal(cost.label(), cost.time.ratio, COST_WANTED);
        let alone = goal(ALONE_LABEL.to_owned(), self.alone.ratio, ALONE_WANTED);
        busy.map(cost).chain([alone]).collect()
    }

    /// The table of this part, its head included.
    pub(crate) fn rows(&self) -> Vec<Vec<String>> {
        let micros = |value| Unit::Microseconds.show(value);
        let row = |what: String, pair: &Pair| {
            vec![what, micros(pair.old_us), micros(pair.new_us), Unit::Times.show(pair.ratio)]
        };
        let head = ["what", "old", "new", "new / old"].map(str::to_owned).to_vec();
        let costs = self.costs.iter().map(|cost| row(cost.label(), &cost.time));
        [head].into_iter().chain(costs).chain([row(ALONE_LABEL.to_owned(), &self.alone)]).collect()
    }
}

const ALONE_LABEL: &str = "wait of one client alone for a submit, p50";

impl Cost {
    fn label(&self) -> String {
        let connections = match self.connections {
            1 => "one connection".to_owned(),
            many => format!("{many} connections"),
        };
        format!("processor time of the server for {} over HTTP, {connections}", self.what.label())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_the_median_of_those_of_the_turns() {
        let turns = Turns(vec![[10.0, 5.0], [30.0, 24.0], [20.0, 12.0]]);
        let Pair { old_us, new_us, ratio } = turns.pair();
        assert_eq!((old_us, new_us, ratio), (20.0, 12.0, 0.6));
    }

    #[test]
    fn one_connection_has_no_goal_for_its_cost() {
        let cost = |connections, ratio| Cost {
            what: What::Submit,
            connections,
            time: Pair { old_us: 1.0, new_us: ratio, ratio },
        };
        let alone = Pair { old_us: 100.0, new_us: 106.0, ratio: 1.06 };
        let figures = RequestFigures { turns: 5, costs: vec![cost(1, 0.9), cost(64, 0.7)], alone };
        let reached: Vec<_> = figures.goals().iter().map(|goal| goal.reached).collect();
        assert_eq!(reached, [true, false]);
        assert_eq!(figures.rows().len(), 4);
    }
}
