//! What this machine costs without any server: one synced write, one round trip. No server can be faster.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::payload::PAYLOAD_BYTES;

const WRITE_BYTES: usize = 4 << 10;
/// Writes until the file begins again.
const WRITES: u64 = 1_024;
/// No storage that survives a power cut is faster than this.
const SYNC_MIN: Duration = Duration::from_micros(8);

/// A file of zeros that is written again in place, as a preallocated journal is.
#[derive(Debug)]
pub(crate) struct SyncedFile {
    file: File,
    next: u64,
}

/// Two ends of a connection; one of them echoes everything.
#[derive(Debug)]
pub(crate) struct Echo {
    stream: TcpStream,
}

impl SyncedFile {
    /// # Errors
    /// When the folder cannot be written.
    pub(crate) fn create(folder: &Path) -> Result<Self> {
        let mut file = File::create(folder.join("base-line"))?;
        for _ in 0..WRITES {
            file.write_all(&[0; WRITE_BYTES])?;
        }
        file.sync_all()?;
        Ok(Self { file, next: 0 })
    }

    /// Writes 4 KiB and waits until they are on the disk.
    ///
    /// # Errors
    /// When the disk fails.
    pub(crate) fn write(&mut self) -> Result<Duration> {
        let offset = self.next % WRITES * WRITE_BYTES as u64;
        self.next += 1;
        let bytes = [(self.next % 251) as u8; WRITE_BYTES];
        let start = Instant::now();
        self.file.write_all_at(&bytes, offset)?;
        self.file.sync_data()?;
        Ok(start.elapsed())
    }
}

impl Echo {
    /// # Errors
    /// When there is no loopback.
    pub(crate) fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        let (mut other, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        other.set_nodelay(true)?;
        thread::spawn(move || {
            let mut message = [0; PAYLOAD_BYTES];
            // Ends when the first end is closed.
            while other.read_exact(&mut message).is_ok() && other.write_all(&message).is_ok() {}
        });
        Ok(Self { stream })
    }

    /// Sends 200 bytes and waits until they are back.
    ///
    /// # Errors
    /// When the other end is gone.
    pub(crate) fn round_trip(&mut self) -> Result<Duration> {
        let mut message = [7; PAYLOAD_BYTES];
        let start = Instant::now();
        self.stream.write_all(&message)?;
        self.stream.read_exact(&mut message)?;
        Ok(start.elapsed())
    }
}

/// Refuses a median that only memory can have.
///
/// # Errors
/// When syncing costs nothing.
pub(crate) fn check_sync(p50_us: f64) -> Result<()> {
    if p50_us < SYNC_MIN.as_secs_f64() * 1e6 {
        bail!("a synced write takes {p50_us:.1} µs here: that is memory, not a disk; choose another --data");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_echo_returns_what_was_sent() {
        let mut echo = Echo::start().unwrap();
        assert!(echo.round_trip().unwrap() > Duration::ZERO);
        assert!(echo.round_trip().unwrap() > Duration::ZERO);
    }

    #[test]
    fn the_file_is_written_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = SyncedFile::create(folder.path()).unwrap();
        let length = file.file.metadata().unwrap().len();
        for _ in 0..3 {
            file.write().unwrap();
        }
        assert_eq!(file.file.metadata().unwrap().len(), length);
    }

    #[test]
    fn a_sync_that_costs_nothing_is_refused() {
        assert!(check_sync(1.2).is_err());
        assert!(check_sync(60.0).is_ok());
    }
}
