//! The bytes of format 1 stay what they are: a journal that was written once is read for ever, and the same
//! batches still give the same bytes.

use std::path::PathBuf;
use std::sync::Arc;

use crate::common::{History, Node, SMALL, fill, names};
use orchestrix_engine::Journal;
use orchestrix_engine::disk::Disk;
use orchestrix_engine::disk::sim::SimDisk;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/format-1")
}

fn write() -> (SimDisk, History) {
    let disk = SimDisk::new(1);
    let mut history = History::new();
    let mut node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
    fill(&mut node, &mut history, 12);
    node.snapshot().unwrap();
    fill(&mut node, &mut history, 6);
    node.snapshot().unwrap();
    node.journal.truncate().unwrap();
    fill(&mut node, &mut history, 3);
    node.journal.rest().unwrap();
    drop(node);
    for name in names(&disk, ".spare").iter().chain(&names(&disk, ".next")) {
        disk.remove(name).unwrap();
    }
    (disk, history)
}

fn read() -> SimDisk {
    let disk = SimDisk::new(2);
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        disk.put(path.file_name().unwrap().to_str().unwrap(), std::fs::read(&path).unwrap());
    }
    disk
}

#[test]
fn a_journal_of_format_1_is_read() {
    let (_, history) = write();
    let node = Node::start(Arc::new(read()), SMALL).unwrap();
    assert_eq!(history.reached(&node.state), 21);
    assert_eq!(node.journal.end().hash.to_string(), "1fffa1ebf748dfd6db0cb0bcf747e04f");
}

/// `WRITE_FIXTURE=1` writes the fixture: only for a new format, into a new folder.
#[test]
fn the_same_batches_give_the_same_bytes() {
    let now = write().0;
    if std::env::var_os("WRITE_FIXTURE").is_some() {
        std::fs::create_dir_all(folder()).unwrap();
        for name in now.list().unwrap() {
            std::fs::write(folder().join(&name), now.bytes(&name).unwrap()).unwrap();
        }
    }
    let then = read();
    assert_eq!(now.list().unwrap(), then.list().unwrap());
    for name in now.list().unwrap() {
        assert_eq!(now.bytes(&name), then.bytes(&name), "{name}");
    }
}
