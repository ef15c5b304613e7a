//! All kinds of damage to a disk, in an order from the seed, each once.

use std::ops::Range;

use orchestrix_core::Position;
use orchestrix_engine::disk::Disk;
use orchestrix_engine::disk::sim::{SECTOR_BYTES, SimDisk};

use crate::rng::Rng;

/// One thing that is done to a disk.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Flip {
        name: String,
        bit: usize,
    },
    Cut {
        name: String,
        len: usize,
    },
    Sector {
        name: String,
        act: SectorAct,
    },
    /// Zeros in a part of a file.
    Erase {
        name: String,
        part: Range<usize>,
    },
    /// The power fails after so many operations.
    Crash {
        after: u64,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) enum SectorAct {
    Zero(usize),
    /// The first takes the place of the second, too.
    Double(usize, usize),
    Swap(usize, usize),
}

/// Where a disk was changed.
#[derive(Debug)]
pub(super) struct Changed {
    pub(super) name: String,
    /// The first byte that is not as it was.
    pub(super) first: u64,
    /// From there on the file has nothing but zeros.
    pub(super) is_erased: bool,
}

impl Change {
    /// Changes a disk. Nothing comes back if this changed no byte.
    pub(super) fn make(&self, disk: &SimDisk) -> Option<Changed> {
        let (name, changed) = match self {
            Self::Flip { name, bit } => {
                let mut bytes = disk.bytes(name)?;
                bytes[bit / 8] ^= 1 << (bit % 8);
                (name, bytes)
            }
            Self::Cut { name, len } => {
                let mut bytes = disk.bytes(name)?;
                bytes.truncate(*len);
                (name, bytes)
            }
            Self::Sector { name, act } => (name, act.make(disk.bytes(name)?)),
            Self::Erase { name, part } => {
                let mut bytes = disk.bytes(name)?;
                bytes[part.clone()].fill(0);
                (name, bytes)
            }
            Self::Crash { .. } => return None,
        };
        let before = disk.bytes(name)?;
        let same = before.iter().zip(&changed).take_while(|(one, other)| one == other).count();
        if same == before.len() && same == changed.len() {
            return None;
        }
        let is_erased = before.len() == changed.len() && changed[same..].iter().all(|byte| *byte == 0);
        disk.put(name, changed);
        Some(Changed { name: name.clone(), first: same as u64, is_erased })
    }
}

impl SectorAct {
    fn make(self, mut bytes: Vec<u8>) -> Vec<u8> {
        let before = bytes.clone();
        let len = bytes.len();
        let sector = |number: usize| number * SECTOR_BYTES..((number + 1) * SECTOR_BYTES).min(len);
        match self {
            Self::Zero(one) => bytes[sector(one)].fill(0),
            Self::Double(one, other) => bytes[sector(other)].copy_from_slice(&before[sector(one)]),
            Self::Swap(one, other) => {
                bytes[sector(other)].copy_from_slice(&before[sector(one)]);
                bytes[sector(one)].copy_from_slice(&before[sector(other)]);
            }
        }
        bytes
    }

    fn all(bytes: usize) -> impl Iterator<Item = Self> {
        let whole = bytes / SECTOR_BYTES;
        let pairs = move || (0..whole).flat_map(move |one| (0..whole).map(move |other| (one, other)));
        let doubles =
            pairs().filter(|(one, other)| one != other).map(|(one, other)| Self::Double(one, other));
        let swaps = pairs().filter(|(one, other)| one < other).map(|(one, other)| Self::Swap(one, other));
        (0..bytes.div_ceil(SECTOR_BYTES)).map(Self::Zero).chain(doubles).chain(swaps)
    }
}

/// How far the bytes of `left` that are as they were say that the journal was durable: the header of a segment
/// names a position, and so does each of its frames. Reads the form of the files on its own: what is wrong in
/// the engine must not be wrong here too.
pub(super) fn promised(original: &SimDisk, left: &SimDisk) -> Position {
    let mut most = 0;
    for name in files(original).into_iter().filter(|name| name.ends_with(".journal")) {
        let (original, left) =
            (original.bytes(&name).unwrap_or_default(), left.bytes(&name).unwrap_or_default());
        let number = |at: usize| {
            let bytes = original.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u64::from_le_bytes)
        };
        let is_left =
            |from: usize, to: usize| to <= left.len() && left.get(from..to) == original.get(from..to);
        if is_left(0, 128) {
            most = most.max(number(64));
        }
        for at in frames(&original) {
            let is_mark = original.get(at + 5) == Some(&2);
            let (len, durable) = if is_mark { (40, number(at + 8)) } else { (64, number(at + 32)) };
            if is_left(at, at + len) {
                most = most.max(durable);
            }
        }
    }
    Position(most)
}

