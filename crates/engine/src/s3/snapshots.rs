//! Snapshots: chunks first, each an object, and a manifest that makes them visible last.
//!
//! **Invariant:** the chunks of a manifest that is one of the two newest whole ones are never deleted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use orchestrix_core::Position;

use super::history::History;
use super::keys::{Nonce, last_part, number};
use super::manifest::Manifest;
use super::store::{Failure, Listed, Store};
use crate::fault::invalid;
use crate::{
    Clock as _, Error, Link, SNAPSHOT_CHUNK_MAX, SnapshotReader, SnapshotWriter, Snapshots, SystemClock,
};

/// Chunks without a manifest may belong to a writer on another node; after a day they do not.
const UNFINISHED_FOR: Duration = Duration::from_secs(86_400);

const DO_LIST: &str = "list snapshots";
const DO_WRITE: &str = "write snapshot";
const DO_OPEN: &str = "open snapshot";
const DO_READ: &str = "read snapshot";
const DO_PRUNE: &str = "prune snapshots";

/// The snapshots of a journal.
#[derive(Clone, Debug)]
pub(super) struct S3Snapshots {
    history: History,
}

impl S3Snapshots {
    pub(super) fn new(history: &History) -> Self {
        Self { history: history.clone() }
    }

    fn store(&self) -> &Arc<Store> {
        &self.history.store
    }

    /// The snapshots whose manifest is good and whose chunks are all there, newest first; two at most.
    pub(super) fn whole(&self, doing: &str) -> Result<Vec<Link>, Error> {
        let mut whole = Vec::new();
        for position in self.listed(doing)? {
            if let Some(Ok(manifest)) = self.manifest(doing, position)?
                && self.chunks(doing, &manifest)? == manifest.chunks as usize
            {
                whole.push(manifest.link);
            }
            if whole.len() == 2 {
                break;
            }
        }
        Ok(whole)
    }

    /// The positions of all manifests, newest first.
    fn listed(&self, doing: &str) -> Result<Vec<Position>, Error> {
        let listed = self.store().list(&self.history.keys.snapshots(), None, usize::MAX);
        let listed = listed.map_err(|failure| self.store().error(doing, failure))?;
        let numbers = listed.iter().rev().filter_map(|listed| number(&listed.name));
        Ok(numbers.map(Position).collect())
    }

    fn manifest(&self, doing: &str, at: Position) -> Result<Option<Result<Manifest, String>>, Error> {
        let found = self.store().get(&self.history.keys.snapshot(at));
        let found = found.map_err(|failure| self.store().error(doing, failure))?;
        Ok(found.map(|object| Manifest::decode(self.history.id, at, &object.bytes)))
    }

    /// How many chunks are there.
    fn chunks(&self, doing: &str, manifest: &Manifest) -> Result<usize, Error> {
        let listed = self.store().list(&self.folder(manifest), None, usize::MAX);
        Ok(listed.map_err(|failure| self.store().error(doing, failure))?.len())
    }

    fn folder(&self, manifest: &Manifest) -> String {
        self.history.keys.chunks_of(manifest.link.position, &manifest.nonce)
    }

    fn chunk_name(&self, manifest: &Manifest, number: u32) -> String {
        format!("{}/{number:08}", self.folder(manifest))
    }

    /// The chunks that no manifest names and no writer uses.
    fn abandoned(&self, oldest_kept: Position) -> Result<Vec<String>, Error> {
        let mut folders: BTreeMap<String, Vec<Listed>> = BTreeMap::new();
        let listed = self.store().each(&self.history.keys.chunks(), None, |listed| {
            let folder = listed.name.rsplit_once('/').map_or(String::new(), |(folder, _)| folder.to_owned());
            folders.entry(folder).or_default().push(listed);
        });
        listed.map_err(|failure| self.store().error(DO_PRUNE, failure))?;
        let before = UNIX_EPOCH + SystemClock.wall().saturating_sub(UNFINISHED_FOR);
        let mut abandoned = Vec::new();
        for (folder, chunks) in folders {
            let named = last_part(&folder).split_once('-');
            let Some((Ok(at), nonce)) = named.map(|(at, nonce)| (at.parse().map(Position), nonce)) else {
                continue;
            };
            let in_use = match self.manifest(DO_PRUNE, at)? {
                Some(Ok(manifest)) => manifest.nonce.text() == nonce,
                // The chunks of a damaged manifest are unknown.
                Some(Err(_)) => true,
                None => false,
            };
            let old = at < oldest_kept || chunks.iter().all(|chunk| chunk.modified < before);
            if old && !in_use {
                abandoned.extend(chunks.into_iter().map(|chunk| chunk.name));
            }
        }
        Ok(abandoned)
    }
}

