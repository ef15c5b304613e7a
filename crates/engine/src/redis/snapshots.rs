//! Snapshots in Redis: the chunks of each in a hash of its own, and a manifest that makes it visible.
//!
//! ```text
//! manifest: format 1 | journal id 16 | position 8 | hash 16 | nonce 16 | chunks 4 | crc32c 4
//! chunk:    crc32c 4, of nonce, number and bytes | bytes
//! ```
//!
//! **Invariant:** chunks that belong to no manifest are named in the set of unfinished ones, so that they are found
//! and removed. What was removed is not written to again.

use std::sync::Arc;

use orchestrix_core::Position;

use super::keys::Keys;
use super::server::{Command, Script, Server, random};
use crate::fault::invalid;
use crate::{
    ChainHash, Error, JournalId, Link, SNAPSHOT_CHUNK_MAX, SnapshotReader, SnapshotWriter, Snapshots,
};

static CHUNK: Script = Script::new(include_str!("scripts/chunk.lua"));
static FINISH: Script = Script::new(include_str!("scripts/finish.lua"));
static FORGET: Script = Script::new(include_str!("scripts/forget.lua"));
static DROP: Script = Script::new(include_str!("scripts/drop.lua"));

const FORMAT: u8 = 1;
const MANIFEST: usize = 61;

const DO_LIST: &str = "list snapshots";
const DO_WRITE: &str = "write snapshot";
const DO_OPEN: &str = "open snapshot";
const DO_READ: &str = "read snapshot";
const DO_PRUNE: &str = "prune snapshots";

/// The snapshots of a journal.
#[derive(Clone, Debug)]
pub(super) struct RedisSnapshots {
    server: Arc<Server>,
    keys: Arc<Keys>,
    journal: JournalId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Manifest {
    link: Link,
    nonce: [u8; 16],
    chunks: u32,
}

/// What is listed at a position.
struct Listed {
    position: Position,
    bytes: Vec<u8>,
    manifest: Result<Manifest, String>,
}

impl RedisSnapshots {
    pub(super) fn new(server: Arc<Server>, keys: Arc<Keys>, journal: JournalId) -> Self {
        Self { server, keys, journal }
    }

    /// Positions of the snapshots whose manifest is good and whose chunks are all there, newest first.
    pub(super) fn whole(&self, doing: &str) -> Result<Vec<Position>, Error> {
        let mut whole = Vec::new();
        for listed in self.listed(doing)? {
            let Ok(manifest) = listed.manifest else { continue };
            let mut command = Command::new("HLEN");
            let chunks: u32 = self.server.get(doing, command.arg(self.name(&manifest)))?;
            if chunks == manifest.chunks {
                whole.push(listed.position);
            }
        }
        Ok(whole)
    }

    /// All manifests, newest first.
    fn listed(&self, doing: &str) -> Result<Vec<Listed>, Error> {
        let mut command = Command::new("HGETALL");
        let pairs: Vec<(String, Vec<u8>)> = self.server.get(doing, command.arg(self.keys.snapshots()))?;
        let mut listed = Vec::with_capacity(pairs.len());
        for (field, bytes) in pairs {
            let Ok(position) = field.parse().map(Position) else {
                let what = format!("{field} is no position");
                return Err(self.server.damaged(doing, &self.keys.snapshots(), what));
            };
            let manifest = decode(self.journal, position, &bytes);
            listed.push(Listed { position, bytes, manifest });
        }
        listed.sort_by_key(|one| std::cmp::Reverse(one.position));
        Ok(listed)
    }

    fn manifest(&self, doing: &str, at: Position) -> Result<Option<Result<Manifest, String>>, Error> {
        let mut command = Command::new("HGET");
        let bytes: Option<Vec<u8>> = self.server.get(doing, command.arg(self.keys.snapshots()).arg(at.0))?;
        Ok(bytes.map(|bytes| decode(self.journal, at, &bytes)))
    }

