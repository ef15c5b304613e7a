//! The floor: up to which position the journal was dropped. One small file, replaced as a whole.
//!
//! **Invariant:** the floor on disk is raised before anything at or below it is deleted.

use std::io::ErrorKind;

use orchestrix_core::Position;

use super::layout::{FORMAT, Flaw, check_sum, id_at, u32_at, u64_at};
use super::names;
use crate::disk::Disk;
use crate::fault::{damaged, flawed, io_error};
use crate::{Error, JournalId};

const MAGIC: [u8; 8] = *b"orxflr\r\n";
const BYTES: usize = 48;

/// Reads the floor, if there is one.
pub(crate) fn read(disk: &dyn Disk) -> Result<Option<(JournalId, Position)>, Error> {
    let doing = "read";
    let file = match disk.open(names::FLOOR) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error(disk, doing, names::FLOOR, error)),
    };
    let mut bytes = [0; BYTES];
    let read = file.read_at(&mut bytes, 0).map_err(|error| io_error(disk, doing, names::FLOOR, error))?;
    if read < BYTES {
        let what = format!("the file has {read} bytes, expected {BYTES}");
        return Err(damaged(disk, doing, names::FLOOR, read as u64, what));
    }
    decode(&bytes).map(Some).map_err(|flaw| flawed(disk, doing, names::FLOOR, 0, flaw))
}

/// Raises the floor, durably.
pub(crate) fn write(disk: &dyn Disk, journal: JournalId, floor: Position) -> Result<(), Error> {
    let failed = |error| io_error(disk, "write", names::FLOOR, error);
    let file = match disk.open(names::FLOOR_NEXT) {
        Err(error) if error.kind() == ErrorKind::NotFound => disk.create(names::FLOOR_NEXT),
        found => found,
    };
    let file = file.map_err(failed)?;
    file.write_at(&encode(journal, floor), 0).map_err(failed)?;
    file.sync_data().map_err(failed)?;
    disk.rename(names::FLOOR_NEXT, names::FLOOR).map_err(failed)?;
    disk.sync_dir().map_err(failed)
}

/// Puts the file of the next floor there while there is room: raising the floor is what frees a full disk,
/// so it must not need any.
pub(crate) fn prepare(disk: &dyn Disk) {
    let made = match disk.open(names::FLOOR_NEXT) {
        Ok(file) if file.len().is_ok_and(|len| len >= BYTES as u64) => return,
        // An earlier try found no room for its bytes.
        Ok(file) => Ok(file),
        Err(_) => disk.create(names::FLOOR_NEXT),
    };
    if let Err(error) = made.and_then(|file| file.write_at(&[0; BYTES], 0).and_then(|()| file.sync_data())) {
        tracing::warn!(%error, "no room for the next floor of the journal");
    }
}

fn encode(journal: JournalId, floor: Position) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&u32::from(FORMAT).to_le_bytes());
    bytes[16..32].copy_from_slice(&journal.0);
    bytes[32..40].copy_from_slice(&floor.0.to_le_bytes());
    let sum = crc32c::crc32c(&bytes[..44]);
    bytes[44..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; BYTES]) -> Result<(JournalId, Position), Flaw> {
    if bytes[..8] != MAGIC {
        return Err(Flaw::Damaged("this is not a floor".to_owned()));
    }
    check_sum("floor", crc32c::crc32c(&bytes[..44]), u32_at(bytes, 44))?;
    let format = u32_at(bytes, 8);
    if format > u32::from(FORMAT) {
        return Err(Flaw::Newer(format));
    }
    let floor = Position(u64_at(bytes, 32));
    if floor.0 == u64::MAX {
        return Err(Flaw::Damaged(format!("nothing fits above a floor of {floor}")));
    }
    Ok((JournalId(id_at(bytes, 16)), floor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_above_which_nothing_fits_is_damage() {
        let read = |floor| decode(&encode(JournalId([1; 16]), Position(floor)));
        assert_eq!(read(7), Ok((JournalId([1; 16]), Position(7))));
        assert!(matches!(read(u64::MAX), Err(Flaw::Damaged(_))));
    }
}
