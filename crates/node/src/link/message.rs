//! The messages of a link: an ask with its caller, and its reply.

use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::{Name, Position};

use crate::caller::Caller;
use crate::link::codec::{Bad, Field, Out, bad, numbered, put, put_choice, take, take_choice};
use crate::request::{Answer, Ask, Error};

/// Bytes of the name of a request in logs.
const REQUEST_ID_BYTES_MAX: usize = 256;
/// Bytes of a sentence that says why an ask was not taken.
const WHY_BYTES_MAX: usize = 4 << 10;
/// Queues that a caller may be limited to.
const CALLER_QUEUES_MAX: usize = 10_000;

/// Names an ask on its link. A later ask has a larger number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AskId(pub u64);

/// An ask on its way to the leader.
#[derive(Debug)]
pub struct Question {
    pub caller: Caller,
    pub ask: Ask,
    /// What the caller has seen: the answer must not be older.
    pub position: Option<Position>,
    /// Finds the request in logs.
    pub request_id: Option<String>,
    /// An ask for which there is no room in this time, or that is not whole in this time of its first byte, is not taken.
    pub within: Option<Duration>,
}

/// What becomes of an ask.
#[derive(Debug)]
pub enum Reply {
    /// The loop's answer.
    Done(Result<Answer, Error>),
    /// Not taken: that node does not lead, or is stopping. Nothing was changed.
    NotTaken,
    /// Not taken: the caller asks for too much. Nothing was changed.
    Limited(String),
    /// Not taken: the leader has not reached the position that the caller has seen.
    Behind { asked: u64, at: u64 },
    /// The caller had gone.
    Cancelled,
}

/// A reply, and how far the leader's journal was durable.
#[derive(Debug)]
pub struct Answered {
    pub reply: Reply,
    pub position: Position,
}

impl Question {
    /// A question of a caller about whom nothing is known.
    #[must_use]
    pub fn new(ask: Ask) -> Self {
        Self { caller: Caller::default(), ask, position: None, request_id: None, within: None }
    }
}

impl Field for Caller {
    fn put(&self, out: &mut Out) {
        let queues = self.queues.as_deref().map(<[Name]>::to_vec);
        put!(out, 0 & self.name, 1 & queues, 2 & self.address);
    }

    fn take(from: &mut minicbor::Decoder<'_>) -> Result<Self, Bad> {
        take!(from, { 0 name, 1 queues, 2 address } => {
            let queues: Option<Vec<Name>> = queues;
            if queues.as_ref().is_some_and(|queues| queues.len() > CALLER_QUEUES_MAX) {
                return Err(bad("a caller has too many queues"));
            }
            Ok(Self { name, queues: queues.map(Arc::from), address })
        })
    }
}

impl Field for Question {
    fn put(&self, out: &mut Out) {
        let within_ms = self.within.map(|within| u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
        put!(out, 0 & self.caller, 1 & self.ask, 2 & self.position, 3 & self.request_id, 4 & within_ms);
    }

    fn take(from: &mut minicbor::Decoder<'_>) -> Result<Self, Bad> {
        take!(from, { 0 caller, 1 ask, 2 position, 3 request_id, 4 within_ms } => {
            let request_id = within_bytes(request_id, REQUEST_ID_BYTES_MAX)?;
            let within: Option<u64> = within_ms;
            Ok(Self { caller, ask, position, request_id, within: within.map(Duration::from_millis) })
        })
    }
}

fn within_bytes(text: Option<String>, max: usize) -> Result<Option<String>, Bad> {
    match text {
        Some(text) if text.len() > max => Err(bad("a text is too long")),
        text => Ok(text),
    }
}

impl Field for Reply {
    fn put(&self, out: &mut Out) {
        match self {
            Self::Done(Ok(answer)) => {
                put_choice(out, 0);
                answer.put(out);
            }
            Self::Done(Err(error)) => {
                put_choice(out, 1);
                error.put(out);
            }
            Self::NotTaken => {
                put_choice(out, 2);
                put!(out,);
            }
            Self::Limited(why) => {
                put_choice(out, 3);
                put!(out, 0 why);
            }
            Self::Behind { asked, at } => {
                put_choice(out, 4);
                put!(out, 0 asked, 1 at);
            }
            Self::Cancelled => {
                put_choice(out, 5);
                put!(out,);
            }
        }
    }

    fn take(from: &mut minicbor::Decoder<'_>) -> Result<Self, Bad> {
        match take_choice(from)? {
            0 => Answer::take(from).map(|answer| Self::Done(Ok(answer))),
            1 => Error::take(from).map(|error| Self::Done(Err(error))),
            2 => Ok(take!(from, {} => Self::NotTaken)),
            3 => take!(from, { 0 why } => {
                let why = within_bytes(Some(why), WHY_BYTES_MAX)?;
                Ok(Self::Limited(why.unwrap_or_default()))
            }),
            4 => Ok(take!(from, { 0 asked, 1 at } => Self::Behind { asked, at })),
            5 => Ok(take!(from, {} => Self::Cancelled)),
            _ => Err(bad("unknown reply")),
        }
    }
}

numbered! {
    Answered { 0 reply, 1 position }
}
