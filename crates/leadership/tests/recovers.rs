//! A register error of a candidate is over although it never repeats the operation that failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use orchestrix_engine::memory::MemoryRegister;
use orchestrix_engine::{Cause, Cell, Claim, Error, Register, Set, Version};
use orchestrix_leadership::{Candidate, Leadership, Options};

fn refusal(operation: &str) -> Error {
    let source = Cause::Remote { place: "here".to_owned(), what: "READONLY".to_owned() };
    Error { operation: operation.to_owned(), retryable: true, source }
}

/// A register in which only `other` may write the leader cell.
struct ReservedRegister(MemoryRegister);

impl Register for ReservedRegister {
    fn read(&self, key: &str) -> Result<Option<Cell>, Error> {
        self.0.read(key)
    }

    fn compare_and_set(&self, key: &str, seen: Option<&Version>, claim: &Claim) -> Result<Set, Error> {
        if key == "leader" && claim.owner != "other" {
            return Err(refusal("write a cell"));
        }
        self.0.compare_and_set(key, seen, claim)
    }

    fn remove(&self, key: &str, seen: &Version) -> Result<(), Error> {
        self.0.remove(key, seen)
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, Cell)>, Error> {
        self.0.list(prefix)
    }

    fn poll_interval(&self) -> Duration {
        Duration::from_millis(5)
    }
}

/// A register that refuses reads when `refuses` is set.
#[derive(Default)]
struct UnreadableRegister {
    cells: MemoryRegister,
    refuses: AtomicBool,
}

impl Register for UnreadableRegister {
    fn read(&self, key: &str) -> Result<Option<Cell>, Error> {
        if self.refuses.load(SeqCst) { Err(refusal("read a cell")) } else { self.cells.read(key) }
    }

    fn compare_and_set(&self, key: &str, seen: Option<&Version>, claim: &Claim) -> Result<Set, Error> {
        self.cells.compare_and_set(key, seen, claim)
    }

    fn remove(&self, key: &str, seen: &Version) -> Result<(), Error> {
        self.cells.remove(key, seen)
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, Cell)>, Error> {
        self.cells.list(prefix)
    }

    fn poll_interval(&self) -> Duration {
        Duration::from_millis(5)
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn start(register: Arc<dyn Register>, name: &str) -> Leadership {
    let options = Options { leader_ttl: SECOND, leader_renew: SECOND / 20, ..Options::default() };
    let me = Candidate { name: name.to_owned(), address: "here".to_owned(), incarnation: name.to_owned() };
    Leadership::start(register, "leader", me, options, Vec::new()).expect("a memory register starts")
}

async fn wait(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < 20 * SECOND, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_of_a_candidate_ends_when_another_leads() {
    let register = Arc::new(ReservedRegister(MemoryRegister::default()));
    let refused = start(register.clone(), "a");
    wait("it is refused", || refused.status().register_error.is_some()).await;
    let other = start(register, "other");
    wait("the other leads", || other.is_leader()).await;
    wait("its error is over", || refused.status().register_error.is_none()).await;
    other.stop().await;
    refused.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_of_a_candidate_ends_when_it_leads() {
    let register = Arc::new(UnreadableRegister::default());
    let first = start(register.clone(), "first");
    wait("the first leads", || first.is_leader()).await;
    let next = start(register.clone(), "next");
    wait("the next sees it", || next.status().leader.is_some()).await;
    register.refuses.store(true, SeqCst);
    wait("the next is refused", || next.status().register_error.is_some()).await;
    first.stop().await;
    wait("the next leads", || next.is_leader()).await;
    // A leader never reads the leader cell.
    wait("its error is over", || next.status().register_error.is_none()).await;
    next.stop().await;
}
