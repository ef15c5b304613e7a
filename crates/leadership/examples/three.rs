//! Three candidates for one leader lease, in one process. One leads and ticks; it stops, and another takes over.
//!
//! ```text
//! cargo run --package orchestrix-leadership --example three
//! ```
//! A service uses one candidate per process, on a register that they share.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::time::Duration;

use orchestrix_engine::Register;
use orchestrix_engine::memory::MemoryRegister;
use orchestrix_leadership::{Candidate, Duty, Leadership, Options, Reason, Term, Work};

/// Work that only the leader does.
struct Cleaning {
    who: String,
}

impl Duty for Cleaning {
    fn name(&self) -> &str {
        "cleaning"
    }

    fn tick_every(&self) -> Duration {
        Duration::from_millis(100)
    }

    fn on_elected<'a>(&'a self, term: &'a Term) -> Work<'a> {
        Box::pin(async move { println!("{} became leader with token {}", self.who, term.epoch) })
    }

    fn tick<'a>(&'a self, term: &'a Term) -> Work<'a> {
        // Every write carries the token, and the store refuses a lower one.
        Box::pin(async move { println!("{} cleans up under token {}", self.who, term.epoch) })
    }

    fn on_deposed(&self, reason: Reason) -> Work<'_> {
        Box::pin(async move { println!("{} lost leadership: {}", self.who, reason.word()) })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let register: Arc<dyn Register> = Arc::new(MemoryRegister::default());
    let mut candidates = Vec::new();
    for who in ["anna", "ben", "cleo"] {
        let me = Candidate {
            name: who.to_owned(),
            incarnation: std::process::id().to_string(),
            address: format!("http://{who}.example:3000"),
        };
        let duty: Arc<dyn Duty> = Arc::new(Cleaning { who: who.to_owned() });
        let options = Options::first_come(Duration::from_millis(600));
        candidates.push(Leadership::start(Arc::clone(&register), "cleaner", me, options, vec![duty])?);
    }
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(350)).await;
        if let Some(leader) = candidates.iter().find(|candidate| candidate.is_leader()) {
            leader.stop().await;
        }
    }
    tokio::time::sleep(Duration::from_millis(150)).await;
    for candidate in candidates {
        candidate.stop().await;
    }
    Ok(())
}
