//! Sectors that are zeroed, doubled or swapped, and files that are cut: in segments, snapshots and the floor.
//!
//! What is lost is only what no byte that is left says was durable, and that is reported and counted.

use std::path::Path;
use std::sync::Arc;

use crate::common::{History, Node, SMALL, fill, names};
use orchestrix_engine::disk::Disk;
use orchestrix_engine::disk::sim::{SECTOR_BYTES, SimDisk};
use orchestrix_engine::file::Options;
use orchestrix_engine::{Cause, Journal};

const OPTIONS: Options = Options { segment_bytes: Some(8192), ..SMALL };

/// What came of starts on damaged disks.
#[derive(Debug, Default)]
struct Tally {
    harmless: usize,
    refused: usize,
    /// Starts that lost what nothing says was durable, and the bytes that they reported.
    excluded: usize,
    excluded_bytes: u64,
}

/// Two segments, two snapshots of some sectors each, and a floor.
fn data() -> (SimDisk, History) {
    let disk = SimDisk::new(51);
    let mut history = History::new();
    let mut node = Node::start(Arc::new(disk.clone()), OPTIONS).unwrap();
    for _ in 0..2 {
        fill(&mut node, &mut history, 70);
        node.snapshot_of(1800).unwrap();
    }
    assert!(node.journal.truncate().unwrap().0 > 0);
    fill(&mut node, &mut history, 12);
    node.journal.rest().unwrap();
    drop(node);
    for name in names(&disk, ".spare") {
        disk.remove(&name).unwrap();
    }
    assert!(names(&disk, ".journal").len() >= 2 && names(&disk, ".snapshot").len() == 2);
    (disk, history)
}

/// How far the bytes that are as they were say that the journal was durable: the frames of a segment each name a
/// position, and so does its header.
fn promised(original: &[u8], left: &[u8]) -> u64 {
    let number = |at: usize| u64::from_le_bytes(original[at..at + 8].try_into().unwrap());
    let is_left = |from: usize, to: usize| left.get(from..to) == original.get(from..to);
    let mut most = if is_left(0, 128) { number(64) } else { 0 };
    for at in (128..original.len() - 64).step_by(8).filter(|at| original[*at..].starts_with(b"orxF")) {
        let (len, durable) = if original[at + 5] == 2 { (40, number(at + 8)) } else { (64, number(at + 32)) };
        if is_left(at, at + len) {
            most = most.max(durable);
        }
    }
    most
}

fn judge(disk: &SimDisk, history: &History, name: &str, changed: Vec<u8>, tally: &mut Tally) {
    let original = disk.bytes(name).unwrap();
    let common = original.iter().zip(&changed).take_while(|(one, other)| one == other).count();
    let first = if common == original.len() && common == changed.len() { None } else { Some(common as u64) };
    let mut most = 0;
    for segment in names(disk, ".journal") {
        let bytes = disk.bytes(&segment).unwrap();
        most = most.max(promised(&bytes, if segment == name { &changed } else { &bytes }));
    }
    let copy = disk.copy();
    copy.put(name, changed);
    match Node::start(Arc::new(copy), OPTIONS) {
        Ok(node) => {
            let end = node.state.link.position.0;
            assert!(end >= most, "{name} from byte {first:?}: {most} was durable, {end} is there");
            if history.reached(&node.state) == history.batches.len() {
                tally.harmless += 1;
                return;
            }
            let cut = node.journal.recovery().cut.clone().expect("what is lost is reported");
            assert_eq!(cut.path, Path::new(name));
            assert!(Some(cut.offset) <= first, "the cut begins at or before the damage");
            tally.excluded += 1;
            tally.excluded_bytes += cut.bytes;
        }
        Err(error) => {
            let Cause::Damaged { path, offset, .. } = &error.source else { panic!("{error}") };
            assert_eq!(path, Path::new(name), "{error}");
            assert!(first.is_some_and(|first| *offset <= first), "{error}, but it begins at {first:?}");
            tally.refused += 1;
        }
    }
}

fn each_sector_operation(bytes: &[u8], mut with: impl FnMut(Vec<u8>)) {
    let sector = |number: usize| number * SECTOR_BYTES..((number + 1) * SECTOR_BYTES).min(bytes.len());
    let whole = bytes.len() / SECTOR_BYTES;
    for one in 0..bytes.len().div_ceil(SECTOR_BYTES) {
        let mut zeroed = bytes.to_vec();
        zeroed[sector(one)].fill(0);
        with(zeroed);
    }
    for one in 0..whole {
        for other in (0..whole).filter(|other| *other != one) {
            let mut changed = bytes.to_vec();
            changed.copy_within(sector(one), other * SECTOR_BYTES);
            with(changed.clone());
            if one < other {
                changed[sector(one)].copy_from_slice(&bytes[sector(other)]);
                with(changed);
            }
        }
    }
}

#[test]
fn bad_sectors_are_harmless_named_or_behind_the_last_mark() {
    let (disk, history) = data();
    let mut tally = Tally::default();
    for name in names(&disk, ".journal").iter().chain(&names(&disk, ".snapshot")) {
        each_sector_operation(&disk.bytes(name).unwrap(), |changed| {
            judge(&disk, &history, name, changed, &mut tally);
        });
    }
    println!("{tally:?}");
    assert!(tally.refused > 100 && tally.harmless > 20, "{tally:?}");
    assert!(tally.excluded > 0 && tally.excluded_bytes > 0, "{tally:?}");
}

#[test]
fn a_snapshot_cut_at_any_byte_falls_back_to_the_one_before() {
    let (disk, history) = data();
    let mut tally = Tally::default();
    let mut cuts = 0;
    for name in names(&disk, ".snapshot") {
        let bytes = disk.bytes(&name).unwrap();
        for len in 0..bytes.len() {
            judge(&disk, &history, &name, bytes[..len].to_vec(), &mut tally);
            cuts += 1;
        }
    }
    assert_eq!((tally.harmless, tally.refused, tally.excluded), (cuts, 0, 0));
}

#[test]
fn every_flipped_bit_and_every_cut_of_the_floor_is_refused() {
    let (disk, history) = data();
    let mut tally = Tally::default();
    let bytes = disk.bytes("floor").unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        judge(&disk, &history, "floor", changed, &mut tally);
    }
    for len in 0..bytes.len() {
        judge(&disk, &history, "floor", bytes[..len].to_vec(), &mut tally);
    }
    assert_eq!((tally.refused, tally.harmless), (bytes.len() * 9, 0), "{tally:?}");
}
