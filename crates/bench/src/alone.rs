//! One client alone: how long it waits for one stored task, beside what a sync and a round trip cost.
//!
//! All take turns within milliseconds, so that what slows the machine slows each of them.

use std::time::Duration;

use anyhow::Result;

use crate::beanstalkd::{self, Beanstalkd};
use crate::disk::{Echo, SyncedFile, check_sync};
use crate::figures::{Figure, Measure, Who, percentile};
use crate::http::Http;
use crate::load::Alone;
use crate::process::start_node;
use crate::redis::{self, Redis};
use crate::setup::Setup;

/// Samples of one before the next has its turn.
const TURN: usize = 10;
/// Turns before anything counts.
const WARM_UP: usize = 5;

/// What the machine itself costs.
///
/// # Errors
/// When the disk fails or is none.
pub(crate) fn measure_machine(setup: &Setup) -> Result<Vec<Figure>> {
    setup.step("synced writes and round trips");
    take_turns(setup.samples, &mut machine(setup)?)
}

/// What one client alone waits for, and what the machine costs meanwhile.
///
/// # Errors
/// When a server does not start or refuses something.
pub(crate) fn measure_alone(setup: &Setup) -> Result<Vec<Figure>> {
    setup.step("one client alone, in turns with synced writes and round trips");
    let server = start_node(&setup.program, &setup.folder("alone", Who::Orchestrix)?, &[])?;
    let mut client = Alone::connect(server.address(), Http::new(0))?;
    let mut takers = machine(setup)?;
    takers.push(Taker::new(Who::Orchestrix, SUBMIT, move || client.submit()));
    let mut peers = Vec::new();
    if setup.peers {
        let server = redis::start(&setup.folder("alone", Who::Redis)?)?;
        let mut client = Alone::connect(server.address(), Redis::new(0))?;
        takers.push(Taker::new(Who::Redis, SUBMIT, move || client.submit()));
        peers.push(server);
        let folder = setup.folder("alone", Who::Beanstalkd)?;
        let server = beanstalkd::start(&folder, beanstalkd::Sync::BeforeTheAnswer)?;
        let mut client = Alone::connect(server.address(), Beanstalkd)?;
        takers.push(Taker::new(Who::Beanstalkd, SUBMIT, move || client.submit()));
        peers.push(server);
    }
    take_turns(setup.samples, &mut takers)
}

/// Percentiles of the report and their names.
type Told = &'static [(Measure, f64)];

const SUBMIT: Told = &[(Measure::SubmitP50, 0.5), (Measure::SubmitP99, 0.99)];
const SYNC: Told = &[(Measure::SyncP50, 0.5)];
const ROUND_TRIP: Told = &[(Measure::RoundTripP50, 0.5)];

/// Somebody who does one thing again and again.
struct Taker {
    who: Who,
    told: Told,
    act: Box<dyn FnMut() -> Result<Duration>>,
    samples_us: Vec<f64>,
}

impl Taker {
    fn new(who: Who, told: Told, act: impl FnMut() -> Result<Duration> + 'static) -> Self {
        Self { who, told, act: Box::new(act), samples_us: Vec::new() }
    }
}

fn machine(setup: &Setup) -> Result<Vec<Taker>> {
    let (mut file, mut echo) = (SyncedFile::create(&setup.data)?, Echo::start()?);
    let takers = vec![
        Taker::new(Who::Machine, SYNC, move || file.write()),
        Taker::new(Who::Machine, ROUND_TRIP, move || echo.round_trip()),
    ];
    Ok(takers)
}

fn take_turns(samples: usize, takers: &mut [Taker]) -> Result<Vec<Figure>> {
    for turn in 0..WARM_UP + samples.div_ceil(TURN) {
        for taker in &mut *takers {
            for _ in 0..TURN {
                let took = (taker.act)()?.as_secs_f64() * 1e6;
                if turn >= WARM_UP {
                    taker.samples_us.push(took);
                }
            }
        }
    }
    let figures: Vec<Figure> = takers.iter_mut().flat_map(tell).collect();
    let sync = figures.iter().find(|figure| figure.measure == Measure::SyncP50);
    check_sync(sync.expect("the machine always takes its turn").value)?;
    Ok(figures)
}

fn tell(taker: &mut Taker) -> Vec<Figure> {
    let note = format!("{} samples", taker.samples_us.len());
    let told = taker.told.iter();
    told.map(|(measure, share)| {
        Figure::new(*measure, taker.who, percentile(&mut taker.samples_us, *share), note.clone())
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_take_turns_and_the_warm_up_does_not_count() {
        let mut calls = 0_u64;
        let mut takers = vec![
            Taker::new(Who::Machine, SYNC, move || {
                calls += 1;
                Ok(Duration::from_micros(if calls <= (WARM_UP * TURN) as u64 { 9_000 } else { 100 }))
            }),
            Taker::new(Who::Orchestrix, SUBMIT, || Ok(Duration::from_micros(150))),
        ];
        let figures = take_turns(20, &mut takers).unwrap();
        let value = |measure| figures.iter().find(|figure| figure.measure == measure).unwrap().value;
        assert!((value(Measure::SyncP50) - 100.0).abs() < 1e-6);
        assert!((value(Measure::SubmitP99) - 150.0).abs() < 1e-6);
        assert_eq!(takers[0].samples_us.len(), 20);
    }
}