/// Where the frames of a segment begin.
fn frames(segment: &[u8]) -> impl Iterator<Item = usize> {
    (128..segment.len()).step_by(8).filter(|at| segment[*at..].starts_with(b"orxF"))
}

/// Each frame of the last segment, made zeros.
#[cfg(test)]
pub(super) fn frames_erased(disk: &SimDisk) -> Vec<Change> {
    let name = files(disk).into_iter().rfind(|name| name.ends_with(".journal")).expect("a journal");
    let segment = disk.bytes(&name).expect("its bytes");
    let starts: Vec<usize> = frames(&segment).collect();
    let ends = starts[1..].iter().copied().chain([segment.len()]);
    let erased = |(from, to)| Change::Erase { name: name.clone(), part: from..to };
    starts.iter().copied().zip(ends).map(erased).collect()
}

/// The files in which anything is kept; spares are empty.
fn files(disk: &SimDisk) -> Vec<String> {
    let kept = |name: &String| name.ends_with(".journal") || name.ends_with(".snapshot") || name == "floor";
    disk.list().unwrap_or_default().into_iter().filter(kept).collect()
}

/// All changes of one disk. The kinds take turns, so that a campaign cut short has seen all of them.
pub(super) struct Cases {
    /// Name and length.
    files: Vec<(String, usize)>,
    sectors: Vec<(String, SectorAct)>,
    orders: [Order; 5],
    turn: usize,
}

impl Cases {
    pub(super) fn new(disk: &SimDisk, seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0xca5e);
        let len = |name: &String| disk.bytes(name).map_or(0, |bytes| bytes.len());
        let files: Vec<(String, usize)> =
            files(disk).into_iter().map(|name| (name.clone(), len(&name))).collect();
        let sectors: Vec<(String, SectorAct)> = files
            .iter()
            .flat_map(|(name, len)| SectorAct::all(*len).map(|act| (name.clone(), act)))
            .collect();
        let bytes: u64 = files.iter().map(|(_, len)| *len as u64).sum();
        let counts = [bytes * 8, bytes, sectors.len() as u64, bytes / 8, disk.counts().operations];
        let orders = counts.map(|count| Order::new(count, &mut rng));
        Self { files, sectors, orders, turn: 0 }
    }

    fn case(&self, kind: usize, number: u64) -> Option<Change> {
        if kind == 4 {
            return Some(Change::Crash { after: number });
        }
        let number = usize::try_from(number).ok()?;
        match kind {
            0 => {
                let (name, byte) = self.find(number / 8)?;
                Some(Change::Flip { name, bit: byte * 8 + number % 8 })
            }
            1 => self.find(number).map(|(name, len)| Change::Cut { name, len }),
            // Frames begin at multiples of eight.
            3 => {
                let (name, byte) = self.find(number * 8)?;
                let len = self.files.iter().find(|(other, _)| *other == name)?.1;
                Some(Change::Erase { name, part: byte / 8 * 8..len })
            }
            _ => self.sectors.get(number).map(|(name, act)| Change::Sector { name: name.clone(), act: *act }),
        }
    }

    /// The file with a byte, counted over all files, and the place of the byte in it.
    fn find(&self, mut byte: usize) -> Option<(String, usize)> {
        for (name, len) in &self.files {
            if byte < *len {
                return Some((name.clone(), byte));
            }
            byte -= len;
        }
        None
    }
}

impl Iterator for Cases {
    type Item = Change;

    fn next(&mut self) -> Option<Change> {
        for _ in 0..self.orders.len() {
            let kind = self.turn;
            self.turn = (self.turn + 1) % self.orders.len();
            if let Some(number) = self.orders[kind].next() {
                return self.case(kind, number);
            }
        }
        None
    }
}

/// All numbers below a count, each once, in an order that a seed draws.
#[derive(Debug)]
struct Order {
    count: u64,
    at: u64,
    step: u64,
    left: u64,
}

impl Order {
    fn new(count: u64, rng: &mut Rng) -> Self {
        if count == 0 {
            return Self { count, at: 0, step: 0, left: 0 };
        }
        // A step that has no divisor in common with the count comes to every number before it comes back.
        let mut step = rng.range(1, count);
        while greatest_common_divisor(step, count) != 1 {
            step = step % count + 1;
        }
        Self { count, at: rng.range(0, count - 1), step, left: count }
    }
}

impl Iterator for Order {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        self.at = (self.at + self.step) % self.count;
        Some(self.at)
    }
}

fn greatest_common_divisor(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { greatest_common_divisor(other, one % other) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_once() {
        for count in [0, 1, 2, 12, 97, 1_000] {
            let mut all: Vec<u64> = Order::new(count, &mut Rng::new(count)).collect();
            all.sort_unstable();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
        }
    }
}
