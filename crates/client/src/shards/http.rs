//! Shards over HTTP: a call for every message, and a stream that says when to ask.
//!
//! The stream is that of a name, not of a session: it may tell what another process of our name should serve. So it
//! only makes a worker ask at once; the answer is for us.

use std::sync::Arc;

use orchestrix_core::wire::Assignment;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::book::{Request, RequestKind};
use super::link::{Heard, Who};
use crate::call::{Call, View, encode};
use crate::client::Client;
use crate::error::{Error, Repeat};
use crate::feed::Stream;
use crate::retry::Backoff;

/// Hints that wait to be read. More say the same.
const HINTS_MAX: usize = 8;

#[derive(Debug)]
pub(super) struct Http {
    client: Client,
    who: Arc<Who>,
    /// That of the worker, without what is asked of it.
    path: String,
    calls: JoinSet<Heard>,
    stream: Option<Following>,
}

#[derive(Debug)]
struct Following {
    hints: mpsc::Receiver<Heard>,
    _task: AbortOnDropHandle<()>,
}

impl Http {
    pub(super) fn new(client: Client, who: Arc<Who>) -> Self {
        let (service, worker) = (encode(who.service.as_str()), encode(who.worker.as_str()));
        let path = format!("/v1/services/{service}/workers/{worker}");
        Self { client, who, path, calls: JoinSet::new(), stream: None }
    }

    pub(super) fn say(&mut self, request: Request) {
        // Before the first heartbeat, the coordinator may not know of us.
        if matches!(request.kind, RequestKind::Heartbeat { .. }) && self.stream.is_none() {
            let (sender, hints) = mpsc::channel(HINTS_MAX);
            let path = format!("{}/assignments?session={}", self.path, encode(self.who.session.as_str()));
            let following = tokio::spawn(follow(self.client.clone(), path, sender));
            self.stream = Some(Following { hints, _task: AbortOnDropHandle::new(following) });
        }
        let (client, who, path) = (self.client.clone(), Arc::clone(&self.who), self.path.clone());
        self.calls.spawn(async move {
            let number = request.number;
            match ask(&client, &who, &path, &request).await {
                Ok(assignment) => Heard::Assigned { assignment, answers: Some(number) },
                Err(error) => Heard::Unanswered { number, error },
            }
        });
    }

    pub(super) async fn hear(&mut self) -> Heard {
        let hinted = async {
            match &mut self.stream {
                Some(following) => following.hints.recv().await,
                None => None,
            }
        };
        tokio::select! {
            Some(called) = self.calls.join_next() => called.expect("a call does not panic, and nobody aborts it"),
            Some(hint) = hinted => hint,
            else => std::future::pending().await,
        }
    }
}

async fn ask(client: &Client, who: &Who, path: &str, request: &Request) -> Result<Assignment, Error> {
    let (kind, body) = who.write(request);
    // To say something twice is harmless: the coordinator knows the session.
    let call = Call::post(format!("{path}/{kind}"), &body, Repeat::Harmless)?;
    client.transport().ask_once(&Call { held: request.patience, limit: request.patience, ..call }).await
}

/// Follows what is said about a name, until it is refused.
async fn follow(client: Client, path: String, hints: mpsc::Sender<Heard>) {
    let transport = client.transport();
    let call = Call { view: View::Any, ..Call::get(path) };
    let mut backoff = Backoff::endless();
    loop {
        let read = async {
            let mut stream = Stream::open(transport, &call, &[]).await?;
            while let Some(frame) = stream.next(transport, &call).await? {
                backoff.reset();
                if let Ok(assignment) = serde_json::from_str::<Assignment>(&frame.data) {
                    // If it is full, its reader will ask anyway.
                    drop(hints.try_send(Heard::Hint(assignment.generation)));
                }
            }
            Err(transport.broken(stream.at, &call, "the stream ended".to_owned()))
        };
        let Err::<(), Error>(error) = read.await else { return };
        if let Err(error) = transport.pause(&mut backoff, &call, error).await {
            tracing::debug!(%error, "no answer about changes; the next heartbeat brings them");
            return;
        }
    }
}
