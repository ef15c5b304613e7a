//! What the scripts answer.

use orchestrix_core::{LeaseId, Term};
use redis::Value;

use super::RedisBus;
use crate::bus::{Closed, Content, Entry, EntryId, MESSAGE_BYTES_MAX, Noted, foreign};
use crate::redis::server::Failure;
use crate::{Error, JournalId};

/// What a script says that compares claims.
pub(super) enum Noting {
    Here(Noted),
    Stale {
        term: Term,
        generation: u64,
    },
    Done,
    Repeated,
    /// Something is gone, or older than the caller knows.
    Gone,
    /// This channel has a later id, of somebody else.
    Ahead(String),
}

impl RedisBus {
    pub(super) fn noted(&self, doing: &str, answer: Value, own: JournalId) -> Result<Noting, Error> {
        let strange = || self.strange(doing, &answer);
        let parts = list(&answer).ok_or_else(strange)?;
        let parts: Vec<&str> = parts.iter().map(text).collect::<Option<_>>().ok_or_else(strange)?;
        let number = |text: &str| text.parse::<u64>().map_err(|_| strange());
        match parts[..] {
            ["here", journal, term, generation, last] => {
                if journal != own.to_string() {
                    return Err(self.foreign(doing, journal, own));
                }
                let last = LeaseId(number(last)?).into();
                Ok(Noting::Here(Noted { term: Term(number(term)?), generation: number(generation)?, last }))
            }
            ["other", journal] => Err(self.foreign(doing, journal, own)),
            ["stale", term, generation] => {
                Ok(Noting::Stale { term: Term(number(term)?), generation: number(generation)? })
            }
            ["done"] => Ok(Noting::Done),
            ["repeated"] => Ok(Noting::Repeated),
            ["gone"] => Ok(Noting::Gone),
            ["ahead", channel] => Ok(Noting::Ahead(channel.to_owned())),
            _ => Err(strange()),
        }
    }

    fn foreign(&self, doing: &str, found: &str, own: JournalId) -> Error {
        foreign(doing, self.server.place(), found, own, &self.keys.bus())
    }

    /// An answer that no script of this version gives.
    pub(super) fn strange(&self, doing: &str, answer: &Value) -> Error {
        let mut what = format!("{answer:?}");
        what.truncate(what.floor_char_boundary(200));
        self.server.damaged(doing, &self.keys.bus(), format!("it was answered {what}"))
    }

    pub(super) fn closed(&self, doing: &str, answer: Result<Value, Failure>) -> Result<Closed, Error> {
        let answer = answer.map_err(|failure| self.error(doing, failure))?;
        match text(&answer) {
            Some("done") => Ok(Closed::Done),
            Some("absent") => Ok(Closed::Absent),
            Some("other") => Ok(Closed::Other),
            Some(_) | None => Err(self.strange(doing, &answer)),
        }
    }
}

pub(super) fn text(value: &Value) -> Option<&str> {
    if let Value::SimpleString(text) = value { Some(text) } else { bytes(value).and_then(utf8) }
}

fn utf8(bytes: &[u8]) -> Option<&str> {
    str::from_utf8(bytes).ok()
}

fn bytes(value: &Value) -> Option<&[u8]> {
    if let Value::BulkString(bytes) = value { Some(bytes) } else { None }
}

pub(super) fn list(value: &Value) -> Option<&[Value]> {
    if let Value::Array(parts) = value { Some(parts) } else { None }
}

pub(super) fn id(value: &Value) -> Option<EntryId> {
    text(value).and_then(EntryId::parse)
}

pub(super) fn size(value: &Value) -> Option<usize> {
    if let Value::Int(number) = value { usize::try_from(*number).ok() } else { None }
}

/// The entries of a stream. Those that are gone have no fields.
pub(super) fn entries(value: &Value) -> Option<Vec<Entry>> {
    list(value)?.iter().filter(|entry| !matches!(entry, Value::Nil)).map(entry).collect()
}

fn entry(value: &Value) -> Option<Entry> {
    let [id_of, fields] = list(value)? else { return None };
    let pair = |pair: &[Value]| Some((bytes(&pair[0])?.to_vec(), bytes(&pair[1])?.to_vec()));
    let pairs: Option<Vec<_>> = list(fields).unwrap_or_default().chunks_exact(2).map(pair).collect();
    Some(Entry { id: id(id_of)?, content: Content::of(&pairs?) })
}

/// Entries as the script for reads gives them: place, id, length, data.
pub(super) fn found(values: &[Value]) -> Option<Vec<(usize, Entry)>> {
    let one = |parts: &[Value]| {
        let [place, id_of, length, data] = parts else { return None };
        let length = size(length)?;
        let data = bytes(data).filter(|_| length <= MESSAGE_BYTES_MAX).and_then(utf8);
        let malformed = Content::Malformed { bytes: length };
        let content = data.map_or(malformed, |data| Content::Data(data.to_owned()));
        Some((size(place)?, Entry { id: id(id_of)?, content }))
    };
    values.chunks(4).map(one).collect()
}
