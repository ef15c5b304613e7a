//! The connection to a coordinator, over ZeroMQ or HTTP: requests go in, assignments come out, uninterpreted.

use orchestrix_core::wire::{Assignment, ShardDeregister, ShardHeartbeat, ShardRegister};
use orchestrix_core::{Name, Position};
use serde::Serialize;

use super::book::{Request, RequestKind};
use super::http::Http;
use super::zmq::Zmq;
use crate::error::Error;

/// Who speaks.
#[derive(Clone, Debug)]
pub(super) struct Who {
    pub(super) service: Name,
    pub(super) worker: Name,
    pub(super) session: Name,
    pub(super) shards: u32,
    pub(super) capacity: Option<u32>,
    pub(super) group: Option<Name>,
}

/// What came.
#[derive(Debug)]
pub(super) enum Heard {
    /// What to serve; in answer to something, or because it changed.
    Assigned { assignment: Assignment, answers: Option<u64> },
    /// Something may have changed for the worker of this name.
    Hint(Position),
    /// This was not answered.
    Unanswered { number: u64, error: Error },
    /// The connection is over; nothing is answered any more.
    Disconnected(Error),
    /// Something was refused, and it is not known what.
    Refused(Error),
}

/// A message, as the coordinator reads it.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Body {
    Register(ShardRegister),
    Heartbeat(ShardHeartbeat),
    Deregister(ShardDeregister),
}

#[derive(Debug)]
pub(super) enum Link {
    Zmq(Zmq),
    Http(Http),
}

impl Link {
    pub(super) fn say(&mut self, request: Request) {
        match self {
            Self::Zmq(zmq) => zmq.say(request),
            Self::Http(http) => http.say(request),
        }
    }

    /// Waits until something comes. May be dropped and called again.
    pub(super) async fn hear(&mut self) -> Heard {
        match self {
            Self::Zmq(zmq) => zmq.hear().await,
            Self::Http(http) => http.hear().await,
        }
    }

    /// Leaves a connection that is not to be trusted. Calls of HTTP end by themselves.
    pub(super) fn hang_up(&mut self) {
        match self {
            Self::Zmq(zmq) => zmq.hang_up(),
            Self::Http(_) => {}
        }
    }
}

impl Who {
    /// What is said: its kind, and the rest.
    pub(super) fn write(&self, request: &Request) -> (&'static str, Body) {
        let session = Some(self.session.clone());
        match &request.kind {
            RequestKind::Register => {
                let (capacity, group) = (self.capacity, self.group.clone());
                let seq = Some(request.number);
                let register =
                    ShardRegister { max_shard_count: self.shards, capacity, group, session, seq, by: None };
                ("register", Body::Register(register))
            }
            RequestKind::Heartbeat { serves, generation } => {
                let heartbeat = ShardHeartbeat {
                    max_shard_count: self.shards,
                    assigned_shards: serves.clone(),
                    generation: Some(*generation),
                    seq: Some(request.number),
                    session,
                    capacity: self.capacity,
                    group: self.group.clone(),
                    by: None,
                };
                ("heartbeat", Body::Heartbeat(heartbeat))
            }
            RequestKind::Deregister => {
                ("deregister", Body::Deregister(ShardDeregister { session, seq: Some(request.number) }))
            }
        }
    }
}
