//! The throttle of one candidate ends although it never writes again what it was refused.

use std::sync::Arc;
use std::time::{Duration, Instant};

use orchestrix_engine::memory::MemoryRegister;
use orchestrix_engine::{Cause, Cell, Claim, Error, Register, Set, Version};
use orchestrix_leadership::{Candidate, Leadership, Options};

/// A register in which nobody but `other` may write who leads.
struct OthersOffice(MemoryRegister);

impl Register for OthersOffice {
    fn read(&self, key: &str) -> Result<Option<Cell>, Error> {
        self.0.read(key)
    }

    fn compare_and_set(&self, key: &str, seen: Option<&Version>, claim: &Claim) -> Result<Set, Error> {
        if key == "leader" && claim.owner != "other" {
            let source = Cause::Remote { place: "here".to_owned(), what: "READONLY".to_owned() };
            return Err(Error { operation: "write a cell".to_owned(), retryable: true, source });
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

#[tokio::test(flavor = "multi_thread")]
async fn trouble_of_a_candidate_ends_when_another_leads() {
    let (began, second) = (Instant::now(), Duration::from_secs(1));
    let register: Arc<dyn Register> = Arc::new(OthersOffice(MemoryRegister::default()));
    let start = |name: &str| {
        let options = Options { leader_ttl: second, leader_renew: second / 20, ..Options::default() };
        let me =
            Candidate { name: name.to_owned(), address: "here".to_owned(), incarnation: name.to_owned() };
        Leadership::start(Arc::clone(&register), "leader", me, options, Vec::new()).unwrap()
    };
    let wait = async |what: &str, is_so: &dyn Fn() -> bool| {
        while !is_so() {
            assert!(began.elapsed() < 20 * second, "{what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let refused = start("a");
    wait("it is refused", &|| refused.status().throttle.is_some()).await;
    let other = start("other");
    wait("the other leads", &|| other.is_leader()).await;
    wait("its throttle is over", &|| refused.status().throttle.is_none()).await;
    other.stop().await;
    refused.stop().await;
}
