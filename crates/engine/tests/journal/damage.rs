//! Whatever happens to the bytes of a journal or a snapshot: the state is the one that was there, or the
//! start is refused and the place named, or only what no mark covers is lost, and that is counted.

use std::path::Path;
use std::sync::Arc;

use crate::common::{History, Node, SMALL, fill, names};
use orchestrix_core::Position;
use orchestrix_engine::disk::Disk;
use orchestrix_engine::disk::sim::SimDisk;
use orchestrix_engine::file::FileJournal;
use orchestrix_engine::{Cause, Error, Journal, SNAPSHOT_CHUNK_MAX};

#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    exact: usize,
    refused: usize,
    lost: usize,
}

/// A journal of three segments without snapshots, closed.
fn journal(rest: bool) -> (SimDisk, History) {
    let disk = SimDisk::new(11);
    let mut history = History::new();
    let mut node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
    fill(&mut node, &mut history, 14);
    if rest {
        node.journal.rest().unwrap();
    }
    drop(node);
    remove_spares(&disk);
    assert_eq!(names(&disk, ".journal").len(), 3);
    (disk, history)
}

fn remove_spares(disk: &SimDisk) {
    for name in names(disk, ".spare") {
        disk.remove(&name).unwrap();
    }
}

/// Starts on a changed disk, and says what came of it. `name` and `offset` are where it was changed.
fn judge(disk: &SimDisk, history: &History, name: &str, offset: usize, tally: &mut Tally) {
    match Node::start(Arc::new(disk.clone()), SMALL) {
        Ok(node) => {
            let lost = history.batches.len() - history.reached(&node.state);
            match lost {
                0 => tally.exact += 1,
                1 => {
                    let cut = node.journal.recovery().cut.as_ref().expect("what is lost is reported");
                    assert_eq!(cut.path, Path::new(name));
                    assert!(cut.offset as usize <= offset, "the cut begins at or before the damage");
                    tally.lost += 1;
                }
                _ => panic!("{lost} batches lost by a change of {name} at {offset}"),
            }
        }
        Err(error) => {
            let (path, at) = place(&error);
            assert_eq!(path, name, "{error}");
            assert!(at as usize <= offset, "{error}, but the damage is at {offset}");
            tally.refused += 1;
        }
    }
}

fn place(error: &Error) -> (String, u64) {
    let Cause::Damaged { path, offset, .. } = &error.source else { panic!("damage is named, not {error}") };
    (path.display().to_string(), *offset)
}

#[test]
fn every_flipped_bit_of_a_journal_is_harmless_or_named() {
    let (disk, history) = journal(true);
    let mut tally = Tally::default();
    for name in names(&disk, ".journal") {
        for bit in 0..disk.bytes(&name).unwrap().len() * 8 {
            let copy = disk.copy();
            copy.rot(&name, bit / 8, 1 << (bit % 8));
            judge(&copy, &history, &name, bit / 8, &mut tally);
        }
    }
    assert_eq!(tally.lost, 0, "a mark covers everything: {tally:?}");
    assert!(tally.refused > 10_000 && tally.exact > 0, "{tally:?}");
    assert_eq!(tally.refused + tally.exact, 3 * 1024 * 8);
}

#[test]
fn without_an_end_mark_a_flipped_bit_costs_one_batch() {
    let (disk, history) = journal(false);
    let name = names(&disk, ".journal").pop().unwrap();
    let mut tally = Tally::default();
    for bit in 0..1024 * 8 {
        let copy = disk.copy();
        copy.rot(&name, bit / 8, 1 << (bit % 8));
        judge(&copy, &history, &name, bit / 8, &mut tally);
    }
    let last = (64 + history.batches[13].records.len() + 4).next_multiple_of(8);
    assert_eq!(tally.lost, last * 8, "exactly the bits of the frame that no mark covers");
    assert!(tally.refused > 0, "{tally:?}");
}

#[test]
fn a_segment_cut_short_at_any_byte_is_refused() {
    let (disk, history) = journal(true);
    let mut tally = Tally::default();
    for name in names(&disk, ".journal") {
        let bytes = disk.bytes(&name).unwrap();
        for len in 0..bytes.len() {
            let copy = disk.copy();
            copy.put(&name, bytes[..len].to_vec());
            judge(&copy, &history, &name, len, &mut tally);
        }
    }
    assert_eq!(tally, Tally { refused: 3 * 1024, ..Tally::default() });
}