    fn name(&self, manifest: &Manifest) -> String {
        self.keys.snapshot(manifest.link.position, &JournalId(manifest.nonce).to_string())
    }
}

impl Snapshots for RedisSnapshots {
    fn list(&self) -> Result<Vec<Position>, Error> {
        Ok(self.listed(DO_LIST)?.into_iter().map(|listed| listed.position).collect())
    }

    fn create(&self, at: Link) -> Result<Box<dyn SnapshotWriter>, Error> {
        let manifest = Manifest { link: at, nonce: random()?, chunks: 0 };
        let name = self.name(&manifest);
        let mut command = Command::new("SADD");
        let () = self.server.get(DO_WRITE, command.arg(self.keys.unfinished()).arg(&name))?;
        Ok(Box::new(Writer { snapshots: self.clone(), name, manifest }))
    }

    fn open(&self, at: Position) -> Result<Box<dyn SnapshotReader>, Error> {
        let manifest = match self.manifest(DO_OPEN, at)? {
            None => return Err(invalid(DO_OPEN, format!("no snapshot at position {at}"))),
            Some(Err(what)) => {
                let place = format!("{}/{}", self.keys.snapshots(), at.0);
                return Err(self.server.damaged(DO_OPEN, &place, what));
            }
            Some(Ok(manifest)) => manifest,
        };
        Ok(Box::new(Reader { name: self.name(&manifest), snapshots: self.clone(), manifest, next: 0 }))
    }

