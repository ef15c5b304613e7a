//! What an idle cluster costs in requests: `cargo run --features s3 --example s3_cost -- SECONDS FOLLOWERS`.
//! A leader and followers do for so long what they do when nothing happens, on a SeaweedFS of their own, and every
//! request is counted on its way.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement for people")]

#[expect(dead_code, unreachable_pub, reason = "it serves the tests of several engines")]
#[path = "../tests/support/mod.rs"]
mod support;

#[expect(dead_code, reason = "it serves the tests, too")]
#[path = "../tests/s3/common.rs"]
mod common;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use common::{PATIENT, new_prefix, place, shared_store};
use orchestrix_engine::suite::append_one;
use orchestrix_engine::{Batch, Claim, Read, Set, Shared};
use support::http::Front;

/// Defaults of leadership: how often a leader renews, and how often it appends when nothing happens.
const RENEW: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_secs(15);

fn lead(place: &dyn Shared, until: Instant) {
    let (mut journal, register) = (place.journal().unwrap(), place.register());
    let mut seen = register.read("leader").unwrap().map(|cell| cell.version);
    let (mut renew, mut tick) = (Instant::now(), Instant::now());
    while renew.min(tick) < until {
        std::thread::sleep(renew.min(tick).saturating_duration_since(Instant::now()));
        if renew <= tick {
            let set = register.compare_and_set("leader", seen.as_ref(), &Claim::default()).unwrap();
            let Set::Done(version) = set else { panic!("nobody else writes, but {set:?}") };
            seen = Some(version);
            renew += RENEW;
        } else {
            append_one(&mut *journal, 1, 300);
            tick += TICK;
        }
    }
}

fn follow(place: &dyn Shared, until: Instant) {
    let journal = place.journal().unwrap();
    let mut after = journal.end().position;
    while Instant::now() < until {
        journal.wait(after, until.saturating_duration_since(Instant::now()).min(TICK)).unwrap();
        match journal.read(after, 1 << 20).unwrap() {
            Read::Batches(batches) => after = batches.last().map_or(after, Batch::last),
            Read::End => {}
            Read::Truncated(floor) => panic!("nobody truncates, but the floor is {floor}"),
        }
    }
}

fn look(place: &dyn Shared, until: Instant) {
    let register = place.register();
    while Instant::now() < until {
        register.read("leader").unwrap();
        std::thread::sleep(register.poll_interval());
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse().expect("a number"));
    let seconds: u64 = arguments.next().unwrap_or(60);
    let followers = arguments.next().unwrap_or(2);
    let prefix = new_prefix();
    append_one(&mut *place(shared_store().s3, &prefix, PATIENT).journal().unwrap(), 1, 300);
    // Each on a wire of its own; the first is the leader.
    let fronts: Vec<Front> = (0..=followers).map(|_| Front::to(shared_store().s3)).collect();
    let places: Vec<_> = fronts.iter().map(|front| place(front.port(), &prefix, PATIENT)).collect();
    fronts.iter().for_each(|front| drop(front.asked()));
    let until = Instant::now() + Duration::from_secs(seconds);
    std::thread::scope(|scope| {
        for (number, place) in places.iter().enumerate() {
            if number == 0 {
                scope.spawn(move || lead(place, until));
            } else {
                scope.spawn(move || follow(place, until));
                scope.spawn(move || look(place, until));
            }
        }
    });
    for (number, front) in fronts.iter().enumerate() {
        let mut counts = BTreeMap::<String, usize>::new();
        for asked in front.asked() {
            let kind =
                if asked.path.contains("list-type=2") { "LIST".to_owned() } else { asked.method.clone() };
            let path = asked.path.split('?').next().unwrap_or_default();
            let what = ["batches", "cells", "journal"].into_iter().find(|what| path.contains(what));
            *counts.entry(format!("{kind} {}", what.unwrap_or("others"))).or_default() += 1;
        }
        let role = if number == 0 { "leader" } else { "follower" };
        let total: usize = counts.values().sum();
        println!("{role}: {total} in {seconds} s, {} in an hour; {counts:?}", total as u64 * 3600 / seconds);
    }
}
