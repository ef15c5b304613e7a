//! A folder of the operating system.
//!
//! **Invariant:** only this user can read what is in it: the folder has mode 0700, files 0600, a folder that
//! is writable for everyone is refused, and no link is followed from it.

use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Access, AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use super::{Disk, DiskFile, DiskLock, Lock};

/// How often a lock is tried before it counts as taken: a process that only reads the holder has it for
/// some microseconds.
const LOCK_TRIES: u32 = 5;
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// The lock file is short; more than this is not ours.
const HOLDER_BYTES_MAX: usize = 256;

/// A folder of the operating system, and how it may be used.
#[derive(Debug)]
pub struct RealDisk {
    folder: File,
    path: PathBuf,
    access: OFlags,
}

impl RealDisk {
    /// Opens a folder to read and write; it is created if it is not there.
    ///
    /// # Errors
    /// When it cannot be created or written, and when it is writable for everyone.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        create_folder(&path)?;
        let disk = Self::at(path, OFlags::RDWR)?;
        let mode = disk.folder.metadata()?.mode();
        if mode & 0o002 != 0 {
            let why = format!("the folder {} is writable for everyone; use another one", disk.path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let access = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
        rustix::fs::accessat(&disk.folder, ".", access, AtFlags::EACCESS)
            .map_err(|error| explain(error.into(), "the folder cannot be written", &disk.path))?;
        if mode & 0o077 != 0 {
            disk.folder
                .set_permissions(Permissions::from_mode(0o700))
                .map_err(|error| explain(error, "others may read the folder", &disk.path))?;
        }
        Ok(disk)
    }

    /// Opens a folder only to read it. Nothing is created or changed.
    ///
    /// # Errors
    /// When it is not there or cannot be read.
    pub fn open_to_read(path: impl Into<PathBuf>) -> io::Result<Self> {
        Self::at(path.into(), OFlags::RDONLY)
    }

    fn at(path: PathBuf, access: OFlags) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(&path, flags, Mode::empty())
            .map_err(|error| explain(error.into(), "the folder cannot be opened", &path))?;
        Ok(Self { folder: File::from(folder), path, access })
    }

    fn file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        debug_assert!(!name.contains('/'), "a name is a name in one folder");
        // Of a regular file, NONBLOCK means nothing; a pipe in its place would be waited for without it.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.folder, name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => File::from(file),
            // A link, a folder, and a socket or a pipe without a reader.
            Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => return Err(no_file()),
            Err(error) => return Err(error.into()),
        };
        if file.metadata()?.is_file() { Ok(file) } else { Err(no_file()) }
    }
}

