//! The short way to append, for a handle that has just written.
//!
//! A script carries a batch through Lua, which copies it several times; without, the server needs a fraction of the
//! time. So a handle that has written lets the server watch both keys of the journal, and adds its next batch in a
//! transaction, which the server drops if anybody has touched either key meanwhile. The same message begins the next
//! watch, so that it costs no turn of its own. Whatever is not plain success goes the long way, by the script.
//!
//! **Invariant:** a transaction is sent only where the note, read after the watch began, has the end that the batch
//! follows. So it is done if and only if the journal still ends there.

use std::fmt;

use orchestrix_core::Position;
use redis::{Connection, Value};

use super::journal::{hex, number};
use super::keys::Keys;
use super::server::{Command, Failure, Server};
use crate::{ChainHash, JournalId, Link};

/// A connection on which the journal is watched.
pub(super) struct Watch {
    connection: Connection,
    end: End,
}

/// Where the journal ends, if nobody has touched it since the watch began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The server was asked; nobody waits for the answer before the next append.
    Asked,
    Told(Option<Link>),
}

/// What became of a transaction.
pub(super) enum Outcome {
    Done,
    /// Nothing was written.
    Dropped,
}

impl Watch {
    /// Begins to watch, on a connection that is there or on a new one; `None` if that is not to be had now.
    pub(super) fn begin(server: &Server, keys: &Keys, old: Option<Self>) -> Option<Self> {
        let mut connection = match old {
            Some(Self { connection, end: End::Told(_) }) => connection,
            Some(Self { mut connection, end: End::Asked }) => {
                let [_watched, _seen] = server.hear(&mut connection).ok()?;
                connection
            }
            None => server.open().ok()?,
        };
        let [watch, look] = watching(keys);
        server.say(&mut connection, &[Command::new("UNWATCH"), watch, look]).ok()?;
        let [_unwatched] = server.hear(&mut connection).ok()?;
        Some(Self { connection, end: End::Asked })
    }

    /// Whether a journal ended so when the watch began.
    pub(super) fn is_at(&mut self, server: &Server, id: JournalId, end: Link) -> Result<bool, Failure> {
        if self.end == End::Asked {
            let [_watched, seen] = server.hear(&mut self.connection)?;
            self.end = End::Told(noted(id, &seen));
        }
        Ok(self.end == End::Told(Some(end)))
    }

    /// Adds a batch after the end. The watch goes on only if it was done; otherwise it has to begin anew.
    pub(super) fn append(
        &mut self,
        server: &Server,
        keys: &Keys,
        link: Link,
        parcel: &[u8],
    ) -> Result<Outcome, Failure> {
        let name = format!("{}-0", link.position.0);
        let mut add = Command::new("XADD");
        add.arg(keys.journal()).arg("NOMKSTREAM").arg(&name);
        add.arg("hash").arg(link.hash.to_string()).arg("batch").arg(parcel);
        let mut note = Command::new("HSET");
        note.arg(keys.meta()).arg("position").arg(link.position.0).arg("hash").arg(link.hash.to_string());
        let [watch, look] = watching(keys);
        let all = [Command::new("MULTI"), add, note, Command::new("EXEC"), watch, look];
        server.say(&mut self.connection, &all)?;
        let [_begun, _added, _noted, executed] = server.hear(&mut self.connection)?;
        self.end = End::Asked;
        // Somebody has touched a key, or the server refuses such commands now; the script finds out.
        if matches!(executed, Value::Nil | Value::ServerError(_)) {
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
        f.debug_struct("Watch").field("end", &self.end).finish_non_exhaustive()
    }
}

/// Begins to watch, and then looks.
fn watching(keys: &Keys) -> [Command; 2] {
    let (mut watch, mut look) = (Command::new("WATCH"), Command::new("HMGET"));
    watch.arg(keys.meta()).arg(keys.journal());
    look.arg(keys.meta()).arg("id").arg("position").arg("hash");
    [watch, look]
}

/// The end that is noted, in the journal that it should be.
fn noted(id: JournalId, answer: &Value) -> Option<Link> {
    let Value::Array(fields) = answer else { return None };
    let [Value::BulkString(found), Value::BulkString(position), Value::BulkString(hash)] = &fields[..] else {
        return None;
    };
    let end = Link { position: Position(number(position)?), hash: ChainHash(hex(hash)?) };
    (hex(found) == Some(id.0)).then_some(end)
}
