//! Streaming answers: the task that fills one, and limits, so that streams cannot crowd out workers.
//!
//! **Invariant:** a stream is filled only as fast as its reader takes it. A reader that takes nothing holds a
//! few pieces of memory, is closed by the timeout of its connection, and others are not affected.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::http::answer::Reply;
use crate::http::error::Fault;
use crate::http::handle::Call;
use crate::http::limits::Limits;

/// Pieces of a stream that wait for the socket.
const PIECES_MAX: usize = 2;

/// Where the pieces of a stream go.
#[derive(Clone, Debug)]
pub(crate) struct Sink(mpsc::Sender<Bytes>);

/// The reader has gone.
#[derive(Debug)]
pub(crate) struct Gone;

impl Sink {
    /// Waits until there is room.
    pub(crate) async fn send(&self, piece: impl Into<Bytes>) -> Result<(), Gone> {
        let piece = piece.into();
        if piece.is_empty() {
            return Ok(());
        }
        self.0.send(piece).await.map_err(|_| Gone)
    }

    pub(crate) async fn gone(&self) {
        self.0.closed().await;
    }
}

/// Answers with a stream that `fill` fills until it is done, its reader is gone, its token ends or the server stops.
pub(crate) fn reply<F>(
    call: &Call<'_>,
    content: &'static str,
    fill: impl FnOnce(Sink) -> F,
) -> Result<Reply, Fault>
where
    F: Future<Output = Result<(), Gone>> + Send + 'static,
{
    let place = Streams::open(&call.app.streams, call.client.name())?;
    let (sender, pieces) = mpsc::channel(PIECES_MAX);
    let filling = fill(Sink(sender));
    let (stop, ended) = (call.app.stop.clone(), call.client.ended());
    tokio::spawn(async move {
        tokio::select! {
            _ = filling => {}
            () = stop.cancelled() => {}
            () = ended.cancelled() => {}
        }
    });
    Ok(Reply::stream(content, pieces, place))
}

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
