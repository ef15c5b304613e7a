//! The register in Redis: a hash for each cell, changed by one script.
//!
//! A version is a count of all writings and the random name of this one. A writing that is tried again keeps its
//! name, so that it is recognised if it was written before and the answer was lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::keys::Keys;
use super::server::{Failure, Script, Server, random};
use crate::{Cell, Claim, Error, JournalId, Register, Set, Version};

static LOOK: Script =
    Script::new(concat!(include_str!("scripts/cell.lua"), include_str!("scripts/look.lua")));
static LIST: Script =
    Script::new(concat!(include_str!("scripts/cell.lua"), include_str!("scripts/list.lua")));
static SET: Script = Script::new(concat!(include_str!("scripts/cell.lua"), include_str!("scripts/set.lua")));

static REMOVE: Script = Script::new(include_str!("scripts/remove.lua"));

const DO_READ: &str = "read a cell";
const DO_SET: &str = "write a cell";
const DO_LIST: &str = "list cells";
const DO_REMOVE: &str = "remove a cell";

/// Shorter than any wait for a leader, longer than one request takes.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A handle of the register.
#[derive(Debug)]
pub(super) struct RedisRegister {
    server: Arc<Server>,
    keys: Arc<Keys>,
    /// By key, the last writing whose outcome is not known.
    unresolved: Mutex<BTreeMap<String, Writing>>,
}

#[derive(Debug, PartialEq, Eq)]
struct Writing {
    seen: Option<Version>,
    claim: Claim,
    nonce: String,
}

/// The answer of a script: a word and then fields.
type Fields = Vec<Option<Vec<u8>>>;

impl RedisRegister {
    pub(super) fn new(server: Arc<Server>, keys: Arc<Keys>) -> Self {
        Self { server, keys, unresolved: Mutex::default() }
    }

    /// The writing that was tried before and is tried again, or a new one.
    fn writing(
        &self,
        key: &str,
        seen: Option<&Version>,
        claim: &Claim,
    ) -> Result<(Writing, Repeated), Error> {
        let before = self.unresolved.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        match before {
            Some(before) if before.seen.as_ref() == seen && before.claim == *claim => {
                Ok((before, Repeated::Yes))
            }
            Some(_) | None => {
                let nonce = JournalId(random()?).to_string();
                Ok((Writing { seen: seen.cloned(), claim: claim.clone(), nonce }, Repeated::No))
            }
        }
    }

    fn keep(&self, key: &str, writing: Writing) {
        self.unresolved.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), writing);
    }

    fn send(&self, key: &str, writing: &Writing) -> Result<Fields, Failure> {
        let Writing { seen, claim, nonce } = writing;
        let mut command = SET.with(&[self.keys.cell(key), self.keys.cells(), self.keys.writings()]);
        command.arg(key).arg(seen.as_ref().map(|seen| format!("={}", seen.0)).unwrap_or_default());
        command.arg(nonce).arg(&claim.owner).arg(claim.epoch).arg(claim.ttl_ms).arg(u8::from(claim.held));
        self.server.ask(command.arg(&claim.value).arg(sum(key, nonce, claim)))
    }

    /// The cell of an answer; `None` if it was never written.
    fn cell(&self, doing: &str, key: &str, answer: &[Option<Vec<u8>>]) -> Result<Option<Cell>, Error> {
        let damaged = |what: &str| self.server.damaged(doing, &self.keys.cell(key), what);
        let (word, fields) = match answer {
            [Some(word), fields @ ..] => (&word[..], fields),
            _ => return Err(damaged("it was not answered")),
        };
        match word {
            b"none" => Ok(None),
            b"gone" => Err(damaged("it was written, and is gone")),
            _ => decode(key, fields).map(Some).ok_or_else(|| damaged("checksum mismatch")),
        }
    }
}

enum Repeated {
    Yes,
    No,
}

impl Register for RedisRegister {
    fn read(&self, key: &str) -> Result<Option<Cell>, Error> {
        let mut command = LOOK.with(&[self.keys.cell(key), self.keys.cells()]);
        let answer: Fields = self.server.get(DO_READ, command.arg(key))?;
        self.cell(DO_READ, key, &answer)
    }