#[test]
fn a_last_frame_torn_at_any_byte_is_cut_off() {
    let (disk, history) = journal(false);
    let name = names(&disk, ".journal").pop().unwrap();
    let bytes = disk.bytes(&name).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let start = end - (64 + history.batches[13].records.len() + 4).next_multiple_of(8);
    for filler in [0x00, 0xff] {
        for torn in start..end {
            let copy = disk.copy();
            let mut torn_bytes = bytes.clone();
            torn_bytes[torn..end].fill(filler);
            copy.put(&name, torn_bytes);
            let mut node = Node::start(Arc::new(copy.clone()), SMALL).unwrap();
            assert_eq!(history.reached(&node.state), 13);
            let mut again = history.clone();
            again.batches.truncate(13);
            again.states.truncate(14);
            let short = again.next(&node.journal, 1, 1);
            node.append(&short).unwrap();
            let state = node.state;
            drop(node);
            let node = Node::start(Arc::new(copy), SMALL).unwrap();
            assert_eq!(node.state, state, "nothing of the torn frame comes back");
            assert_eq!(node.journal.recovery().cut, None, "nothing of it is left behind the short one");
        }
    }
}

#[test]
fn a_missing_segment_is_refused_and_named() {
    let (disk, _) = journal(true);
    let all = names(&disk, ".journal");
    for (missing, named) in [(0, &all[0]), (1, &all[0])] {
        let copy = disk.copy();
        copy.remove(&all[missing]).unwrap();
        let error = Node::start(Arc::new(copy), SMALL).map(|_| ()).unwrap_err();
        assert_eq!(place(&error).0, *named, "{error}");
    }
}

/// A journal with two snapshots and all its segments, closed.
fn with_snapshots() -> (SimDisk, History) {
    let disk = SimDisk::new(13);
    let mut history = History::new();
    let mut node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
    for _ in 0..2 {
        fill(&mut node, &mut history, 8);
        node.snapshot().unwrap();
    }
    fill(&mut node, &mut history, 3);
    node.journal.rest().unwrap();
    drop(node);
    remove_spares(&disk);
    (disk, history)
}

#[test]
fn every_flipped_snapshot_bit_falls_back_to_the_one_before() {
    let (disk, history) = with_snapshots();
    let end = *history.states.last().unwrap();
    let mut flips = 0;
    for name in names(&disk, ".snapshot") {
        for bit in 0..disk.bytes(&name).unwrap().len() * 8 {
            let copy = disk.copy();
            copy.rot(&name, bit / 8, 1 << (bit % 8));
            let node = Node::start(Arc::new(copy.clone()), SMALL).unwrap();
            assert_eq!(node.state, end, "{name} bit {bit}");
            assert!(copy.longest_read() <= SNAPSHOT_CHUNK_MAX, "{name} bit {bit}: a length is not believed");
            let newest = *names(&disk, ".snapshot").last().unwrap() == name;
            assert_eq!(node.bad_snapshots, usize::from(newest), "{name} bit {bit}");
            flips += 1;
        }
    }
    assert!(flips > 2000);
}

#[test]
fn a_damaged_snapshot_names_its_file_and_lets_no_segment_go() {
    let (disk, _) = with_snapshots();
    let name = names(&disk, ".snapshot").remove(0);
    disk.rot(&name, 70, 1);
    let mut node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
    let before = names(&disk, ".journal");
    assert_eq!(node.journal.truncate().unwrap().0, 0);
    assert_eq!(names(&disk, ".journal"), before);
    let at = node.journal.snapshots().list().unwrap()[1];
    let mut reader = node.journal.snapshots().open(at).unwrap();
    assert_eq!(place(&reader.next().unwrap_err()).0, name);
    // Once there are two whole ones, the damaged one is not needed.
    let mut history = History { states: vec![node.state], batches: Vec::new() };
    fill(&mut node, &mut history, 8);
    node.snapshot().unwrap();
    assert!(node.journal.truncate().unwrap().0 > 0);
    node.journal.snapshots().prune().unwrap();
    assert_eq!(names(&disk, ".snapshot").len(), 2);
    assert!(!names(&disk, ".snapshot").contains(&name));
}

#[test]
fn a_chunk_longer_than_its_file_is_refused_unallocated() {
    let (disk, _) = with_snapshots();
    let name = names(&disk, ".snapshot").pop().unwrap();
    let mut bytes = disk.bytes(&name).unwrap();
    bytes[64..68].copy_from_slice(&(4_u32 << 20).to_le_bytes());
    disk.put(&name, bytes);
    let opening = FileJournal::start(Arc::new(disk), SMALL).unwrap();
    let at = opening.snapshots().list().unwrap()[0];
    let error = opening.snapshots().open(at).unwrap().next().unwrap_err();
    assert!(error.to_string().contains("chunk of 4194304 bytes, but only"), "{error}");
}