impl Disk for RealDisk {
    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(self.file(name, self.access)?))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(self.file(name, self.access | OFlags::CREATE | OFlags::TRUNC)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.folder, from, &self.folder, to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.folder, name, AtFlags::empty())?)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            // Also what is no file: a journal without the segment in whose place a link is would be another journal.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.folder.sync_all()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let found = rustix::fs::fstatvfs(&self.folder)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    fn lock(&self, name: &str) -> io::Result<Lock> {
        let file = self.file(name, OFlags::RDWR | OFlags::CREATE)?;
        for _ in 0..LOCK_TRIES {
            if try_flock(&file, FlockOperation::NonBlockingLockExclusive)? {
                let text = format!("process {} of boot {}\n", std::process::id(), boot_id()?);
                file.set_len(0)?;
                file.write_all_at(text.as_bytes(), 0)?;
                return Ok(Lock::Held(Box::new(HeldLock { _file: file })));
            }
            std::thread::sleep(LOCK_PAUSE);
        }
        Ok(Lock::Busy { holder: read_holder(&file)? })
    }

    fn holder(&self, name: &str) -> io::Result<Option<String>> {
        let file = match self.file(name, OFlags::RDONLY) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if try_flock(&file, FlockOperation::NonBlockingLockShared)? {
            return Ok(None);
        }
        read_holder(&file).map(Some)
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        // Needs no descriptor: a process that has none left can still begin a segment that it has prepared.
        let mut rest = bytes;
        while !rest.is_empty() {
            match rustix::rand::getrandom(&mut *rest, GetRandomFlags::empty()) {
                Ok(drawn) => rest = &mut rest[drawn..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl DiskFile for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut read = 0;
        while read < bytes.len() {
            match FileExt::read_at(self, &mut bytes[read..], offset + read as u64) {
                Ok(0) => break,
                Ok(some) => read += some,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        // Goes on after an interruption and after a short write.
        self.write_all_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Self::set_len(self, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        Self::sync_data(self)
    }
}

fn no_file() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")
}

/// The kernel ends the lock when the last handle of the file is closed.
#[derive(Debug)]
struct HeldLock {
    _file: File,
}

impl DiskLock for HeldLock {}

/// Makes a folder, with those above it, and all their names durable: a journal is only as durable as its
/// path. The name of an existing folder is made durable too, if that is allowed here: its creator may
/// have died before.
fn create_folder(path: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|level| !is_there(level)).collect();
    if missing.is_empty() {
        let _ = sync_parent(path);
        return Ok(());
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| explain(error, "the folder cannot be created", path))?;
    missing.into_iter().try_for_each(sync_parent)
}

fn is_there(path: &Path) -> bool {
    path.as_os_str().is_empty() || path.exists()
}

fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

fn explain(error: io::Error, what: &str, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {}: {error}", path.display()))
}

fn try_flock(file: &File, operation: FlockOperation) -> io::Result<bool> {
    loop {
        match rustix::fs::flock(file, operation) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn read_holder(file: &File) -> io::Result<String> {
    let mut bytes = [0; HOLDER_BYTES_MAX];
    let read = DiskFile::read_at(file, &mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes[..read]).trim().to_owned())
}

fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_writable_folder_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        let error = RealDisk::open(folder.path()).unwrap_err();
        assert!(error.to_string().contains("is writable for everyone"), "{error}");
    }

    #[test]
    fn a_new_folder_and_its_files_belong_to_one_user() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        let disk = RealDisk::open(&path).unwrap();
        disk.create("x").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        assert_eq!(std::fs::metadata(path.join("x")).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(folder.path()).unwrap();
        std::fs::write(folder.path().join("real"), b"x").unwrap();
        std::os::unix::fs::symlink(folder.path().join("real"), folder.path().join("link")).unwrap();
        assert!(disk.open("link").is_err());
        assert!(disk.create("link").is_err());
        assert_eq!(disk.list().unwrap(), ["link", "real"]);
    }

    /// Opening a pipe for reading would wait for a writer.
    #[test]
    fn a_pipe_or_folder_is_refused_and_blocks_nothing() {
        use rustix::fs::{CWD, FileType, mkdir, mknodat};
        let folder = tempfile::tempdir().unwrap();
        let disk = RealDisk::open_to_read(folder.path()).unwrap();
        mknodat(CWD, folder.path().join("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        mkdir(folder.path().join("folder"), Mode::RWXU).unwrap();
        std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
        std::os::unix::fs::symlink("nowhere", folder.path().join("link")).unwrap();
        let (sender, answers) = std::sync::mpsc::channel();
        let disk = Arc::new(disk);
        for name in ["pipe", "folder", "socket", "link"] {
            let (disk, sender) = (Arc::clone(&disk), sender.clone());
            std::thread::spawn(move || sender.send((disk.holder(name).map(drop), disk.open(name).map(drop))));
        }
        for _ in 0..4 {
            let (held, opened) = answers.recv_timeout(Duration::from_secs(10)).expect("it answers");
            for refused in [held, opened] {
                assert_eq!(refused.unwrap_err().to_string(), "it is not a regular file");
            }
        }
    }

    #[test]
    fn a_lock_has_one_holder_with_a_name() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) =
            (RealDisk::open(folder.path()).unwrap(), RealDisk::open_to_read(folder.path()).unwrap());
        assert_eq!(two.holder("lock").unwrap(), None);
        let Lock::Held(held) = one.lock("lock").unwrap() else { panic!("the lock is free") };
        let Lock::Busy { holder } = one.lock("lock").unwrap() else { panic!("the lock is taken") };
        assert!(holder.starts_with(&format!("process {} of boot ", std::process::id())), "{holder}");
        assert_eq!(two.holder("lock").unwrap(), Some(holder));
        drop(held);
        assert_eq!(two.holder("lock").unwrap(), None);
    }
}
