//! How fast the file journal is here: `cargo run --release -p orchestrix-engine --example journal_speed -- DIR`.
//!
//! Appends batches of 60 KB, tells the time of the processor from the time of the disk, and reads it all
//! again as a start does. The folder must not hold a journal yet.

use std::sync::Arc;
use std::time::{Duration, Instant};

use orchestrix_core::Term;
use orchestrix_engine::disk::sim::SimDisk;
use orchestrix_engine::disk::{Disk, RealDisk};
use orchestrix_engine::file::{FileJournal, Options, Prepare};
use orchestrix_engine::{Batch, Error, Journal, Link};

const BATCHES: u32 = 5_000;
const BYTES: usize = 60_000;

#[expect(clippy::print_stdout, reason = "this program is here to print")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("name a new folder")?;
    let real: Arc<dyn Disk> = Arc::new(RealDisk::open(&folder)?);
    let mut journal = FileJournal::open(Arc::clone(&real), Options::default())?;
    let mut times = append(&mut journal, BATCHES)?;
    times.sort_unstable();
    println!(
        "append of {BYTES} B: median {:?}, p99 {:?}",
        times[times.len() / 2],
        times[times.len() * 99 / 100]
    );
    drop(journal);

    let started = Instant::now();
    let mut read = 0;
    let journal = FileJournal::start(real, Options::default())?.replay(Link::default(), |batch| {
        read += batch.records.len();
        Ok::<(), Error>(())
    })?;
    println!("start over {read} B: {:?}, {} segments", started.elapsed(), journal.recovery().segments);
    drop(journal);

    // Without a disk, what is left is the processor (and one copy into the simulated file).
    let options = Options { segment_bytes: Some(64 << 20), prepare: Prepare::Inline };
    let mut journal = FileJournal::open(Arc::new(SimDisk::new(1)), options)?;
    let mut times = append(&mut journal, 1_000)?;
    times.sort_unstable();
    println!("append of {BYTES} B without a disk: median {:?}", times[times.len() / 2]);
    Ok(())
}

fn append(journal: &mut FileJournal, count: u32) -> Result<Vec<Duration>, Error> {
    let mut batch = Batch { previous: journal.end(), term: Term(1), count: 1, records: vec![7; BYTES] };
    let mut times = Vec::new();
    for _ in 0..count {
        batch.previous = journal.end();
        let started = Instant::now();
        journal.append(&batch)?;
        times.push(started.elapsed());
    }
    Ok(times)
}
