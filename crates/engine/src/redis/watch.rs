//! The cheap append, for a handle that has just written.
//!
//! A script carries a batch through Lua, which copies it several times; without, the server needs a fraction of the
//! time. So a handle that has written lets the server watch both keys of the journal and begins a transaction, to which it
//! adds its next batch; the server drops it if either key has changed meanwhile. The same message begins the
//! next watch, so that it needs no round trip of its own. Everything except plain success is repeated by the script.
//!
//! **Invariant:** a batch is sent only on a connection whose WATCH and MULTI were answered with OK, and where the note, read
//! between the two, has the end that the batch follows. So it is done if and only if the journal still ends there. A user
//! that may not do this uses scripts.

use std::fmt;

use orchestrix_core::Position;
use redis::{Connection, Value};

use super::journal::{hex, number};
use super::keys::Keys;
use super::server::{Command, Failure, Server};
use crate::{ChainHash, JournalId, Link};

/// Whether a handle may go the short way.
#[derive(Debug, Default)]
pub(super) enum ShortWay {
    /// Nothing is watched. It begins after the next script that appends.
    #[default]
    Unwatched,
    Watched(Watch),
    /// The user may not: only scripts.
    Denied,
}

/// A connection on which the journal is watched, in a transaction.
pub(super) struct Watch {
    connection: Connection,
    asked: Asked,
}

/// What the server was asked to do, before the next append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// To watch, to say where the journal ends, and to begin a transaction; the answers were not read yet.
    Unheard,
    /// It does all of this. The journal ended so; nowhere if the note is none.
    Heard(Option<Link>),
}

/// What became of a transaction.
pub(super) enum Outcome {
    Done,
    /// Nothing was written.
    Dropped,
    /// Nothing was written, and nothing ever will be: the user may not execute transactions.
    Denied,
}

impl ShortWay {
    /// Begins to watch on a new connection, unless the user may not. Waits for the answers: a server that does not take
    /// this now takes the next batch by the script.
    pub(super) fn begin(&mut self, server: &Server, keys: &Keys, id: JournalId) {
        match self {
            Self::Watched(_) | Self::Denied => {}
            Self::Unwatched => {
                let Ok(mut connection) = server.open() else { return };
                if server.say(&mut connection, &watching(keys)).is_ok() {
                    *self = Watch { connection, asked: Asked::Unheard }.heard(server, id);
                }
            }
        }
    }

    /// What is watched is not what the next batch follows.
    pub(super) fn give_up(&mut self) {
        if matches!(self, Self::Watched(_)) {
            *self = Self::Unwatched;
        }
    }

    /// Adds a batch after the end, if the short way is open and the journal ends there. If nothing was written, the
    /// script finds out why.
    pub(super) fn append(
        &mut self,
        server: &Server,
        keys: &Keys,
        id: JournalId,
        end: Link,
        (link, frame): (Link, impl FnOnce() -> Vec<u8>),
    ) -> Result<Outcome, Failure> {
        // After any failure this connection is not used again: it is in a transaction.
        *self = match std::mem::take(self) {
            Self::Watched(watch) => watch.heard(server, id),
            other @ (Self::Unwatched | Self::Denied) => other,
        };
        let mut watch = match std::mem::take(self) {
            Self::Watched(watch) if watch.asked == Asked::Heard(Some(end)) => watch,
            Self::Watched(_) | Self::Unwatched => return Ok(Outcome::Dropped),
            Self::Denied => {
                *self = Self::Denied;
                return Ok(Outcome::Dropped);
            }
        };
        let outcome = watch.append(server, keys, link, &frame())?;
        match outcome {
            Outcome::Done => *self = Self::Watched(watch),
            Outcome::Denied => *self = Self::Denied,
            Outcome::Dropped => {}
        }
        Ok(outcome)
    }
}

impl Watch {
    /// Hears what the server was asked before. A connection that broke has carried nothing of the next batch.
    fn heard(mut self, server: &Server, id: JournalId) -> ShortWay {
        if matches!(self.asked, Asked::Heard(_)) {
            return ShortWay::Watched(self);
        }
        let Ok([watched, noted, begun]) = server.hear(&mut self.connection) else {
            return ShortWay::Unwatched;
        };
        for answer in [&watched, &begun] {
            if denied(server, answer) {
                return ShortWay::Denied;
            }
            if *answer != Value::Okay {
                return ShortWay::Unwatched;
            }
        }
        self.asked = Asked::Heard(end_of(id, &noted));
        ShortWay::Watched(self)
    }

    fn append(&mut self, server: &Server, keys: &Keys, link: Link, frame: &[u8]) -> Result<Outcome, Failure> {
        let name = format!("{}-0", link.position.0);
        let mut add = Command::new("XADD");
        add.arg(keys.journal()).arg("NOMKSTREAM").arg(&name);
        add.arg("hash").arg(link.hash.to_string()).arg("batch").arg(frame);
        let mut note = Command::new("HSET");
        note.arg(keys.meta()).arg("position").arg(link.position.0).arg("hash").arg(link.hash.to_string());
        let [watch, look, begin] = watching(keys);
        server.say(&mut self.connection, &[add, note, Command::new("EXEC"), watch, look, begin])?;
        let [added, noted, executed] = server.hear(&mut self.connection)?;
        self.asked = Asked::Unheard;
        // A command that the server refused is not queued, and then it executes none.
        let refused = |answer: &Value| matches!(answer, Value::ServerError(_));
        let queued = |answer: &Value| matches!(answer, Value::SimpleString(word) if word == "QUEUED");
        if ![&added, &noted].iter().all(|answer| queued(answer) || refused(answer)) {
            return Err(Failure::Lost(format!("a transaction was answered {added:?}, {noted:?}")));
        }
        if denied(server, &executed) {
            return Ok(Outcome::Denied);
        }
        if matches!(executed, Value::Nil) || refused(&executed) {
            return Ok(Outcome::Dropped);
        }
        let done = if let Value::Array(done) = &executed { &done[..] } else { &[] };
        match done {
            [Value::BulkString(added), Value::Int(_)] if *added == name.as_bytes() => Ok(Outcome::Done),
            _ => Err(Failure::Lost(format!("a transaction was answered {executed:?}"))),
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("asked", &self.asked).finish_non_exhaustive()
    }
}

/// Whether the user may not do this, which is noted.
fn denied(server: &Server, answer: &Value) -> bool {
    let Value::ServerError(error) = answer else { return false };
    let what = error.details().unwrap_or_default();
    // The reason of a refused transaction follows the word that it was discarded.
    let denied = error.code() == "NOPERM" || (error.code() == "EXECABORT" && what.contains(": NOPERM"));
    if denied {
        tracing::info!(place = server.place(), what, "no transactions: appending by scripts");
    }
    denied
}

/// Begins to watch, then looks, then begins a transaction.
fn watching(keys: &Keys) -> [Command; 3] {
    let (mut watch, mut look) = (Command::new("WATCH"), Command::new("HMGET"));
    watch.arg(keys.meta()).arg(keys.journal());
    look.arg(keys.meta()).arg("id").arg("position").arg("hash");
    [watch, look, Command::new("MULTI")]
}

/// The end that is noted, in the journal that it should be.
fn end_of(id: JournalId, answer: &Value) -> Option<Link> {
    let Value::Array(fields) = answer else { return None };
    let [Value::BulkString(found), Value::BulkString(position), Value::BulkString(hash)] = &fields[..] else {
        return None;
    };
    let end = Link { position: Position(number(position)?), hash: ChainHash(hex(hash)?) };
    (hex(found) == Some(id.0)).then_some(end)
}
