//! Those who write on while a server is killed and started again, and remember what they heard.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use orchestrix_core::{LeaseId, Position, TaskId};
use orchestrix_engine::suite::{batch_after, read_all};
use orchestrix_engine::{Appended, Batch, Claim, Error, Journal, LogPlace, Logs, Register, Set, Shared};

use orchestrix_testbed::{Server, eventually};

/// What must be acknowledged between two kills.
const BETWEEN: usize = 25;

/// Kills a server so often under those who append, count and log, and starts it again; then all that was acknowledged is
/// there, once. `fresh` connects to the place anew.
#[expect(clippy::print_stdout, reason = "says how much the kills have hit")]
pub fn nothing_acknowledged_is_lost(server: &mut Server, kills: usize, fresh: &dyn Fn() -> Arc<dyn Shared>) {
    let place = fresh();
    let (mut writer, register, logs) = (place.journal().unwrap(), place.register(), place.logs());
    let heard: [Heard; 3] = Default::default();
    let (batches, epoch, lines) = std::thread::scope(|scope| {
        let appending = scope.spawn(|| append_all(&mut *writer, &heard[0]));
        let counting = scope.spawn(|| count_up(&*register, &heard[1]));
        let logging = scope.spawn(|| log_lines(&*logs, &heard[2]));
        for _ in 0..kills {
            let before: Vec<_> = heard.iter().map(|one| one.acknowledged.load(SeqCst)).collect();
            eventually("all have written more", || {
                let more =
                    |(one, before): (&Heard, &usize)| one.acknowledged.load(SeqCst) >= before + BETWEEN;
                heard.iter().zip(&before).all(more).then_some(())
            });
            server.kill();
            server.launch().unwrap();
        }
        heard.iter().for_each(|one| one.ended.store(true, SeqCst));
        (appending.join().unwrap(), counting.join().unwrap(), logging.join().unwrap())
    });
    let place = fresh();
    assert_eq!(read_all(&*place.journal().unwrap(), Position(0), 1 << 20), batches);
    assert_eq!(place.register().read("leader").unwrap().unwrap().claim.epoch, epoch);
    let mut kept = 0;
    while let Some(chunk) = place.logs().read(TaskId(1), kept, 0).unwrap().first() {
        assert_eq!(chunk.offset, kept as u64);
        kept += 1;
    }
    assert_eq!(kept as u64, lines);
    let unknown: usize = heard.iter().map(|one| one.unknown.load(SeqCst)).sum();
    println!(
        "{kills} kills: {} batches, {epoch} writings and {lines} chunks acknowledged and found; {unknown} \
         unknown outcomes resolved",
        batches.len()
    );
    assert!(unknown > 0, "a kill should hit something under way");
}

/// What one writer heard.
#[derive(Default)]
struct Heard {
    acknowledged: AtomicUsize,
    /// Of these, whose outcome was not known at first.
    unknown: AtomicUsize,
    ended: AtomicBool,
}

/// The server is away. Whoever asks again leaves it the processor to start.
fn away(error: Option<&Error>) {
    assert!(error.is_none_or(|error| error.retryable), "{error:?}");
    std::thread::sleep(Duration::from_millis(5));
}

impl Heard {
    fn goes_on(&self) -> bool {
        !self.ended.load(SeqCst)
    }

    fn acknowledge(&self, unknown: bool) {
        self.unknown.fetch_add(usize::from(unknown), SeqCst);
        self.acknowledged.fetch_add(1, SeqCst);
    }
}

/// Appends one batch after the other; each until it is done.
fn append_all(journal: &mut dyn Journal, heard: &Heard) -> Vec<Batch> {
    let mut batches = Vec::new();
    while heard.goes_on() {
        let batch = batch_after(journal.end(), 2, 300);
        let mut unknown = false;
        loop {
            match journal.append(&batch) {
                Ok(Appended::Done(_)) => break,
                Ok(Appended::Unknown) => {
                    unknown = true;
                    away(None);
                }
                Ok(Appended::Conflict(end)) => panic!("nobody else writes, but the end is {end:?}"),
                Err(error) => away(Some(&error)),
            }
        }
        batches.push(batch);
        heard.acknowledge(unknown);
    }
    batches
}

/// Counts up in a cell.
fn count_up(register: &dyn Register, heard: &Heard) -> u64 {
    let (mut seen, mut epoch) = (None, 0);
    while heard.goes_on() {
        epoch += 1;
        let claim = Claim { owner: "counter".to_owned(), epoch, ..Claim::default() };
        let mut unknown = false;
        loop {
            match register.compare_and_set("leader", seen.as_ref(), &claim) {
                Ok(Set::Done(version)) => {
                    seen = Some(version);
                    break;
                }
                Ok(Set::Unknown) => {
                    unknown = true;
                    away(None);
                }
                Ok(Set::Conflict(there)) => panic!("nobody else writes, but there is {there:?}"),
                Err(error) => away(Some(&error)),
            }
        }
        heard.acknowledge(unknown);
    }
    epoch
}

fn log_lines(logs: &dyn Logs, heard: &Heard) -> u64 {
    let (first, mut offset) = (LogPlace::first(TaskId(1), LeaseId(1)), 0_u64);
    while heard.goes_on() {
        let at = LogPlace { number: usize::try_from(offset).unwrap(), offset, ..first };
        while let Err(error) = logs.append(at, &offset.to_le_bytes()) {
            away(Some(&error));
        }
        offset += 1;
        heard.acknowledge(false);
    }
    offset
}
