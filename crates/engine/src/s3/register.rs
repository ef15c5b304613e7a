//! The register: an object for each cell, written under the condition that it did not change meanwhile.
//!
//! A version is the ETag of the object. A writing that is tried again keeps its nonce, so that it is recognised where
//! it was written before and the answer was lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::cell::Written;
use super::keys::{Keys, Nonce, decode, last_part};
use super::store::{Failure, Object, SharedStore};
use crate::{Cell, Claim, Error, Register, Set, Version};

/// Every look is a request that is paid for. Bounds how late a candidate finds that a leader has gone.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How often a writing is sent when the store says that it wrote nothing, but may the next time.
const TRIES: usize = 3;

const DO_READ: &str = "read a cell";
const DO_SET: &str = "write a cell";
const DO_LIST: &str = "list cells";
const DO_REMOVE: &str = "remove a cell";

/// A handle of the register.
#[derive(Debug)]
pub(super) struct S3Register {
    store: SharedStore,
    keys: Arc<Keys>,
    /// By key, the last writing whose outcome is not known.
    unresolved: Mutex<BTreeMap<String, Writing>>,
}

#[derive(Clone, Debug)]
struct Writing {
    seen: Option<Version>,
    written: Written,
}

enum Repeated {
    Yes,
    No,
}

impl S3Register {
    pub(super) fn new(store: SharedStore, keys: Arc<Keys>) -> Self {
        Self { store, keys, unresolved: Mutex::default() }
    }

    /// The writing that was tried before and is tried again, or a new one.
    fn writing(
        &self,
        key: &str,
        seen: Option<&Version>,
        claim: &Claim,
    ) -> Result<(Writing, Repeated), Error> {
        let before = self.unresolved.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        match before.filter(|before| before.seen.as_ref() == seen && before.written.claim == *claim) {
            Some(before) => Ok((before, Repeated::Yes)),
            None => {
                let written = Written { nonce: Nonce::draw()?, claim: claim.clone() };
                Ok((Writing { seen: seen.cloned(), written }, Repeated::No))
            }
        }
    }

    fn keep(&self, key: &str, writing: Writing, why: &Failure) -> Set {
        self.store.unknown(DO_SET, &format!("{why:?}"));
        self.unresolved.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), writing);
        Set::Unknown
    }

    fn send(&self, name: &str, seen: Option<&Version>, bytes: &[u8]) -> Result<String, Failure> {
        match seen {
            None => self.store.create(name, bytes),
            Some(version) if is_tag(&version.0) => self.store.replace(name, &version.0, bytes),
            // None of ours, so the cell cannot have it.
            Some(_) => Err(Failure::Unmet),
        }
    }

    fn decode(&self, doing: &str, key: &str, name: &str, object: Object) -> Result<(Nonce, Cell), Error> {
        let written =
            Written::decode(key, &object.bytes).map_err(|what| self.store.damaged(doing, name, what))?;
        Ok((written.nonce, Cell { version: Version(object.etag), claim: written.claim }))
    }
}

impl Register for S3Register {
    fn read(&self, key: &str) -> Result<Option<Cell>, Error> {
        let name = self.keys.cell(key)?;
        let found = self.store.get(&name).map_err(|failure| self.store.error(DO_READ, failure))?;
        found.map(|object| Ok(self.decode(DO_READ, key, &name, object)?.1)).transpose()
    }

    fn compare_and_set(&self, key: &str, seen: Option<&Version>, claim: &Claim) -> Result<Set, Error> {
        let name = self.keys.cell(key)?;
        let (writing, repeated) = self.writing(key, seen, claim)?;
        let bytes = writing.written.encode(key);
        for _ in 0..TRIES {
            match (self.send(&name, seen, &bytes), &repeated) {
                (Ok(etag), _) => {
                    self.store.settled(DO_SET);
                    return Ok(Set::Done(Version(etag)));
                }
                (Err(Failure::Unmet | Failure::Contested), _) => {}
                (Err(why @ Failure::Lost(_)), _) => return Ok(self.keep(key, writing, &why)),
                // That nothing was written now says nothing about before.
                (Err(why @ (Failure::Unsent(_) | Failure::Refused(_))), Repeated::Yes) => {
                    return Ok(self.keep(key, writing, &why));
                }
                (Err(failure @ (Failure::Unsent(_) | Failure::Refused(_))), Repeated::No) => {
                    return Err(self.store.error(DO_SET, failure));
                }
            }
            // What is there now decides.
            let there = match self.store.get(&name) {
                Ok(there) => there,
                Err(why) => return Ok(self.keep(key, writing, &why)),
            };
            let there = there.map(|object| self.decode(DO_SET, key, &name, object)).transpose()?;
            match there {
                // The same was sent before, and its answer was lost.
                Some((nonce, cell)) if nonce == writing.written.nonce => return Ok(Set::Done(cell.version)),
                // Unchanged: the other writer has written nothing.
                there if there.as_ref().map(|(_, cell)| &cell.version) == seen => {}
                there => {
                    self.store.settled(DO_SET);
                    return Ok(Set::Conflict(there.map(|(_, cell)| cell)));
                }
            }
        }
        Ok(self.keep(key, writing, &Failure::Contested))
    }

    /// No store has to delete under a condition, so it is looked at first. Who writes in between writes anew.
    fn remove(&self, key: &str, seen: &Version) -> Result<(), Error> {
        let name = self.keys.cell(key)?;
        let failed = |failure: Failure| self.store.error(DO_REMOVE, failure);
        match self.store.get(&name).map_err(failed)? {
            Some(there) if there.etag == seen.0 => self.store.delete(&[name]).map_err(failed),
            Some(_) | None => Ok(()),
        }
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, Cell)>, Error> {
        let failed = |failure: Failure| self.store.error(DO_LIST, failure);
        let listed = self.store.list(&self.keys.cells(), None, usize::MAX).map_err(failed)?;
        let keys = listed.iter().filter_map(|listed| Some((decode(last_part(&listed.name))?, &listed.name)));
        let keys: BTreeMap<String, &String> = keys.filter(|(key, _)| key.starts_with(prefix)).collect();
        let names: Vec<String> = keys.values().map(|name| (*name).clone()).collect();
        let objects = self.store.get_all(&names).map_err(failed)?;
        let mut cells = Vec::with_capacity(objects.len());
        for ((key, name), object) in keys.into_iter().zip(objects) {
            if let Some(object) = object {
                let (_, cell) = self.decode(DO_LIST, &key, name, object)?;
                cells.push((key, cell));
            }
        }
        Ok(cells)
    }

    fn poll_interval(&self) -> Duration {
        POLL_INTERVAL
    }
}

/// Whether a version can be sent as a tag.
fn is_tag(version: &str) -> bool {
    !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_graphic())
}
