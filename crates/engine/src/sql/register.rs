//! The register: the table `helix_locks`, one row per cell. The leader's row is never deleted, so an epoch never begins
//! anew.
//!
//! **Invariant:** a cell changes by one statement that names the version it replaces. A held cell goes to another
//! owner only when its time is over by the clock of the database, unless the one who wrote it passes it on, or that clock
//! was set back: then it says nothing about the cell.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use blake3::Hasher;

use crate::fault::invalid;
use crate::{Cell, Claim, Error, Register, Set, Version};

use super::fault::Failure;
use super::server::{Column, Row, Value};
use super::session::Session;

/// The key of the leader's cell, and the name that its row has in the domain `default`.
const LEADER: &str = "leader";
const LEADER_ROW: &str = "coordinator_lock";

/// The longest key of a row, in characters, and the longest name of an owner.
const TEXT_MAX: usize = 255;

/// The longest claim: a hundred years. A time further away may not fit the column.
const TTL_MS_MAX: u64 = 100 * 365 * 86_400_000;

/// The cells of a domain.
pub(super) struct SqlRegister {
    session: Session,
    /// For listings, which may take longer than a renewal can wait.
    listing: Session,
    /// The last write of this handle in each cell. Its writer may transfer it before its time is over.
    written: Mutex<BTreeMap<String, i64>>,
}

impl SqlRegister {
    pub(super) fn new(session: Session) -> Self {
        let listing = Session::new(session.home());
        Self { session, listing, written: Mutex::default() }
    }

    fn row_key(&self, key: &str) -> String {
        match (self.session.home().domain.as_str(), key) {
            ("default", LEADER) => LEADER_ROW.to_owned(),
            (domain, key) => format!("{domain}/{key}"),
        }
    }

    fn key(&self, row_key: &str) -> Option<String> {
        let domain = &self.session.home().domain;
        if row_key == LEADER_ROW {
            return (domain == "default").then(|| LEADER.to_owned());
        }
        row_key.strip_prefix(domain.as_str())?.strip_prefix('/').map(str::to_owned)
    }

    fn find(&self, row_key: &str) -> Result<Option<Cell>, Failure> {
        let sql = format!("{} WHERE lock_key = ?", self.session.home().server.statements().cells);
        let rows = self.session.rows(&sql, CELL, &[Value::Text(row_key)])?;
        Ok(rows.into_iter().next().map(|row| cell(row).1))
    }

    /// One statement: written if and only if the cell is as it was seen, and may be taken.
    fn write(&self, row_key: &str, seen: Option<i64>, version: i64, claim: &Claim) -> Result<u64, Failure> {
        let statements = self.session.home().server.statements();
        let mut values = vec![
            Value::Text(&claim.owner),
            Value::Int(claim.epoch.cast_signed()),
            Value::Int(version),
            Value::Bytes(&claim.value),
            Value::Int(i64::from(claim.held)),
            Value::Int((claim.ttl_ms * 1000).cast_signed()),
            Value::Text(row_key),
        ];
        let Some(seen) = seen else { return self.session.execute(statements.claim_first, &values) };
        let own = self.written().get(row_key) == Some(&seen);
        values.extend([Value::Int(seen), Value::Int(i64::from(own)), Value::Text(&claim.owner)]);
        self.session.execute(statements.claim_next, &values)
    }

    fn written(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, i64>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn done(&self, row_key: &str, version: i64) -> Set {
        self.written().insert(row_key.to_owned(), version);
        Set::Done(name(version))
    }
}

impl Register for SqlRegister {
    fn read(&self, key: &str) -> Result<Option<Cell>, Error> {
        self.find(&self.row_key(key)).map_err(|failure| failure.error(self.session.home(), "read a cell"))
    }

