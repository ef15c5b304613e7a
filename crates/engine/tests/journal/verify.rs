//! `verify` sees what a start would see, and changes nothing.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use crate::common::{History, Node, SMALL, fill, names};
use orchestrix_engine::Journal;
use orchestrix_engine::disk::sim::SimDisk;
use orchestrix_engine::disk::{Disk, DiskFile, Lock, RealDisk};
use orchestrix_engine::file::{Batches, FileJournal, Report, verify, verify_disk};

fn look(disk: &SimDisk) -> Report {
    let before = disk.counts();
    let report = verify_disk(&(Arc::new(disk.clone()) as Arc<dyn Disk>)).unwrap();
    assert_eq!(disk.counts(), before, "nothing is changed");
    report
}

fn journal() -> (SimDisk, History) {
    let disk = SimDisk::new(41);
    let mut history = History::new();
    let mut node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
    for _ in 0..3 {
        fill(&mut node, &mut history, 10);
        node.snapshot().unwrap();
    }
    fill(&mut node, &mut history, 2);
    node.journal.rest().unwrap();
    (disk, history)
}

#[test]
fn a_sound_journal_is_counted() {
    let (disk, history) = journal();
    let report = look(&disk);
    assert!(report.is_sound(), "{report:?}");
    assert_eq!(report.batches, 32);
    assert_eq!(report.events, history.batches.iter().map(|batch| u64::from(batch.count)).sum::<u64>());
    assert_eq!(report.bytes, history.batches.iter().map(|batch| batch.records.len() as u64).sum::<u64>());
    assert_eq!(report.end, history.states[32].link);
    assert_eq!(report.durable, report.end.position);
    assert_eq!((report.snapshots.len(), report.torn, report.holder), (3, None, None));
    let dumped: Vec<_> = Batches::open(Arc::new(disk)).unwrap().map(Result::unwrap).collect();
    assert_eq!(dumped, history.batches);
}

#[test]
fn a_journal_in_use_names_its_holder() {
    let (disk, _) = journal();
    let node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
    assert!(look(&disk).holder.is_some());
    drop(node);
    assert_eq!(look(&disk).holder, None);
}

#[test]
fn every_flipped_bit_is_judged_as_a_start_judges_it() {
    let (disk, _) = journal();
    for name in names(&disk, ".spare") {
        disk.remove(&name).unwrap();
    }
    let mut damaged = 0;
    for name in disk.list().unwrap() {
        for bit in (0..disk.bytes(&name).unwrap().len() * 8).step_by(11) {
            let copy = disk.copy();
            copy.rot(&name, bit / 8, 1 << (bit % 8));
            let report = look(&copy);
            let end = Batches::open(Arc::new(copy.clone())).unwrap().last().unwrap();
            assert!(end.is_ok() || report.damage.is_some());
            let started = FileJournal::open(Arc::new(copy), SMALL);
            assert_eq!(started.is_ok(), report.is_sound(), "{name} bit {bit}: {report:?}");
            if let Ok(journal) = started {
                assert_eq!(report.torn.is_some(), journal.recovery().cut.is_some());
                let bad = report.snapshots.iter().filter(|snapshot| snapshot.damage.is_some()).count();
                assert_eq!(bad > 0, name.starts_with("snap-"));
            } else {
                damaged += 1;
            }
        }
    }
    assert!(damaged > 100, "{damaged}");
}

#[test]
fn a_folder_that_is_not_there_is_an_error_and_is_not_created() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("absent");
    assert!(verify(&path).is_err());
    assert!(!path.exists());
}

/// A disk whose journal goes on while it is looked at: just before one of the operations that read names or open files.
struct Busy {
    disk: SimDisk,
    operations: AtomicUsize,
    at: usize,
    writer: Mutex<(Node, History)>,
}

impl Busy {
    fn new(at: usize) -> Arc<Self> {
        let (disk, history) = journal();
        let node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
        Arc::new(Self { disk, operations: AtomicUsize::new(0), at, writer: Mutex::new((node, history)) })
    }

