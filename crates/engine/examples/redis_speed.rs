//! How fast a Redis server is as an engine: `cargo run --release --features redis --example redis_speed -- URL`.
//! It writes to a domain of its own, `speed`, and leaves it there.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement for people")]

use std::time::{Duration, Instant};

use orchestrix_core::{LeaseId, Position, TaskId};
use orchestrix_engine::redis::RedisPlace;
use orchestrix_engine::suite::{append_one, read_all};
use orchestrix_engine::{Claim, LogPlace, Set, Shared};

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let total: Duration = times.iter().sum();
    let at = |percent: usize| times[times.len() * percent / 100];
    let rate = times.len() as f64 / total.as_secs_f64();
    println!("{what:<34} {rate:>8.0}/s  median {:>10.1?}  99 % below {:>10.1?}", at(50), at(99));
}

fn timed<T>(times: &mut Vec<Duration>, act: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let answer = act();
    times.push(began.elapsed());
    answer
}

fn main() {
    let url = std::env::args().nth(1).expect("the URL of a Redis server");
    let place = RedisPlace::connect(&url, Duration::from_secs(30)).unwrap().in_domain("speed").unwrap();
    for warning in place.warnings() {
        println!("{warning}");
    }
    let mut journal = place.journal().unwrap();
    let start = journal.end().position;
    for (count, bytes) in [(2000, 300), (2000, 10_000), (200, 1_000_000)] {
        let mut times = Vec::new();
        for _ in 0..count {
            timed(&mut times, || append_one(&mut *journal, 1, bytes));
        }
        report(&format!("append batches of {bytes} bytes"), times);
    }
    let began = Instant::now();
    let batches = read_all(&*journal, start, 8 << 20);
    let bytes: usize = batches.iter().map(|batch| batch.records.len()).sum();
    assert_eq!(batches.last().unwrap().last(), journal.end().position);
    let rate = bytes as f64 / 1e6 / began.elapsed().as_secs_f64();
    println!("read {} batches, {} MB: {rate:.0} MB/s", batches.len(), bytes / 1_000_000);

    let mut times = Vec::new();
    for _ in 0..2000 {
        timed(&mut times, || journal.refresh().unwrap());
    }
    report("ask for the end, 1 MB before it", times);

    let register = place.register();
    let mut seen = register.read("leader").unwrap().map(|cell| cell.version);
    let mut times = Vec::new();
    for epoch in 0..2000 {
        let claim = Claim { owner: "speed".to_owned(), epoch, ..Claim::default() };
        let set = timed(&mut times, || register.compare_and_set("leader", seen.as_ref(), &claim).unwrap());
        let Set::Done(version) = set else { panic!("nobody else writes, but {set:?}") };
        seen = Some(version);
    }
    report("write a cell", times);

    let logs = place.logs();
    let mut times = Vec::new();
    logs.delete(&[TaskId(1)]).unwrap();
    for offset in 0..2000 {
        timed(&mut times, || {
            logs.append(LogPlace::nth(TaskId(1), LeaseId(1), offset), &[b'x'; 1000]).unwrap()
        });
    }
    report("store a log chunk of 1000 bytes", times);
    assert!(journal.end().position > Position(0));
}
