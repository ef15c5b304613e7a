//! The contract of a register: keyed cells that change only when nobody else changed them meanwhile.

use crate::Error;

/// Names one writing of a cell. Two writings never have the same name, whatever they wrote.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version(pub String);

/// What is written in a cell. All but `value` is there for people and for the engine itself to read.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Claim {
    /// Who wrote it.
    pub owner: String,
    /// Counts acquisitions; the fencing token of whoever holds the cell.
    pub epoch: u64,
    /// Milliseconds that the claim holds without another writing.
    pub ttl_ms: u64,
    /// Whether it is claimed, or was given back.
    pub held: bool,
    pub value: Vec<u8>,
}

/// A cell as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    pub version: Version,
    pub claim: Claim,
}

/// What became of a writing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Set {
    /// It is durable, and this is its name.
    Done(Version),
    /// The cell was not as expected; nothing was written. This is what is there, unless nothing is.
    Conflict(Option<Cell>),
    /// It may or may not have been written: read, or try the same again.
    Unknown,
}

/// Keyed cells with compare-and-set. Shared between threads. A cell in which something is counted, as that of a leader, is never
/// removed: the count would begin anew.
pub trait Register: Send + Sync {
    /// # Errors
    /// Whatever keeps the engine from answering.
    fn read(&self, key: &str) -> Result<Option<Cell>, Error>;

    /// Writes a cell durably, if it still has the version that was seen; `None` if there was no cell.
    ///
    /// An engine with a clock of its own may also refuse to take a held cell from another owner before its
    /// time is over by that clock; it is a conflict then.
    ///
    /// # Errors
    /// Only when nothing was written: otherwise the answer is [`Set::Unknown`].
    fn compare_and_set(&self, key: &str, seen: Option<&Version>, claim: &Claim) -> Result<Set, Error>;

    /// Removes a cell if it still has the version that was seen; otherwise does nothing. Where an engine cannot do both at once, a
    /// writing in between may be lost: only for cells that are written again and again.
    ///
    /// # Errors
    /// Whatever keeps the engine from removing it.
    fn remove(&self, key: &str, seen: &Version) -> Result<(), Error>;

    /// All cells whose key begins with `prefix`, by key.
    ///
    /// # Errors
    /// Whatever keeps the engine from answering.
    fn list(&self, prefix: &str) -> Result<Vec<(String, Cell)>, Error>;

    /// How often it is worth looking whether a cell has changed.
    fn look_every(&self) -> std::time::Duration;
}