    /// Two snapshots more, so that what is older than them goes.
    fn count(&self) {
        if self.operations.fetch_add(1, Relaxed) + 1 != self.at {
            return;
        }
        let mut writer = self.writer.lock().unwrap();
        let (node, history) = &mut *writer;
        for _ in 0..2 {
            fill(node, history, 10);
            node.snapshot().unwrap();
            node.journal.truncate().unwrap();
            node.journal.snapshots().prune().unwrap();
        }
        node.journal.rest().unwrap();
    }
}

impl fmt::Debug for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Busy").field("at", &self.at).finish_non_exhaustive()
    }
}

impl Disk for Busy {
    fn path(&self, name: &str) -> PathBuf {
        self.disk.path(name)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.count();
        self.disk.open(name)
    }

    fn create(&self, _: &str) -> io::Result<Arc<dyn DiskFile>> {
        panic!("a look creates nothing")
    }

    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        panic!("a look renames nothing")
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        panic!("a look removes nothing")
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.count();
        self.disk.list()
    }

    fn sync_dir(&self) -> io::Result<()> {
        panic!("a look changes nothing")
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
    }

    fn lock(&self, _: &str) -> io::Result<Lock> {
        panic!("a look takes no lock")
    }

    fn holder(&self, name: &str) -> io::Result<Option<String>> {
        self.disk.holder(name)
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.disk.random(bytes)
    }
}

#[test]
fn a_journal_that_goes_on_meanwhile_is_not_called_damaged() {
    let mut went_on = 0;
    for at in 1.. {
        let disk = Busy::new(at);
        let report = verify_disk(&(Arc::clone(&disk) as Arc<dyn Disk>));
        let report = report.unwrap_or_else(|error| panic!("operation {at}: {error}"));
        assert!(report.is_sound(), "operation {at}: {report:?}");
        assert!(
            report.snapshots.iter().all(|snapshot| snapshot.damage.is_none()),
            "operation {at}: {report:?}"
        );
        if disk.operations.load(Relaxed) < at {
            break;
        }
        went_on += 1;
    }
    assert!(went_on > 10, "{went_on}");
}

#[test]
fn damage_of_a_journal_in_use_is_damage() {
    let disk = Busy::new(usize::MAX);
    let first = names(&disk.disk, ".journal").swap_remove(0);
    disk.disk.rot(&first, 200, 1);
    let report = verify_disk(&(Arc::clone(&disk) as Arc<dyn Disk>)).unwrap();
    assert!(!report.is_sound(), "{report:?}");
    assert!(report.damage.unwrap().path.ends_with(&first));
}

#[test]
fn segments_that_are_dropped_while_they_are_read_are_named() {
    let (disk, mut history) = journal();
    let mut batches = Batches::open(Arc::new(disk.clone())).unwrap();
    batches.next().unwrap().unwrap();
    let mut node = Node::start(Arc::new(disk), SMALL).unwrap();
    for _ in 0..2 {
        fill(&mut node, &mut history, 10);
        node.snapshot().unwrap();
    }
    let floor = node.journal.truncate().unwrap();
    let end = batches.last().unwrap().unwrap_err().to_string();
    assert!(end.contains(&format!("the events up to {floor} were dropped")), "{end}");
}

/// As when somebody has moved a segment to another disk.
#[test]
fn a_link_in_place_of_a_segment_is_not_an_empty_journal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let open = || RealDisk::open(&path).map(|disk| Arc::new(disk) as Arc<dyn Disk>).unwrap();
    let mut node = Node::start(open(), SMALL).unwrap();
    fill(&mut node, &mut History::new(), 10);
    drop(node);
    let disk = open();
    let last = disk.list().unwrap().into_iter().rfind(|name| name.ends_with(".journal")).unwrap();
    for name in [last.as_str(), "00000000000000000001.journal"] {
        std::fs::rename(path.join(name), folder.path().join(name)).unwrap();
        std::os::unix::fs::symlink(folder.path().join(name), path.join(name)).unwrap();
        let refused = FileJournal::open(Arc::clone(&disk), SMALL).map(drop).unwrap_err().to_string();
        assert!(refused.contains(name) && refused.contains("not a regular file"), "{refused}");
        assert_eq!(verify(&path).unwrap_err().to_string(), refused);
        assert!(path.join(name).is_symlink(), "it is left as it is");
    }
}