impl Snapshots for S3Snapshots {
    fn list(&self) -> Result<Vec<Position>, Error> {
        self.listed(DO_LIST)
    }

    fn create(&self, at: Link) -> Result<Box<dyn SnapshotWriter>, Error> {
        let manifest = Manifest { link: at, nonce: Nonce::draw()?, chunks: 0 };
        Ok(Box::new(Writer { snapshots: self.clone(), manifest }))
    }

    fn open(&self, at: Position) -> Result<Box<dyn SnapshotReader>, Error> {
        let manifest = match self.manifest(DO_OPEN, at)? {
            None => return Err(invalid(DO_OPEN, format!("no snapshot at position {at}"))),
            Some(Err(what)) => {
                return Err(self.store().damaged(DO_OPEN, &self.history.keys.snapshot(at), what));
            }
            Some(Ok(manifest)) => manifest,
        };
        Ok(Box::new(Reader { snapshots: self.clone(), manifest, next: 0 }))
    }

    fn prune(&self) -> Result<(), Error> {
        let failed = |failure: Failure| self.store().error(DO_PRUNE, failure);
        // Damaged ones do not count, and go when they are older than two good ones.
        let kept = self.whole(DO_PRUNE)?.get(1).map(|older| older.position).unwrap_or_default();
        let old = self.listed(DO_PRUNE)?.into_iter().filter(|position| *position < kept);
        let names: Vec<String> = old.map(|position| self.history.keys.snapshot(position)).collect();
        self.store().delete(&names).map_err(failed)?;
        let abandoned = self.abandoned(kept)?;
        self.store().delete(&abandoned).map_err(failed)
    }
}

#[derive(Debug)]
struct Writer {
    snapshots: S3Snapshots,
    manifest: Manifest,
}

impl SnapshotWriter for Writer {
    fn chunk(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() > SNAPSHOT_CHUNK_MAX {
            let why = format!("chunk of {} bytes exceeds the limit of {SNAPSHOT_CHUNK_MAX}", bytes.len());
            return Err(invalid(DO_WRITE, why));
        }
        let number = self.manifest.chunks;
        let name = self.snapshots.chunk_name(&self.manifest, number);
        let store = self.snapshots.store();
        store
            .put(&name, &self.manifest.wrap(number, bytes))
            .map_err(|failure| store.error(DO_WRITE, failure))?;
        self.manifest.chunks += 1;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        let Self { snapshots, manifest } = *self;
        if snapshots.chunks(DO_WRITE, &manifest)? != manifest.chunks as usize {
            return Err(invalid(DO_WRITE, "it was pruned before it was finished"));
        }
        let name = snapshots.history.keys.snapshot(manifest.link.position);
        let bytes = manifest.encode(snapshots.history.id);
        let written = snapshots.store().put(&name, &bytes);
        written.map(|_| ()).map_err(|failure| snapshots.store().error(DO_WRITE, failure))
    }
}

#[derive(Debug)]
struct Reader {
    snapshots: S3Snapshots,
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
        let store = self.snapshots.store();
        let name = self.snapshots.chunk_name(&self.manifest, self.next);
        let stored = store.get(&name).map_err(|failure| store.error(DO_READ, failure))?;
        let stored = stored.ok_or_else(|| store.damaged(DO_READ, &name, "it is not there"))?;
        let chunk = self.manifest.unwrap_chunk(self.next, &stored.bytes);
        let chunk = chunk.ok_or_else(|| store.damaged(DO_READ, &name, "checksum mismatch"))?;
        self.next += 1;
        Ok(Some(chunk))
    }
}
