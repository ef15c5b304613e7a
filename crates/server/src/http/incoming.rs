//! Long bodies of requests: how many bytes of them there may be in memory, of one caller and in all.
//!
//! A long body is not read before there is room for all of it, so its sender waits. Short bodies do not count: the number of
//! connections bounds them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use crate::http::error::Fault;
use crate::http::limits::Limits;

/// Bodies up to this length are not counted.
pub(crate) const SHORT_BODY_BYTES_MAX: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Incoming {
    bytes_max: usize,
    client_bytes_max: usize,
    patience: Duration,
    all: Arc<Semaphore>,
    by_client: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// Room for a long body; free when dropped.
#[derive(Debug)]
pub(crate) struct Room {
    _of_all: OwnedSemaphorePermit,
    _of_client: Part,
}

/// A caller's part of the room. Its entry goes with the last who uses it.
#[derive(Debug)]
struct Part {
    incoming: Arc<Incoming>,
    client: String,
    semaphore: Option<Arc<Semaphore>>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Incoming {
    pub(crate) fn new(limits: &Limits) -> Self {
        let bytes_max = limits.incoming_bytes.min(Semaphore::MAX_PERMITS);
        let client_bytes_max = limits.incoming_bytes_per_client.min(Semaphore::MAX_PERMITS);
        let (patience, all) = (limits.body_timeout, Arc::new(Semaphore::new(bytes_max)));
        Self { bytes_max, client_bytes_max, patience, all, by_client: Mutex::default() }
    }

    /// Waits for room, first come, first served. A body that is longer than all that is allowed comes when it is the only one.
    pub(crate) async fn room(incoming: &Arc<Self>, client: String, bytes: usize) -> Result<Room, Fault> {
        let (mut part, begun) = (Part::of(incoming, client), Instant::now());
        let wanted = permits(bytes, incoming.client_bytes_max);
        let own = part.semaphore.clone().expect("a part has a semaphore until it ends");
        let Ok(permit) = timeout(incoming.patience, own.acquire_many_owned(wanted)).await else {
            return Err(Fault::RateLimited(format!(
                "{} sends long bodies, and {} bytes of them at one time are the limit; finish some first",
                part.client, incoming.client_bytes_max
            )));
        };
        part.permit = Some(permit.expect("it is never closed"));
        let wanted = permits(bytes, incoming.bytes_max);
        let all = Arc::clone(&incoming.all).acquire_many_owned(wanted);
        let left = incoming.patience.saturating_sub(begun.elapsed());
        let Ok(permit) = timeout(left, all).await else {
            let max = incoming.bytes_max;
            return Err(Fault::Overloaded(format!(
                "all callers together send long bodies, and {max} bytes of them at one time are the limit; try later"
            )));
        };
        Ok(Room { _of_all: permit.expect("it is never closed"), _of_client: part })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Semaphore>>> {
        self.by_client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn permits(bytes: usize, max: usize) -> u32 {
    u32::try_from(bytes.min(max)).unwrap_or(u32::MAX)
}

impl Part {
    fn of(incoming: &Arc<Incoming>, client: String) -> Self {
        let mut by_client = incoming.lock();
        let semaphore = match by_client.get(&client) {
            Some(semaphore) => Arc::clone(semaphore),
            None => {
                let semaphore = Arc::new(Semaphore::new(incoming.client_bytes_max));
                by_client.insert(client.clone(), Arc::clone(&semaphore));
                semaphore
            }
        };
        drop(by_client);
        Self { incoming: Arc::clone(incoming), client, semaphore: Some(semaphore), permit: None }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut by_client = self.incoming.lock();
        (self.permit, self.semaphore) = (None, None);
        if by_client.get(&self.client).is_some_and(|semaphore| Arc::strong_count(semaphore) == 1) {
            by_client.remove(&self.client);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    fn incoming() -> Arc<Incoming> {
        let limits = Limits {
            incoming_bytes: 250,
            incoming_bytes_per_client: 100,
            body_timeout: Duration::from_millis(50),
            ..Limits::default()
        };
        Arc::new(Incoming::new(&limits))
    }

    async fn room(incoming: &Arc<Incoming>, client: &str, bytes: usize) -> Result<Room, Fault> {
        Incoming::room(incoming, client.to_owned(), bytes).await
    }

    #[tokio::test]
    async fn one_client_gets_as_much_as_the_limit_says() {
        let incoming = incoming();
        let first = room(&incoming, "a", 60).await.unwrap();
        let refused = room(&incoming, "a", 41).await;
        assert!(matches!(&refused, Err(Fault::RateLimited(why)) if why.contains("100 bytes")), "{refused:?}");
        let second = room(&incoming, "a", 40).await.unwrap();
        let mut third = pin!(room(&incoming, "a", 60));
        assert!(third.as_mut().now_or_never().is_none(), "it waits");
        assert!(room(&incoming, "b", 100).await.is_ok(), "others do not");
        drop(first);
        drop((third.await.unwrap(), second));
        assert!(incoming.lock().is_empty(), "nothing is left of them");
    }

    #[tokio::test]
    async fn all_together_get_as_much_as_the_limit_says() {
        let incoming = incoming();
        let held = [room(&incoming, "a", 100).await.unwrap(), room(&incoming, "b", 100).await.unwrap()];
        assert!(matches!(room(&incoming, "c", 51).await, Err(Fault::Overloaded(_))));
        assert!(room(&incoming, "c", 50).await.is_ok());
        drop(held);
        assert!(room(&incoming, "c", 51).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_waits_once_for_both_kinds_of_room() {
        let incoming = incoming();
        let held = room(&incoming, "a", 100).await.unwrap();
        let _others = [room(&incoming, "b", 100).await.unwrap(), room(&incoming, "c", 50).await.unwrap()];
        let begun = Instant::now();
        // The room in all that `a` frees goes to `d`, who came first.
        let frees = async {
            tokio::time::sleep(Duration::from_millis(40)).await;
            drop(held);
        };
        let (d, a, ()) = tokio::join!(room(&incoming, "d", 100), room(&incoming, "a", 100), frees);
        assert!(d.is_ok() && matches!(a, Err(Fault::Overloaded(_))), "{d:?} {a:?}");
        assert!(begun.elapsed() < Duration::from_millis(60), "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn a_body_longer_than_the_limits_comes_alone() {
        let incoming = incoming();
        let long = room(&incoming, "a", 1_000).await.unwrap();
        assert!(room(&incoming, "a", 1).await.is_err());
        drop(long);
        assert!(room(&incoming, "a", 1).await.is_ok());
    }

    #[tokio::test]
    async fn a_caller_that_goes_while_it_waits_leaves_nothing() {
        let incoming = incoming();
        let held = room(&incoming, "a", 100).await.unwrap();
        {
            let mut waits = pin!(room(&incoming, "a", 1));
            assert!(waits.as_mut().now_or_never().is_none());
        }
        drop(held);
        assert!(incoming.lock().is_empty());
        assert_eq!(incoming.all.available_permits(), 250);
    }
}
