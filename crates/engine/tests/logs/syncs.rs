//! Appends that come while a sync is under way.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};

use crate::common::{append, files, offsets, open};
use orchestrix_engine::disk::sim::{Faults, SimDisk, SyncFailure};
use orchestrix_engine::disk::{Disk, DiskFile, Lock};
use orchestrix_engine::file::FileLogs;

/// A disk whose syncs do their work, and answer when somebody lets them go.
#[derive(Clone, Debug)]
struct SlowDisk {
    disk: SimDisk,
    gate: Arc<(Mutex<bool>, Condvar)>,
}

#[derive(Debug)]
struct SlowFile {
    file: Arc<dyn DiskFile>,
    gate: Arc<(Mutex<bool>, Condvar)>,
}

impl DiskFile for SlowFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(bytes, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(bytes, offset)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        let outcome = self.file.sync_data();
        let (open, changed) = &*self.gate;
        drop(changed.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
        outcome
    }
}

impl SlowDisk {
    fn wrap(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(SlowFile { file, gate: Arc::clone(&self.gate) })
    }
    fn set_open(&self, open: bool) {
        *self.gate.0.lock().unwrap() = open;
        self.gate.1.notify_all();
    }
}

impl Disk for SlowDisk {
    fn path(&self, name: &str) -> PathBuf {
        self.disk.path(name)
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.wrap(self.disk.open(name)?))
    }
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.wrap(self.disk.create(name)?))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }
    fn sync_dir(&self) -> io::Result<()> {
        self.disk.sync_dir()
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
    }
    fn lock(&self, name: &str) -> io::Result<Lock> {
        self.disk.lock(name)
    }
    fn holder(&self, name: &str) -> io::Result<Option<String>> {
        self.disk.holder(name)
    }
    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.disk.random(bytes)
    }
}

#[test]
fn appends_that_come_during_a_sync_share_the_next_one() {
    let disk = SlowDisk { disk: SimDisk::new(8), gate: Arc::new((Mutex::new(true), Condvar::new())) };
    let logs = FileLogs::open(Arc::new(disk.clone())).unwrap();
    append(&logs, 1, 0).unwrap();
    let before = disk.disk.counts();
    disk.set_open(false);
    std::thread::scope(|scope| {
        for task in 2..=9 {
            let logs = &logs;
            scope.spawn(move || append(logs, task, 0).unwrap());
        }
        while disk.disk.counts().writes < before.writes + 8 {
            std::thread::yield_now();
        }
        disk.set_open(true);
    });
    let syncs = disk.disk.counts().syncs - before.syncs;
    assert!((1..=2).contains(&syncs), "8 appends took {syncs} syncs");
}

#[test]
fn a_chunk_written_during_a_sync_is_durable_in_its_file() {
    let disk = SlowDisk { disk: SimDisk::new(8), gate: Arc::new((Mutex::new(true), Condvar::new())) };
    let logs = FileLogs::open_with(Arc::new(disk.clone()), 230).unwrap();
    append(&logs, 1, 0).unwrap();
    let before = disk.disk.counts();
    disk.set_open(false);
    std::thread::scope(|scope| {
        scope.spawn(|| append(&logs, 2, 0).unwrap());
        while disk.disk.counts().syncs == before.syncs {
            std::thread::yield_now();
        }
        scope.spawn(|| append(&logs, 3, 0).unwrap());
        while disk.disk.counts().writes < before.writes + 2 {
            std::thread::yield_now();
        }
        assert_eq!(files(&disk.disk).len(), 1);
        scope.spawn(|| append(&logs, 4, 0).unwrap());
        std::thread::yield_now();
        disk.set_open(true);
    });
    drop(logs);
    assert_eq!(files(&disk.disk).len(), 2);
    let logs = open(&disk.disk.crash(&mut || false));
    for task in 1..=4 {
        assert_eq!(offsets(&logs, task), [0], "task {task}");
    }
}

#[test]
fn a_repeat_during_a_failing_sync_is_not_acknowledged() {
    for _ in 0..20 {
        let disk = SlowDisk { disk: SimDisk::new(8), gate: Arc::new((Mutex::new(true), Condvar::new())) };
        let logs = FileLogs::open(Arc::new(disk.clone())).unwrap();
        append(&logs, 1, 0).unwrap();
        let before = disk.disk.counts();
        disk.set_open(false);
        let fail_sync = Some((before.syncs + 1, SyncFailure::Forget));
        disk.disk.set_faults(Faults { fail_sync, ..Faults::default() });
        std::thread::scope(|scope| {
            let first = scope.spawn(|| append(&logs, 1, 1));
            while disk.disk.counts().writes == before.writes {
                std::thread::yield_now();
            }
            let (started, starts) = std::sync::mpsc::channel();
            let repeat = scope.spawn({
                let logs = &logs;
                move || {
                    started.send(()).unwrap();
                    append(logs, 1, 1)
                }
            });
            starts.recv().unwrap();
            std::thread::yield_now();
            disk.set_open(true);
            first.join().unwrap().unwrap_err();
            repeat.join().unwrap().unwrap_err();
        });
    }
}