    fn compare_and_set(&self, key: &str, seen: Option<&Version>, claim: &Claim) -> Result<Set, Error> {
        let (writing, repeated) = self.writing(key, seen, claim)?;
        let sent = self.send(key, &writing);
        if sent.is_ok() {
            self.server.settled(DO_SET);
        }
        match (sent, repeated) {
            (Ok(answer), _) => match &answer[..] {
                [Some(word), Some(version)] if word == b"done" => {
                    Ok(Set::Done(Version(String::from_utf8_lossy(version).into_owned())))
                }
                _ => Ok(Set::Conflict(self.cell(DO_SET, key, &answer)?)),
            },
            (Err(Failure::Lost(what)), _) => {
                self.server.unknown(DO_SET, &what);
                self.keep(key, writing);
                Ok(Set::Unknown)
            }
            // That nothing was written now says nothing about before.
            (Err(Failure::Unsent { what, .. } | Failure::Refused { what, .. }), Repeated::Yes) => {
                self.server.unknown(DO_SET, &what);
                self.keep(key, writing);
                Ok(Set::Unknown)
            }
            (Err(failure), Repeated::No) => Err(self.server.error(DO_SET, failure)),
        }
    }

    fn remove(&self, key: &str, seen: &Version) -> Result<(), Error> {
        let mut command = REMOVE.with(&[self.keys.cell(key), self.keys.cells()]);
        self.server.get(DO_REMOVE, command.arg(key).arg(&seen.0))
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, Cell)>, Error> {
        let mut command = LIST.with(&[self.keys.cells()]);
        // No text has the byte 0xff, so nothing that begins with the prefix is behind it.
        let [first, last] = [format!("[{prefix}").into_bytes(), [b"[", prefix.as_bytes(), b"\xff"].concat()];
        command.arg(first).arg(last).arg(self.keys.leader()).arg(self.keys.cell_prefix());
        let answers: Vec<Fields> = self.server.get(DO_LIST, &command)?;
        let mut cells = Vec::with_capacity(answers.len());
        for answer in answers {
            let Some((Some(key), rest)) = answer.split_first() else { continue };
            let key = String::from_utf8_lossy(key).into_owned();
            if let Some(cell) = self.cell(DO_LIST, &key, rest)? {
                cells.push((key, cell));
            }
        }
        Ok(cells)
    }

    fn poll_interval(&self) -> Duration {
        POLL_INTERVAL
    }
}

/// The checksum of what the writer knows; the count in the version is the server's.
fn sum(key: &str, nonce: &str, claim: &Claim) -> String {
    let Claim { owner, epoch, ttl_ms, held, value } = claim;
    let numbers = format!("{epoch} {ttl_ms} {held}");
    let parts: [&[u8]; 5] = [key.as_bytes(), nonce.as_bytes(), owner.as_bytes(), numbers.as_bytes(), value];
    let sum = parts.iter().fold(0, |sum, part| {
        crc32c::crc32c_append(crc32c::crc32c_append(sum, &part.len().to_le_bytes()), part)
    });
    format!("{sum:08x}")
}

fn decode(key: &str, fields: &[Option<Vec<u8>>]) -> Option<Cell> {
    let fields: Vec<&[u8]> = fields.iter().map(Option::as_deref).collect::<Option<_>>()?;
    let [version, owner, epoch, ttl_ms, held, value, found] = fields[..] else { return None };
    let text = |bytes| std::str::from_utf8(bytes).ok();
    let held = match held {
        b"1" => true,
        b"0" => false,
        _ => return None,
    };
    let claim = Claim {
        owner: text(owner)?.to_owned(),
        epoch: text(epoch)?.parse().ok()?,
        ttl_ms: text(ttl_ms)?.parse().ok()?,
        held,
        value: value.to_vec(),
    };
    let version = text(version)?;
    let (_, nonce) = version.split_once('-')?;
    let whole = sum(key, nonce, &claim).as_bytes() == found;
    whole.then(|| Cell { version: Version(version.to_owned()), claim })
}
