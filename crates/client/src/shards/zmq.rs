//! Shards over ZeroMQ: one connection, as a DEALER, in a task of its own. A connection that breaks is not mended; the
//! next thing that is said opens another one, to the next address if there are several.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use orchestrix_core::Name;
use orchestrix_core::wire::{Assignment, ItemProblem};
use orchestrix_zmtp::{Connection, Incoming, Limits, SocketType};
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::book::Request;
use super::link::{Body, Heard, Who};
use crate::error::{Error, Kind, Repeat};

/// How long a connection and its greeting may take.
const CONNECT: Duration = Duration::from_secs(5);
/// Messages on their way to a connection, or from it. A connection that takes none is not to be trusted.
const QUEUE_MAX: usize = 64;
/// Bytes of one message: room for the assignment of the largest service.
const MESSAGE_BYTES_MAX: usize = 8 << 20;

pub(super) struct Zmq {
    /// Host and port of each.
    addresses: Arc<[String]>,
    current: usize,
    who: Arc<Who>,
    token: Option<String>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    request: mpsc::Sender<Vec<u8>>,
    heard: mpsc::Receiver<Heard>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Serialize)]
struct Message<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    data: Data<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Data<'a> {
    service_name: &'a Name,
    worker_id: &'a Name,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'a str>,
    #[serde(flatten)]
    body: Body,
}

#[derive(Deserialize)]
#[serde(tag = "type", content = "data", rename_all = "lowercase")]
enum Answer {
    Assignment(Assignment),
    Error { code: String, message: String },
}

impl Zmq {
    pub(super) fn new(addresses: Vec<String>, who: Arc<Who>, token: Option<String>) -> Self {
        Self { addresses: addresses.into(), current: 0, who, token, open: None }
    }

    pub(super) fn say(&mut self, request: Request) {
        let (kind, body) = self.who.write(&request);
        let Who { service, worker, .. } = &*self.who;
        let data = Data { service_name: service, worker_id: worker, token: self.token.as_deref(), body };
        let text = serde_json::to_vec(&Message { kind, data }).expect("a message is plain JSON");
        let address = &self.addresses[self.current];
        let open = self.open.get_or_insert_with(|| Open::new(address.clone()));
        if open.request.try_send(text).is_err() {
            // It hears that it is over, if it has not heard it yet.
            open.heard.close();
        }
    }

    pub(super) async fn hear(&mut self) -> Heard {
        let Some(open) = &mut self.open else { return std::future::pending().await };
        let heard = open.heard.recv().await.unwrap_or_else(|| {
            Heard::Disconnected(lost(&self.addresses[self.current], "it took nothing".to_owned()))
        });
        if matches!(heard, Heard::Disconnected(_)) {
            self.hang_up();
        }
        heard
    }

    pub(super) fn hang_up(&mut self) {
        self.open = None;
        self.current = (self.current + 1) % self.addresses.len();
    }
}

impl std::fmt::Debug for Zmq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Zmq").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

impl Open {
    fn new(address: String) -> Self {
        let (request, outgoing) = mpsc::channel(QUEUE_MAX);
        let (incoming, heard) = mpsc::channel(QUEUE_MAX);
        let task = tokio::spawn(async move {
            let error = speak(&address, outgoing, &incoming).await;
            // A closed connection has no reader.
            drop(incoming.send(Heard::Disconnected(error)).await);
        });
        Self { request, heard, _task: AbortOnDropHandle::new(task) }
    }
}

/// Connects and carries requests until the connection is over; why it is.
async fn speak(
    address: &str,
    mut outgoing: mpsc::Receiver<Vec<u8>>,
    incoming: &mpsc::Sender<Heard>,
) -> Error {
    let connected = async {
        let stream =
            TcpStream::connect(address).await.map_err(|error| unreachable(address, error.to_string()))?;
        // Without it, small messages wait for the peer's acknowledgement; where it fails they are just slower.
        drop(stream.set_nodelay(true));
        let limits = Limits { message_bytes: MESSAGE_BYTES_MAX, ..Limits::default() };
        let greeted = Connection::greet(stream, SocketType::Dealer, b"", limits).await;
        greeted.map_err(|error| unreachable(address, error.to_string()))
    };
    let connection = match tokio::time::timeout(CONNECT, connected).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return error,
        Err(_) => return unreachable(address, format!("no connection within {CONNECT:?}")),
    };
    let (mut reader, mut writer) = connection.split();
    loop {
        let carried = tokio::select! {
            request = outgoing.recv() => match request {
                Some(text) => writer.send(&[&text]).await,
                None => return lost(address, "the worker has stopped".to_owned()),
            },
            came = reader.next() => match came {
                Ok(Incoming::Message(parts)) => {
                    if let Some(heard) = understand(&parts)
                        && incoming.send(heard).await.is_err()
                    {
                        return lost(address, "the worker has stopped".to_owned());
                    }
                    Ok(())
                }
                Ok(Incoming::Ping(context)) => writer.pong(&context).await,
                Ok(Incoming::Pong) => Ok(()),
                Err(error) => Err(error),
            },
        };
        if let Err(error) = carried {
            return lost(address, error.to_string());
        }
    }
}

/// What a message says; nothing if it says nothing to us.
fn understand(parts: &[Bytes]) -> Option<Heard> {
    match serde_json::from_slice(parts.last()?).ok()? {
        // The assignment that follows says so, too.
        Answer::Error { code, .. } if code == "fenced" => None,
        Answer::Error { code, message } => {
            let problem = ItemProblem { code, detail: message };
            Some(Heard::Refused(Error::refused(problem, Repeat::Harmless)))
        }
        Answer::Assignment(assigned) => {
            // Everything that is said has a number, which comes back.
            let answers = assigned.seq;
            Some(Heard::Assigned { assignment: assigned, answers })
        }
    }
}

fn unreachable(address: &str, why: String) -> Error {
    let url = format!("tcp://{address}");
    Error::of_a_try(Kind::Unreachable { url: url.clone(), why }, Repeat::Harmless, &url)
}

fn lost(address: &str, why: String) -> Error {
    let url = format!("tcp://{address}");
    let call = "what it was told".to_owned();
    Error::of_a_try(Kind::Interrupted { call, url: url.clone(), why }, Repeat::Harmless, &url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(text: &'static str) -> Option<Heard> {
        understand(&[Bytes::from_static(text.as_bytes())])
    }

    #[test]
    fn only_what_has_a_number_answers_something() {
        let push = r#"{"type":"assignment","data":{"assignedShards":[1],"tokens":[4],"generation":4}}"#;
        assert!(matches!(heard(push), Some(Heard::Assigned { answers: None, .. })));
        let beat = r#"{"type":"assignment","data":{"assignedShards":[],"tokens":[],"generation":4,"leaseMs":5,"seq":9}}"#;
        assert!(matches!(heard(beat), Some(Heard::Assigned { answers: Some(9), .. })));
    }

    #[test]
    fn a_refusal_has_its_code_and_noise_says_nothing() {
        let refused = r#"{"type":"error","data":{"code":"no_leader","message":"wait"}}"#;
        assert!(matches!(heard(refused), Some(Heard::Refused(error)) if error.is_retryable()));
        let refused = r#"{"type":"error","data":{"code":"unauthorized","message":"who?"}}"#;
        assert!(matches!(heard(refused), Some(Heard::Refused(error)) if !error.is_retryable()));
        for noise in ["", "{}", r#"{"type":"error","data":{"code":"fenced","message":""}}"#] {
            assert!(heard(noise).is_none(), "{noise:?}");
        }
    }
}
