//! Many clients at once: how many life cycles per second each server does.
//!
//! Windows of the servers alternate, so that a slower minute of the machine is one for all of them; what
//! counts is the median window.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use orchestrix_testbed::Server;

use crate::beanstalkd::{self, Beanstalkd};
use crate::figures::{Figure, Measure, Who, median, thousands};
use crate::http::Http;
use crate::load::{Rate, Shape, run_cycles};
use crate::process::start_node;
use crate::redis::{self, Redis};
use crate::setup::Setup;

/// Batches as large as the peers' and ours are compared with.
pub(crate) const BATCHES: Shape = Shape { connections: 8, lanes: 1, batch: 256 };
/// One task per call, 256 in flight: over few connections with several calls on the way, or over many.
const SINGLES: [Shape; 2] =
    [Shape { connections: 64, lanes: 4, batch: 1 }, Shape { connections: 256, lanes: 1, batch: 1 }];

/// Life cycles in batches, beside Redis Streams.
///
/// # Errors
/// When a server does not start, refuses something or goes away.
pub(crate) fn measure_batches(setup: &Setup) -> Result<Vec<Figure>> {
    let mut contenders = vec![(Who::Orchestrix, start(setup, Who::Orchestrix, "batches")?)];
    if setup.peers {
        contenders.push((Who::Redis, start(setup, Who::Redis, "batches")?));
    }
    compare(setup, Measure::Batches, &contenders, &[BATCHES])
}

/// Life cycles one by one, beside both peers.
///
/// # Errors
/// When a server does not start, refuses something or goes away.
pub(crate) fn measure_one_by_one(setup: &Setup) -> Result<Vec<Figure>> {
    let mut contenders = vec![(Who::Orchestrix, start(setup, Who::Orchestrix, "one-by-one")?)];
    if setup.peers {
        for who in [Who::Redis, Who::Beanstalkd] {
            contenders.push((who, start(setup, who, "one-by-one")?));
        }
    }
    compare(setup, Measure::OneByOne, &contenders, &SINGLES)
}

fn start(setup: &Setup, who: Who, part: &str) -> Result<Server> {
    let folder = setup.folder(part, who)?;
    match who {
        Who::Orchestrix => start_node(&setup.program, &folder, &[]),
        Who::Redis => redis::start(&folder),
        Who::Beanstalkd => beanstalkd::start(&folder, beanstalkd::Sync::BeforeTheAnswer),
        Who::Machine => unreachable!("the machine is not a server"),
    }
}

fn compare(
    setup: &Setup,
    measure: Measure,
    contenders: &[(Who, Server)],
    shapes: &[Shape],
) -> Result<Vec<Figure>> {
    let entries: Vec<_> =
        shapes.iter().flat_map(|shape| contenders.iter().map(move |entry| (*shape, entry))).collect();
    let mut rates = vec![Vec::new(); entries.len()];
    for round in 1..=setup.rounds {
        for ((shape, (who, server)), rates) in entries.iter().zip(&mut rates) {
            setup.step(&format!("{}: {}, {}, round {round}", measure.label(), who.label(), describe(*shape)));
            let rate = window(setup, *who, server.address(), *shape)
                .with_context(|| format!("{}, {}", who.label(), describe(*shape)))?;
            rates.push(rate.per_second);
        }
    }
    let figure = |((shape, (who, _)), mut rates): ((Shape, &(Who, Server)), Vec<f64>)| {
        let middle = median(&mut rates);
        let (least, most) = (rates[0], rates[rates.len() - 1]);
        let spread = format!("{} to {} in {} rounds", thousands(least), thousands(most), rates.len());
        Figure::new(measure, *who, middle, format!("{}; {spread}", describe(shape)))
    };
    Ok(entries.into_iter().zip(rates).map(figure).collect())
}

fn window(setup: &Setup, who: Who, address: SocketAddr, shape: Shape) -> Result<Rate> {
    match who {
        Who::Orchestrix => run_cycles(address, shape, setup.window, Http::new),
        Who::Redis => run_cycles(address, shape, setup.window, Redis::new),
        Who::Beanstalkd => run_cycles(address, shape, setup.window, |_| Beanstalkd),
        Who::Machine => unreachable!("the machine is not a server"),
    }
}

fn describe(shape: Shape) -> String {
    match shape {
        Shape { connections, lanes: 1, batch: 1 } => format!("{connections} connections"),
        Shape { connections, lanes, batch: 1 } => format!("{connections} connections × {lanes} pipelined"),
        Shape { connections, lanes: _, batch } => format!("{connections} connections × {batch} per call"),
    }
}
