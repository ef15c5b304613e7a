//! Every engine of this crate does what the suite says.

use std::sync::Arc;

use orchestrix_engine::disk::RealDisk;
use orchestrix_engine::disk::sim::SimDisk;
use orchestrix_engine::file::{FileJournal, FileLogs, Options, Prepare};
use orchestrix_engine::memory::{MemoryJournal, MemoryLogs, MemoryPlace, MemoryRegister};
use orchestrix_engine::{Journal, JournalId, Register, Shared, suite};

const SMALL: Options = Options { segment_bytes: Some(4096), prepare: Prepare::Inline };

#[test]
fn memory() {
    suite::journal(&mut || Box::new(MemoryJournal::new(JournalId([1; 16]))));
    suite::snapshots(&mut || Box::new(MemoryJournal::new(JournalId([1; 16]))));
    suite::logs(&mut || Box::new(MemoryLogs::default()));
    suite::register(&mut |handles| {
        let register: Arc<dyn Register> = Arc::new(MemoryRegister::default());
        vec![register; handles]
    });
    suite::shared(&mut || {
        let place = MemoryPlace::new(JournalId([1; 16]));
        Box::new(move || -> Arc<dyn Shared> { Arc::new(place.clone()) })
    });
}

#[test]
fn files_on_a_simulated_disk() {
    let mut make =
        || -> Box<dyn Journal> { Box::new(FileJournal::open(Arc::new(SimDisk::new(1)), SMALL).unwrap()) };
    suite::journal(&mut make);
    suite::snapshots(&mut make);
    for bytes in [200, 1 << 20] {
        suite::logs(&mut || Box::new(FileLogs::open_with(Arc::new(SimDisk::new(1)), bytes).unwrap()));
    }
}

#[test]
fn files_on_a_real_disk() {
    for prepare in [Prepare::Thread, Prepare::Inline] {
        let mut folders = Vec::new();
        let mut make = || -> Box<dyn Journal> {
            let folder = tempfile::tempdir().unwrap();
            let disk = Arc::new(RealDisk::open(folder.path()).unwrap());
            folders.push(folder);
            Box::new(FileJournal::open(disk, Options { segment_bytes: Some(16384), prepare }).unwrap())
        };
        suite::journal(&mut make);
        suite::snapshots(&mut make);
    }
    let mut folders = Vec::new();
    suite::logs(&mut || {
        let folder = tempfile::tempdir().unwrap();
        let disk = Arc::new(RealDisk::open(folder.path()).unwrap());
        folders.push(folder);
        Box::new(FileLogs::open(disk).unwrap())
    });
}