#[test]
fn a_snapshot_of_a_journal_that_lost_its_end_refuses_to_start() {
    let (disk, _) = with_snapshots();
    let node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
    node.snapshot().unwrap();
    let at = node.state.link.position;
    drop(node);
    let last = names(&disk, ".journal").pop().unwrap();
    let mut bytes = disk.bytes(&last).unwrap();
    bytes[128..].fill(0);
    disk.put(&last, bytes);
    let newest = names(&disk, ".snapshot").pop().unwrap();
    // A snapshot that cannot be loaded any more still tells how far the journal went.
    for rot in [0, 1] {
        disk.rot(&newest, 75, rot);
        let error = Node::start(Arc::new(disk.clone()), SMALL).map(|_| ()).unwrap_err();
        assert_eq!(place(&error), (last.clone(), 128), "{error}");
        assert!(error.to_string().contains(&at.to_string()), "{error}");
    }
}

#[test]
fn whole_frames_in_another_order_are_damage() {
    let disk = SimDisk::new(14);
    let mut history = History::new();
    let mut node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
    for _ in 0..5 {
        let batch = history.next(&node.journal, 1, 60);
        node.append(&batch).unwrap();
    }
    drop(node);
    let name = names(&disk, ".journal").remove(0);
    let bytes = disk.bytes(&name).unwrap();
    let frame = |number: usize| 128 + number * 128..256 + number * 128;
    for one in 0..5 {
        for other in (0..5).filter(|other| *other != one) {
            for swap in [false, true] {
                let mut changed = bytes.clone();
                changed[frame(other)].copy_from_slice(&bytes[frame(one)]);
                if swap {
                    changed[frame(one)].copy_from_slice(&bytes[frame(other)]);
                }
                let copy = disk.copy();
                copy.put(&name, changed);
                let error = Node::start(Arc::new(copy), SMALL).map(|_| ()).unwrap_err();
                let first = if swap { one.min(other) } else { other };
                assert_eq!(place(&error), (name.clone(), frame(first).start as u64), "{error}");
            }
        }
    }
}

/// Two copies of a folder that went on apart: frames of one are whole in the other, at the same places.
#[test]
fn whole_frames_and_segments_of_another_history_are_damage() {
    let (disk, history) = journal(true);
    let copies = [(disk.copy(), 50), (disk.copy(), 51)];
    for (copy, bytes) in &copies {
        let mut node = Node::start(Arc::new(copy.clone()), SMALL).unwrap();
        let mut history = history.clone();
        for _ in 0..16 {
            let batch = history.next(&node.journal, 1, *bytes);
            node.append(&batch).unwrap();
        }
        node.journal.rest().unwrap();
    }
    let [one, other] = [&copies[0].0, &copies[1].0];
    let segments = names(one, ".journal");
    assert_eq!(segments, names(other, ".journal"));
    assert!(segments.len() > 4);
    // From here on the two are different: the first segment that both have, and one that begins later.
    let parted = names(&disk, ".journal").pop().unwrap();
    let (ours, theirs) = (one.bytes(&parted).unwrap(), other.bytes(&parted).unwrap());
    let same = ours.iter().zip(&theirs).take_while(|(one, other)| one == other).count();
    let first = (128..=same).rev().find(|at| at % 8 == 0 && ours[*at..].starts_with(b"orxF")).unwrap();
    let second = (first + 8..ours.len()).find(|at| at % 8 == 0 && ours[*at..].starts_with(b"orxF")).unwrap();
    let mut mixed = ours.clone();
    mixed[second..].copy_from_slice(&theirs[second..]);
    let later = segments.last().unwrap();
    for (name, bytes) in [(&parted, mixed), (later, other.bytes(later).unwrap())] {
        let copy = one.copy();
        copy.put(name, bytes);
        let error = Node::start(Arc::new(copy), SMALL).map(|_| ()).unwrap_err();
        place(&error);
    }
}

/// A spare that still has the frames of the segment that it once was, at the places where new ones will end.
#[test]
fn old_frames_in_a_spare_segment_are_never_read() {
    let disk = SimDisk::new(17);
    let mut history = History::new();
    let mut node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
    for _ in 0..12 {
        let batch = history.next(&node.journal, 1, 60);
        node.append(&batch).unwrap();
    }
    drop(node);
    remove_spares(&disk);
    let old = names(&disk, ".journal").remove(0);
    disk.put("00000000000000000099.spare", disk.bytes(&old).unwrap());
    for _ in 0..20 {
        let mut node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
        assert_eq!(history.reached(&node.state), history.batches.len());
        assert_eq!(node.journal.recovery().cut, None, "nothing is left behind the end");
        let batch = history.next(&node.journal, 1, 60);
        node.append(&batch).unwrap();
    }
}

