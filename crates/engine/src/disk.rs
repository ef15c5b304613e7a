//! The only access to a disk: everything the engine does with files goes through [`Disk`].
//!
//! A name is the name of a file in one flat folder; there are no paths. So the same journal runs on [`RealDisk`] and on
//! [`sim::SimDisk`], where a test chooses crashes and faults.
//!
//! **Invariant:** nothing is durable before [`DiskFile::sync_data`] (bytes) or [`Disk::sync_dir`] (names) returned
//! without an error.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

mod real;
pub mod sim;

pub use real::RealDisk;

/// One folder of files.
pub trait Disk: Send + Sync + fmt::Debug {
    /// The path of a file, for messages.
    fn path(&self, name: &str) -> PathBuf;

    /// Opens a file that exists.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`], and other I/O errors.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Creates a file, or truncates the one with this name.
    ///
    /// # Errors
    /// An I/O error.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Renames a file and replaces any file of the new name.
    ///
    /// # Errors
    /// An I/O error.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// # Errors
    /// [`io::ErrorKind::NotFound`], and other I/O errors.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// The names of all files, sorted.
    ///
    /// # Errors
    /// An I/O error.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes all creations, renames and removals durable.
    ///
    /// # Errors
    /// An I/O error; what is durable is then unknown.
    fn sync_dir(&self) -> io::Result<()>;

    /// Bytes that this user may still write.
    ///
    /// # Errors
    /// An I/O error.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Takes the lock of this name if it is free; it is released when the process ends at the latest.
    ///
    /// # Errors
    /// An I/O error. That another process holds it is not an error.
    fn lock(&self, name: &str) -> io::Result<Lock>;

    /// The holder of the lock of this name, without taking it.
    ///
    /// # Errors
    /// An I/O error.
    fn holder(&self, name: &str) -> io::Result<Option<String>>;

    /// Fills `bytes` with random bytes; a simulated disk derives them from its seed.
    ///
    /// # Errors
    /// When the machine has no source of randomness.
    fn random(&self, bytes: &mut [u8]) -> io::Result<()>;
}

/// One open file.
pub trait DiskFile: Send + Sync + fmt::Debug {
    /// # Errors
    /// An I/O error.
    fn len(&self) -> io::Result<u64>;

    /// # Errors
    /// An I/O error.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads until `bytes` is full or the file ends; returns the number of bytes read.
    ///
    /// # Errors
    /// An I/O error.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `bytes`, extending the file if need be.
    ///
    /// # Errors
    /// An I/O error; any part may have been written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// # Errors
    /// An I/O error.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes all bytes written so far durable, and the length needed to read them.
    ///
    /// # Errors
    /// An I/O error. What is durable is then unknown for ever: a second call proves nothing.
    fn sync_data(&self) -> io::Result<()>;
}

/// A lock that is held until it is dropped.
pub trait DiskLock: Send + Sync + fmt::Debug {}

/// The result of taking a lock.
#[derive(Debug)]
pub enum Lock {
    Held(Box<dyn DiskLock>),
    Busy {
        /// Describes the holder.
        holder: String,
    },
}

/// Whether an error means that there is no space left.
#[must_use]
pub fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}
