//! Folders with a journal: opened as a node opens them, gone on with, and opened again.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use orchestrix_core::{Position, Term};
use orchestrix_engine::disk::Disk;
use orchestrix_engine::disk::sim::SimDisk;
use orchestrix_engine::file::{FileJournal, Opening, Options, Prepare, verify_disk};
use orchestrix_engine::{Appended, Batch, Cause, Error, Journal, Link, Read};

use crate::edit::{Folder, Trust};
use crate::source::Source;

const SMALL: Options = Options { segment_bytes: Some(1024), prepare: Prepare::Inline };

/// What the batches up to a link amount to: a number that depends on every byte of them.
type Fold = u64;

/// A journal, two snapshots of it, and every end that it ever had.
pub(crate) struct Base {
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    ends: BTreeMap<Position, (Link, Fold)>,
}

/// The folder that inputs change: several segments, a floor, two snapshots, and a mark at the end.
pub(crate) fn base() -> &'static Base {
    static BASE: OnceLock<Base> = OnceLock::new();
    BASE.get_or_init(|| {
        let disk = SimDisk::new(7);
        let mut journal =
            FileJournal::open(Arc::new(disk.clone()), SMALL).expect("an empty disk is a journal");
        let mut ends = BTreeMap::from([(Position(0), (Link::default(), 0))]);
        let mut fold = 0;
        for number in 0..24_u8 {
            let count = 1 + u32::from(number % 3);
            let records = vec![number + 1; 20 + usize::from(number) * 17 % 90];
            let batch = Batch { previous: journal.end(), term: Term(1), count, records };
            journal.append(&batch).expect("a disk without faults takes a batch");
            fold = folded(fold, &batch.records);
            ends.insert(journal.end().position, (journal.end(), fold));
            if number == 9 || number == 17 {
                write_snapshot(&journal, fold).expect("a disk without faults takes a snapshot");
            }
        }
        journal.truncate().expect("a disk without faults deletes");
        journal.rest().expect("a disk without faults takes a mark");
        drop(journal);
        let names = disk.list().expect("a disk without faults lists");
        Base { files: Folder::of(&disk, names).files, ends }
    })
}

/// The folder, changed as the input says.
pub(super) fn folder(input: &[u8]) {
    let mut folder = Folder { files: base().files.clone() };
    let trust = folder.edit(&mut Source::new(input));
    open(&folder, trust);
}

/// One segment that is all input; the first byte says whether its checksums are put right.
pub(super) fn segment(input: &[u8]) {
    let mut source = Source::new(input);
    let sealed = source.byte() & 1 == 1;
    let mut bytes = source.rest().to_vec();
    let first = bytes
        .get(48..56)
        .map_or(1, |first| first.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)));
    let name = format!("{first:020}.journal");
    if sealed {
        crate::seal::seal(&name, &mut bytes);
    }
    open(&Folder { files: BTreeMap::from([(name, bytes)]) }, Trust::Nothing);
}

fn open(folder: &Folder, trust: Trust) {
    let disk = folder.disk();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let report = verify_disk(&shared).map_err(|error| check_named(&error));
    let opened = start(&shared);
    let (mut journal, fold) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            check_named(&error);
            return;
        }
    };
    let end = journal.end();
    if trust == Trust::Checksums {
        let known = base().ends.get(&end.position);
        // A folder without any segment is a new journal.
        let new = end == Link::default();
        assert!(new || known == Some(&(end, fold)), "recovery gives a state that once was, not {end:?}");
    }
    // With a snapshot, a start does not read what is below it; whoever looks does.
    if !folder.files.keys().any(|name| name.ends_with(".snapshot")) {
        let report = report.expect("what can be opened can be looked at");
        assert!(report.damage.is_none(), "a start went on over {:?}", report.damage);
        assert_eq!(report.end, end, "both see the same end");
    }
    read_all(&journal);

    if end.position.0 >= u64::MAX / 2 {
        return;
    }
    let batch = Batch { previous: end, term: Term(2), count: 2, records: b"goes on".to_vec() };
    let Appended::Done(link) = journal.append(&batch).expect("a disk without faults takes a batch") else {
        panic!("a batch after the end is done");
    };
    journal.rest().expect("a disk without faults takes a mark");
    drop(journal);
    let (again, fold_again) = start(&shared).expect("what was opened and written to can be opened again");
    assert_eq!(again.end(), link);
    assert_eq!(fold_again, folded(fold, &batch.records));
    assert_eq!(again.recovery().cut, None, "what was cut once is gone");
}

/// Starts as a node does: the newest snapshot that is whole, then all that follows.
fn start(disk: &Arc<dyn Disk>) -> Result<(FileJournal, Fold), Error> {
    let opening = FileJournal::start(Arc::clone(disk), SMALL)?;
    let (mut link, mut fold) = (Link::default(), 0);
    for at in opening.snapshots().list()? {
        match load(&opening, at) {
            Ok(loaded) => {
                (link, fold) = loaded;
                break;
            }
            Err(error) => check_named(&error),
        }
    }
    let journal = opening.replay(link, |batch| -> Result<(), Error> {
        fold = folded(fold, batch.records);
        Ok(())
    })?;
    Ok((journal, fold))
}

fn load(opening: &Opening, at: Position) -> Result<(Link, Fold), Error> {
    let mut reader = opening.snapshots().open(at)?;
    let mut fold = [0; 8];
    let mut taken = 0;
    while let Some(chunk) = reader.next()? {
        for byte in chunk {
            fold[taken % 8] = byte;
            taken += 1;
        }
    }
    Ok((reader.link(), Fold::from_le_bytes(fold)))
}

fn write_snapshot(journal: &FileJournal, fold: Fold) -> Result<(), Error> {
    let mut writer = journal.snapshots().create(journal.end())?;
    writer.chunk(&fold.to_le_bytes()[..3])?;
    writer.chunk(&fold.to_le_bytes()[3..])?;
    writer.finish()
}

fn read_all(journal: &FileJournal) {
    let mut after = Position(0);
    loop {
        match journal.read(after, 500) {
            Ok(Read::Batches(batches)) => {
                let last = batches.last().expect("at least one batch is read").last();
                assert!(last > after, "reading goes on");
                after = last;
            }
            Ok(Read::Truncated(floor)) if floor > after => after = floor,
            Ok(Read::Truncated(floor)) => panic!("nothing at or below {floor} is asked for"),
            Ok(Read::End) => break,
            // Below the snapshot that the start used, segments were not read before.
            Err(error) => return check_named(&error),
        }
    }
    assert_eq!(after, journal.end().position, "reading ends at the end");
}

/// Whoever is refused hears where to look.
fn check_named(error: &Error) {
    match &error.source {
        Cause::Damaged { path, what, .. } => {
            assert!(path.file_name().is_some() && !what.is_empty(), "{error} names no place");
        }
        Cause::UnknownFormat { found, known, .. } => assert!(found > known, "{error} is no newer format"),
        Cause::Io(_) | Cause::InUse { .. } | Cause::Full { .. } | Cause::Remote { .. } | Cause::Stopped => {
            panic!("a disk without faults is no reason: {error}")
        }
    }
}

fn folded(fold: Fold, records: &[u8]) -> Fold {
    let mix = |fold: Fold, byte: &u8| (fold ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(5);
    records.iter().fold(fold, mix).wrapping_add(1)
}