#[test]
fn a_batch_that_crosses_its_snapshot_is_damage() {
    let (disk, _) = with_snapshots();
    let name = names(&disk, ".journal").remove(0);
    let mut bytes = disk.bytes(&name).unwrap();
    let seed = crc32c::crc32c(&bytes[16..48]);
    let frame = &mut bytes[128..];
    let body = u32::from_le_bytes(frame[8..12].try_into().unwrap()) as usize;
    let end = (64 + body + 4).next_multiple_of(8) - 4;
    frame[12..16].copy_from_slice(&1_000_000_u32.to_le_bytes());
    let sum = crc32c::crc32c_append(seed, &frame[..60]);
    frame[60..64].copy_from_slice(&sum.to_le_bytes());
    let sum = crc32c::crc32c_append(sum, &frame[64..end]);
    frame[end..end + 4].copy_from_slice(&sum.to_le_bytes());
    disk.put(&name, bytes);
    let node = Node::start(Arc::new(disk), SMALL).unwrap();
    let error = node.journal.read(Position(0), 1 << 20).unwrap_err();
    assert_eq!(place(&error), (name, 128), "{error}");
}

#[test]
fn a_segment_without_room_for_a_mark_stays_as_long_as_it_is() {
    let disk = SimDisk::new(1);
    let mut node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
    fill(&mut node, &mut History::new(), 1);
    drop(node);
    let name = names(&disk, ".journal").remove(0);
    let mut bytes = disk.bytes(&name).unwrap();
    bytes.truncate(128 + 88 + 8);
    let size = bytes.len() as u64;
    bytes[56..64].copy_from_slice(&size.to_le_bytes());
    let sum = crc32c::crc32c(&bytes[..124]);
    bytes[124..128].copy_from_slice(&sum.to_le_bytes());
    disk.put(&name, bytes);
    let mut node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
    node.journal.rest().unwrap();
    let end = node.journal.end();
    drop(node);
    assert_eq!(Node::start(Arc::new(disk), SMALL).unwrap().journal.end(), end);
}

#[test]
fn a_link_that_the_chain_does_not_pass_through_is_refused() {
    let (disk, history) = journal(true);
    for (number, state) in history.states.iter().enumerate() {
        let start = |link| {
            let opening = FileJournal::start(Arc::new(disk.copy()), SMALL).unwrap();
            let mut visited = 0;
            let opened = opening.replay(link, |_| -> Result<(), Error> {
                visited += 1;
                Ok(())
            });
            opened.map(|_| visited)
        };
        assert_eq!(start(state.link).unwrap(), 14 - number);
        let mut other = state.link;
        other.hash.0[5] ^= 1;
        place(&start(other).unwrap_err());
    }
}

#[test]
fn a_mark_of_another_batch_is_damage() {
    let disk = SimDisk::new(15);
    let mut history = History::new();
    let mut node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
    for _ in 0..2 {
        let batch = history.next(&node.journal, 1, 60);
        node.append(&batch).unwrap();
        node.journal.rest().unwrap();
    }
    drop(node);
    let name = names(&disk, ".journal").remove(0);
    let mut bytes = disk.bytes(&name).unwrap();
    let (first, second) = (128 + 128, 128 + 128 + 40 + 128);
    bytes.copy_within(first..first + 40, second);
    disk.put(&name, bytes);
    let error = Node::start(Arc::new(disk), SMALL).map(|_| ()).unwrap_err();
    assert_eq!(place(&error), (name, second as u64), "{error}");
}

#[test]
fn a_truncated_journal_does_not_start_without_a_snapshot() {
    let disk = SimDisk::new(16);
    let mut history = History::new();
    let mut node = Node::start(Arc::new(disk.clone()), SMALL).unwrap();
    for _ in 0..2 {
        fill(&mut node, &mut history, 12);
        node.snapshot().unwrap();
    }
    assert!(node.journal.truncate().unwrap().0 > 0);
    drop(node);
    for name in names(&disk, ".snapshot") {
        disk.remove(&name).unwrap();
    }
    let error = Node::start(Arc::new(disk), SMALL).map(|_| ()).unwrap_err();
    assert_eq!(place(&error).0, "floor", "{error}");
}
