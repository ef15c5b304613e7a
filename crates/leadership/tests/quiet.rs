//! A register that refuses is tried again and again, and the log does not have a line for each try.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use orchestrix_engine::memory::MemoryRegister;
use orchestrix_engine::{Cause, Cell, Claim, Error, Register, Set, Version};
use orchestrix_leadership::{Candidate, Leadership, Options};

#[path = "../../engine/tests/support/logged.rs"]
mod logged;

/// Calls that are refused before the register works.
const REFUSED: u64 = 60;

/// A register in memory that refuses its first calls to write and to list; reads are answered all the while.
#[derive(Default)]
struct Refusing {
    cells: MemoryRegister,
    refused: AtomicU64,
}

impl Refusing {
    fn refuse(&self, operation: &str) -> Result<(), Error> {
        if self.refused.fetch_add(1, SeqCst) >= REFUSED {
            return Ok(());
        }
        let source = Cause::Remote { place: "here".to_owned(), what: "READONLY".to_owned() };
        Err(Error { operation: operation.to_owned(), retryable: true, source })
    }
}

impl Register for Refusing {
    fn read(&self, key: &str) -> Result<Option<Cell>, Error> {
        self.cells.read(key)
    }

    fn compare_and_set(&self, key: &str, seen: Option<&Version>, claim: &Claim) -> Result<Set, Error> {
        self.refuse("write a cell")?;
        self.cells.compare_and_set(key, seen, claim)
    }

    fn remove(&self, key: &str, seen: &Version) -> Result<(), Error> {
        self.cells.remove(key, seen)
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, Cell)>, Error> {
        self.refuse("list cells")?;
        self.cells.list(prefix)
    }

    fn poll_interval(&self) -> Duration {
        Duration::from_millis(5)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_register_that_refuses_does_not_fill_the_log() {
    let log = logged::Logged::default();
    tracing::subscriber::set_global_default(log.clone()).unwrap();
    let began = Instant::now();
    let second = Duration::from_secs(1);
    let options = Options { leader_ttl: second, leader_renew: second / 20, ..Options::default() };
    let me = Candidate { name: "a".to_owned(), address: "here".to_owned(), incarnation: "1".to_owned() };
    let leadership =
        Leadership::start(Arc::new(Refusing::default()), "leader", me, options, Vec::new()).unwrap();
    let is_over = |log: &str| log.contains("leadership register available again");
    while !leadership.is_leader() || !is_over(&log.text()) {
        assert!(began.elapsed() < 60 * second, "{}", log.text());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let text = log.text();
    let lines = text.matches("message=leadership register unavailable").count();
    // At once, and after 1, 3, 7, … seconds.
    let most = (began.elapsed().as_secs() + 1).ilog2() as usize + 1;
    assert!((1..=most).contains(&lines), "{lines} lines in {:?}:\n{text}", began.elapsed());
    assert!(text.contains("READONLY"), "{text}");
    assert_eq!(leadership.status().register_error, None);
    leadership.stop().await;
}