    fn prune(&self) -> Result<(), Error> {
        // Damaged ones do not count, and go when they are older than two good ones.
        if let Some(second) = self.whole(DO_PRUNE)?.get(1) {
            for old in self.listed(DO_PRUNE)?.iter().filter(|listed| listed.position < *second) {
                let name = old.manifest.as_ref().map(|manifest| self.name(manifest)).unwrap_or_default();
                let mut command = DROP.with(&[self.keys.snapshots(), self.keys.unfinished()]);
                command.arg(old.position.0).arg(&old.bytes).arg(name).arg(second.0);
                let () = self.server.get(DO_PRUNE, &command)?;
            }
        }
        let mut command = Command::new("SMEMBERS");
        let unfinished: Vec<String> = self.server.get(DO_PRUNE, command.arg(self.keys.unfinished()))?;
        for name in unfinished {
            let () = self.server.get(DO_PRUNE, &FORGET.with(&[self.keys.unfinished(), name]))?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Writer {
    snapshots: RedisSnapshots,
    name: String,
    manifest: Manifest,
}

impl SnapshotWriter for Writer {
    fn chunk(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() > SNAPSHOT_CHUNK_MAX {
            let why = format!("chunk of {} bytes exceeds the limit of {SNAPSHOT_CHUNK_MAX}", bytes.len());
            return Err(invalid(DO_WRITE, why));
        }
        let RedisSnapshots { server, keys, .. } = &self.snapshots;
        let number = self.manifest.chunks;
        let stored = [&sum(&self.manifest, number, bytes).to_le_bytes(), bytes].concat();
        let mut command = CHUNK.with(&[keys.unfinished(), self.name.clone()]);
        let kept: u8 = server.get(DO_WRITE, command.arg(number).arg(stored))?;
        if kept == 0 {
            return Err(invalid(DO_WRITE, format!("{} was pruned before it was finished", self.name)));
        }
        self.manifest.chunks += 1;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        let RedisSnapshots { server, keys, journal } = &self.snapshots;
        let at = self.manifest.link.position;
        let replaced = match self.snapshots.manifest(DO_WRITE, at)? {
            Some(Ok(there)) => self.snapshots.name(&there),
            Some(Err(_)) | None => String::new(),
        };
        let mut command =
            FINISH.with(&[keys.unfinished(), self.name.clone(), keys.snapshots(), keys.journal()]);
        command.arg(at.0).arg(encode(*journal, &self.manifest)).arg(self.manifest.chunks).arg(replaced);
        command.arg(self.manifest.link.hash.to_string());
        match server.get(DO_WRITE, &command)? {
            0_u8 => Err(invalid(DO_WRITE, format!("{} was pruned before it was finished", self.name))),
            1 => Ok(()),
            _ => Err(invalid(DO_WRITE, format!("the journal has no batch that ends at {at} like this one"))),
        }
    }
}

#[derive(Debug)]
struct Reader {
    snapshots: RedisSnapshots,
    name: String,
    manifest: Manifest,
    next: u32,
}

impl SnapshotReader for Reader {
    fn link(&self) -> Link {
        self.manifest.link
    }

    fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        if self.next == self.manifest.chunks {
            return Ok(None);
        }
        let server = &self.snapshots.server;
        let mut command = Command::new("HGET");
        let stored: Option<Vec<u8>> = server.get(DO_READ, command.arg(&self.name).arg(self.next))?;
        let place = format!("{}/{}", self.name, self.next);
        let stored = stored.ok_or_else(|| server.damaged(DO_READ, &place, "it is not there"))?;
        let chunk = match stored.split_first_chunk::<4>() {
            Some((found, bytes)) if u32::from_le_bytes(*found) == sum(&self.manifest, self.next, bytes) => {
                bytes.to_vec()
            }
            Some(_) | None => return Err(server.damaged(DO_READ, &place, "checksum mismatch")),
        };
        self.next += 1;
        Ok(Some(chunk))
    }
}

fn sum(manifest: &Manifest, number: u32, bytes: &[u8]) -> u32 {
    let start = crc32c::crc32c(&manifest.nonce);
    crc32c::crc32c_append(crc32c::crc32c_append(start, &number.to_le_bytes()), bytes)
}

fn encode(journal: JournalId, manifest: &Manifest) -> Vec<u8> {
    let mut bytes = vec![FORMAT];
    bytes.extend(journal.0);
    bytes.extend(manifest.link.position.0.to_le_bytes());
    bytes.extend(manifest.link.hash.0);
    bytes.extend(manifest.nonce);
    bytes.extend(manifest.chunks.to_le_bytes());
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

fn decode(journal: JournalId, at: Position, bytes: &[u8]) -> Result<Manifest, String> {
    if let Some(format) = bytes.first().filter(|format| **format != FORMAT) {
        return Err(format!("format {format} is newer than this version; use a newer version"));
    }
    let whole = bytes
        .split_last_chunk::<4>()
        .filter(|(body, sum)| body.len() == MANIFEST && crc32c::crc32c(body) == u32::from_le_bytes(**sum));
    let Some((body, _)) = whole else { return Err("checksum mismatch".to_owned()) };
    let mut at_byte = 1;
    let mut take = |length: usize| {
        at_byte += length;
        &body[at_byte - length..at_byte]
    };
    let found = JournalId(array(take(16)));
    let position = Position(u64::from_le_bytes(array(take(8))));
    let link = Link { position, hash: ChainHash(array(take(16))) };
    let manifest = Manifest { link, nonce: array(take(16)), chunks: u32::from_le_bytes(array(take(4))) };
    if found != journal {
        return Err(format!("it belongs to journal {found}"));
    }
    if position != at {
        return Err(format!("it is the manifest of {position}"));
    }
    Ok(manifest)
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("the slice has exactly N bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cut_and_every_flipped_bit_of_a_manifest_is_noticed() {
        let link = Link { position: Position(7), hash: ChainHash([3; 16]) };
        let manifest = Manifest { link, nonce: [5; 16], chunks: 9 };
        let journal = JournalId([1; 16]);
        let bytes = encode(journal, &manifest);
        assert_eq!(decode(journal, Position(7), &bytes), Ok(manifest));
        decode(JournalId([2; 16]), Position(7), &bytes).unwrap_err();
        decode(journal, Position(8), &bytes).unwrap_err();
        for end in 0..bytes.len() {
            decode(journal, Position(7), &bytes[..end]).unwrap_err();
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            decode(journal, Position(7), &flipped).unwrap_err();
        }
    }
}
