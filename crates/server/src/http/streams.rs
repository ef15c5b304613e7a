//! Who watches: caps on streams, so that watchers cannot crowd out those who work.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::http::error::Fault;
use crate::http::limits::Limits;

/// All open streams, by client.
#[derive(Debug)]
pub(crate) struct Streams {
    open: Mutex<Open>,
    all_max: usize,
    client_max: usize,
}

#[derive(Debug, Default)]
struct Open {
    all: usize,
    by_client: HashMap<String, usize>,
}

/// The place of one stream; free again when dropped.
#[derive(Debug)]
pub(crate) struct Stream {
    streams: Arc<Streams>,
    client: String,
}

impl Streams {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self { open: Mutex::default(), all_max: limits.streams, client_max: limits.streams_per_client }
    }

    /// Opens a stream for a client, named by its token or its address.
    pub(crate) fn open(streams: &Arc<Self>, client: String) -> Result<Stream, Fault> {
        let mut open = streams.lock();
        let of_client = open.by_client.get(&client).copied().unwrap_or(0);
        if of_client >= streams.client_max {
            let max = streams.client_max;
            return Err(Fault::RateLimited(format!(
                "you have {max} open streams, which is the limit; close one"
            )));
        }
        if open.all >= streams.all_max {
            let max = streams.all_max;
            return Err(Fault::Overloaded(format!(
                "there are {max} open streams, which is the limit; try later"
            )));
        }
        open.all += 1;
        open.by_client.insert(client.clone(), of_client + 1);
        drop(open);
        Ok(Stream { streams: Arc::clone(streams), client })
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().all
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut open = self.streams.lock();
        open.all -= 1;
        let left = open.by_client.get_mut(&self.client).map(|count| {
            *count -= 1;
            *count
        });
        if left == Some(0) {
            open.by_client.remove(&self.client);
        }
    }
}
