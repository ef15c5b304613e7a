//! The only door to a disk: everything the engine does with files goes through [`Disk`].
//!
//! A name is the name of a file inside one flat folder; there are no paths. So the same journal runs on
//! [`RealDisk`] and on [`sim::SimDisk`], where crashes and faults are values that a test chooses.
//!
//! **Invariant:** nothing is durable before [`DiskFile::sync_data`] (bytes) or [`Disk::sync_dir`] (names)
//! answered without an error.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

mod real;
pub mod sim;

pub use real::RealDisk;

/// One folder of files.
pub trait Disk: Send + Sync + fmt::Debug {
    /// Where a file is, for messages to people.
    fn path(&self, name: &str) -> PathBuf;

    /// Opens a file that exists.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`], and whatever the disk says.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Creates a file, or empties the one that has this name.
    ///
    /// # Errors
    /// Whatever the disk says.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Gives a file another name, in place of the file that had it.
    ///
    /// # Errors
    /// Whatever the disk says.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// # Errors
    /// [`io::ErrorKind::NotFound`], and whatever the disk says.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// The names of all files, sorted.
    ///
    /// # Errors
    /// Whatever the disk says.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes all that was created, renamed and removed durable.
    ///
    /// # Errors
    /// Whatever the disk says; what is durable is then unknown.
    fn sync_dir(&self) -> io::Result<()>;

    /// How much this user may still write.
    ///
    /// # Errors
    /// Whatever the disk says.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Takes the lock of this name if nobody has it; it ends with the process at the latest.
    ///
    /// # Errors
    /// Whatever the disk says. That somebody has it is not an error.
    fn lock(&self, name: &str) -> io::Result<Lock>;

    /// Who has the lock of this name, without taking it.
    ///
    /// # Errors
    /// Whatever the disk says.
    fn holder(&self, name: &str) -> io::Result<Option<String>>;

    /// Fills `bytes` with randomness; on a simulated disk it follows from the seed.
    ///
    /// # Errors
    /// When the machine has none.
    fn random(&self, bytes: &mut [u8]) -> io::Result<()>;
}

/// One open file.
pub trait DiskFile: Send + Sync + fmt::Debug {
    /// # Errors
    /// Whatever the disk says.
    fn len(&self) -> io::Result<u64>;

    /// # Errors
    /// Whatever the disk says.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads until `bytes` is full or the file ends, and answers how many bytes it read.
    ///
    /// # Errors
    /// Whatever the disk says.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `bytes`, making the file longer if need be.
    ///
    /// # Errors
    /// Whatever the disk says; any part may have been written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// # Errors
    /// Whatever the disk says.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes all bytes written so far durable, and the length needed to read them.
    ///
    /// # Errors
    /// Whatever the disk says. What is durable is then unknown for ever: a second call proves nothing.
    fn sync_data(&self) -> io::Result<()>;
}

/// A lock that is held until it is dropped.
pub trait DiskLock: Send + Sync + fmt::Debug {}

/// What became of asking for a lock.
#[derive(Debug)]
pub enum Lock {
    Held(Box<dyn DiskLock>),
    Busy {
        /// Who has it, in words.
        holder: String,
    },
}

/// Whether an error means that there is no room, as opposed to trouble with the disk.
#[must_use]
pub fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}
