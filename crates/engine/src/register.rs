//! The contract of a register: keyed cells with compare-and-set.

use crate::Error;

/// Names one write of a cell. No two writes have the same version, even if they wrote the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version(pub String);

/// The content of a cell. All fields but `value` are readable by operators and by the engine itself.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Claim {
    /// The writer.
    pub owner: String,
    /// Counts acquisitions; the fencing token of the cell's holder.
    pub epoch: u64,
    /// How long the claim holds without another write, in milliseconds.
    pub ttl_ms: u64,
    /// Whether it is claimed; `false` once released.
    pub held: bool,
    pub value: Vec<u8>,
}

/// A cell as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    pub version: Version,
    pub claim: Claim,
}

/// The result of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Set {
    /// The write is durable and has this version.
    Done(Version),
    /// The cell had another version; nothing was written. Carries the current cell, if there is one.
    Conflict(Option<Cell>),
    /// The write may or may not have happened: read, or try the same again.
    Unknown,
}

/// Keyed cells with compare-and-set. Shared between threads. A cell that counts something, such as the leader's epoch, is never
/// removed: the count would start again.
pub trait Register: Send + Sync {
    /// # Errors
    /// When the engine cannot answer.
    fn read(&self, key: &str) -> Result<Option<Cell>, Error>;

    /// Writes a cell durably if it still has version `seen`; `None` if there must be no cell.
    ///
    /// An engine with a clock of its own may also refuse to take a held cell from another owner before its TTL is over
    /// by that clock; the result is a conflict then.
    ///
    /// # Errors
    /// Only when nothing was written: otherwise the result is [`Set::Unknown`].
    fn compare_and_set(&self, key: &str, seen: Option<&Version>, claim: &Claim) -> Result<Set, Error>;

    /// Removes a cell if it still has version `seen`; otherwise does nothing. Where an engine cannot check and remove atomically, a
    /// write in between may be lost: use it only for cells that are written again and again.
    ///
    /// # Errors
    /// When the engine cannot remove it.
    fn remove(&self, key: &str, seen: &Version) -> Result<(), Error>;

    /// All cells whose key begins with `prefix`, by key.
    ///
    /// # Errors
    /// When the engine cannot answer.
    fn list(&self, prefix: &str) -> Result<Vec<(String, Cell)>, Error>;

    /// How often to poll for a change of a cell.
    fn poll_interval(&self) -> std::time::Duration;
}
