//! Long answers that peers have not taken yet: how many bytes of them there may be, of one caller and in all.
//!
//! Short answers do not count: the number of connections bounds them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::http::error::Fault;
use crate::http::limits::Limits;

/// Answers up to this length are not counted.
pub(crate) const SHORT_BYTES_MAX: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Unsent {
    bytes_max: usize,
    client_bytes_max: usize,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    all: usize,
    by_client: HashMap<String, usize>,
}

/// A long answer that is not taken yet; taken when dropped.
#[derive(Debug)]
pub(crate) struct Held {
    unsent: Arc<Unsent>,
    client: String,
    bytes: usize,
}

impl Unsent {
    pub(crate) fn new(limits: &Limits) -> Self {
        let (bytes_max, client_bytes_max) = (limits.unsent_bytes, limits.unsent_bytes_per_client);
        Self { bytes_max, client_bytes_max, waiting: Mutex::default() }
    }

    /// Makes room for a long answer. One that is longer than all that is allowed is sent when it is the only one.
    pub(crate) fn hold(unsent: &Arc<Self>, client: String, bytes: usize) -> Result<Held, Fault> {
        let mut waiting = unsent.lock();
        unsent.check(&waiting, &client, bytes)?;
        waiting.add(&client, bytes);
        drop(waiting);
        Ok(Held { unsent: Arc::clone(unsent), client, bytes })
    }

    /// Whether there is room for an answer of up to so many bytes that could not be refused later.
    pub(crate) fn admit(&self, client: &str, bytes: usize) -> Result<(), Fault> {
        self.check(&self.lock(), client, bytes)
    }

    fn check(&self, waiting: &Waiting, client: &str, bytes: usize) -> Result<(), Fault> {
        let (all, of_client) = (waiting.all, waiting.by_client.get(client).copied().unwrap_or(0));
        if of_client > 0 && of_client + bytes > self.client_bytes_max {
            let max = self.client_bytes_max;
            return Err(Fault::RateLimited(format!(
                "{client} has not taken {of_client} bytes of its answers, and {max} are the limit; read them, or ask for less"
            )));
        }
        if all > 0 && all + bytes > self.bytes_max {
            return Err(Fault::Node(orchestrix_node::Error::Overloaded));
        }
        Ok(())
    }

    /// Counts a long answer that cannot be refused any more.
    pub(crate) fn hold_anyway(unsent: &Arc<Self>, client: String, bytes: usize) -> Held {
        unsent.lock().add(&client, bytes);
        Held { unsent: Arc::clone(unsent), client, bytes }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn add(&mut self, client: &str, bytes: usize) {
        self.all += bytes;
        match self.by_client.get_mut(client) {
            Some(of_client) => *of_client += bytes,
            None => drop(self.by_client.insert(client.to_owned(), bytes)),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut waiting = self.unsent.lock();
        waiting.all -= self.bytes;
        let left = waiting.by_client.get_mut(&self.client).map(|bytes| {
            *bytes -= self.bytes;
            *bytes
        });
        if left == Some(0) {
            waiting.by_client.remove(&self.client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unsent() -> Arc<Unsent> {
        let limits = Limits { unsent_bytes: 250, unsent_bytes_per_client: 100, ..Limits::default() };
        Arc::new(Unsent::new(&limits))
    }

    fn hold(unsent: &Arc<Unsent>, client: &str, bytes: usize) -> Result<Held, Fault> {
        Unsent::hold(unsent, client.to_owned(), bytes)
    }

    #[test]
    fn one_client_gets_as_much_as_the_limit_says() {
        let unsent = unsent();
        let first = hold(&unsent, "a", 60).unwrap();
        assert!(matches!(hold(&unsent, "a", 41), Err(Fault::RateLimited(why)) if why.contains("60 bytes")));
        let _second = hold(&unsent, "a", 40).unwrap();
        assert!(hold(&unsent, "a", 1).is_err());
        drop(first);
        assert!(hold(&unsent, "a", 60).is_ok(), "what was taken makes room");
    }

    #[test]
    fn all_together_get_as_much_as_the_limit_says() {
        let unsent = unsent();
        let _held = [hold(&unsent, "a", 100).unwrap(), hold(&unsent, "b", 100).unwrap()];
        let overloaded = hold(&unsent, "c", 51);
        assert!(matches!(overloaded, Err(Fault::Node(orchestrix_node::Error::Overloaded))));
        assert!(hold(&unsent, "c", 50).is_ok());
    }

    #[test]
    fn callers_at_the_same_moment_share_one_limit() {
        for _ in 0..2_000 {
            let unsent = unsent();
            let start = std::sync::Barrier::new(4);
            let ask = || {
                start.wait();
                hold(&unsent, "a", 60).ok()
            };
            let held = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
                threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
            });
            assert_eq!(held.len(), 1, "60 bytes fit into 100 once");
        }
    }

    #[test]
    fn answers_of_decided_requests_are_not_refused() {
        let unsent = unsent();
        let held = [100, 100, 100].map(|bytes| Unsent::hold_anyway(&unsent, "a".to_owned(), bytes));
        assert!(hold(&unsent, "a", 1).is_err() && hold(&unsent, "b", 1).is_err());
        drop(held);
        assert!(hold(&unsent, "a", 1).is_ok());
    }

    #[test]
    fn an_answer_that_cannot_be_refused_is_admitted_first() {
        let unsent = unsent();
        assert!(unsent.admit("a", 1_000).is_ok(), "the only one may be longer");
        let _held = hold(&unsent, "a", 60).unwrap();
        assert!(unsent.admit("a", 40).is_ok());
        assert!(matches!(unsent.admit("a", 41), Err(Fault::RateLimited(_))));
        assert!(unsent.admit("b", 190).is_ok());
        assert!(matches!(unsent.admit("b", 191), Err(Fault::Node(orchestrix_node::Error::Overloaded))));
    }

    #[test]
    fn an_answer_longer_than_the_limit_is_sent_alone() {
        let unsent = unsent();
        let long = hold(&unsent, "a", 1_000).unwrap();
        assert!(hold(&unsent, "a", 1).is_err() && hold(&unsent, "b", 1).is_err());
        drop(long);
        assert!(unsent.lock().by_client.is_empty(), "nothing is left of it");
    }
}