    fn compare_and_set(&self, key: &str, seen: Option<&Version>, claim: &Claim) -> Result<Set, Error> {
        let doing = "write a cell";
        let row_key = self.row_key(key);
        check(&row_key, claim).map_err(|why| invalid(doing, why))?;
        let number = seen.map(|version| version.0.parse::<i64>());
        let version = version(&row_key, seen, claim);
        let written = match number {
            None => self.write(&row_key, None, version, claim),
            Some(Ok(seen)) => self.write(&row_key, Some(seen), version, claim),
            // None of ours, so the cell cannot have it.
            Some(Err(_)) => Ok(0),
        };
        let home = self.session.home();
        if matches!(written, Ok(_) | Err(Failure::Duplicate)) {
            home.settled(doing);
        }
        match written {
            Ok(0) | Err(Failure::Duplicate) => match self.find(&row_key) {
                // The same was sent before, and its answer was lost.
                Ok(Some(cell)) if cell.version == name(version) => Ok(self.done(&row_key, version)),
                Ok(there) => Ok(Set::Conflict(there)),
                Err(Failure::Refused(why)) => Err(Failure::Refused(why).error(home, doing)),
                Err(_) => Ok(Set::Unknown),
            },
            Ok(_) => Ok(self.done(&row_key, version)),
            Err(Failure::Refused(why)) => Err(Failure::Refused(why).error(home, doing)),
            Err(Failure::Busy(why) | Failure::Lost(why)) => {
                home.unknown(doing, &why);
                Ok(Set::Unknown)
            }
        }
    }

    fn remove(&self, key: &str, seen: &Version) -> Result<(), Error> {
        // None of ours, so the cell cannot have it.
        let Ok(seen) = seen.0.parse::<i64>() else { return Ok(()) };
        let (sql, row_key) =
            ("DELETE FROM helix_locks WHERE lock_key = ? AND version = ?", self.row_key(key));
        let removed = self.listing.execute(sql, &[Value::Text(&row_key), Value::Int(seen)]);
        removed.map(drop).map_err(|failure| failure.error(self.session.home(), "remove a cell"))
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, Cell)>, Error> {
        let home = self.session.home();
        let sql =
            format!("{} WHERE lock_key LIKE ? ESCAPE '!' OR lock_key = ?", home.server.statements().cells);
        let like = format!("{}%", escape(&format!("{}/{prefix}", home.domain)));
        let rows = self.listing.rows(&sql, CELL, &[Value::Text(&like), Value::Text(LEADER_ROW)]);
        let rows = rows.map_err(|failure| failure.error(home, "list cells"))?;
        let cells =
            rows.into_iter().map(cell).filter_map(|(row_key, cell)| Some((self.key(&row_key)?, cell)));
        let found: BTreeMap<String, Cell> = cells.filter(|(key, _)| key.starts_with(prefix)).collect();
        Ok(found.into_iter().collect())
    }

    fn poll_interval(&self) -> Duration {
        Duration::from_millis(50)
    }
}

const CELL: &[Column] =
    &[Column::Text, Column::Text, Column::Int, Column::Int, Column::Bytes, Column::Int, Column::Int];

fn cell(mut row: Row) -> (String, Cell) {
    let (key, owner, epoch) = (row.text(), row.text(), row.int().cast_unsigned());
    let (version, value, held) = (name(row.int()), row.bytes(), row.int() == 1);
    let ttl_ms = u64::try_from(row.int()).unwrap_or(0) / 1000;
    (key, Cell { version, claim: Claim { owner, epoch, ttl_ms, held, value } })
}

fn name(version: i64) -> Version {
    Version(version.to_string())
}

/// Names the writing of a claim over a version of a cell. The same again has the same name, so a lost answer is found
/// again; and no other writing has it, even on a server that was set back to an older state.
fn version(row_key: &str, seen: Option<&Version>, claim: &Claim) -> i64 {
    let mut hasher = Hasher::new();
    let seen = seen.map_or("", |version| version.0.as_str());
    for part in [row_key.as_bytes(), seen.as_bytes(), claim.owner.as_bytes(), &claim.value] {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    hasher
        .update(&claim.epoch.to_le_bytes())
        .update(&claim.ttl_ms.to_le_bytes())
        .update(&[claim.held.into()]);
    let mut eight = [0; 8];
    eight.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    i64::from_le_bytes(eight) & i64::MAX
}

fn check(row_key: &str, claim: &Claim) -> Result<(), String> {
    for text in [row_key, &claim.owner] {
        // A server may take a text and the same with spaces behind it for one.
        if text.chars().count() > TEXT_MAX || text.ends_with(' ') || text.contains('\0') {
            return Err(format!(
                "{text:?} is no key or owner: at most {TEXT_MAX} characters, no space at the end"
            ));
        }
    }
    if claim.ttl_ms > TTL_MS_MAX || i64::try_from(claim.epoch).is_err() {
        return Err(format!("a claim of {} ms in epoch {} is out of range", claim.ttl_ms, claim.epoch));
    }
    Ok(())
}

fn escape(text: &str) -> String {
    let special = |letter: char| ['!', '%', '_'].contains(&letter);
    text.chars().flat_map(|letter| special(letter).then_some('!').into_iter().chain([letter])).collect()
}
