//! A folder that the engine wrote, and changes of it that an input spells out.

use std::collections::BTreeMap;

use orchestrix_engine::disk::sim::SimDisk;

use crate::seal::seal;
use crate::source::Source;

/// Changes of one input. Bounds its time.
const EDITS_MAX: usize = 32;
/// Bytes that one change may add to a file.
const GROWTH_BYTES_MAX: usize = 4096;

/// The files of a folder, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Folder {
    pub(crate) files: BTreeMap<String, Vec<u8>>,
}

/// Whether what is in a folder can still be told from what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Changed bytes have the checksums of others.
    Checksums,
    /// Checksums were put right: anything may be in it.
    Nothing,
}

impl Folder {
    /// All that is on a disk, except for locks.
    pub(crate) fn of(disk: &SimDisk, names: impl IntoIterator<Item = String>) -> Self {
        let files = names.into_iter().filter(|name| !name.ends_with("lock"));
        Self { files: files.filter_map(|name| Some((name.clone(), disk.bytes(&name)?))).collect() }
    }

    pub(crate) fn disk(&self) -> SimDisk {
        let disk = SimDisk::new(1);
        for (name, bytes) in &self.files {
            disk.put(name, bytes.clone());
        }
        disk
    }

    /// Changes the folder as the input says.
    pub(crate) fn edit(&mut self, source: &mut Source<'_>) -> Trust {
        let mut trust = Trust::Checksums;
        for _ in 0..EDITS_MAX {
            if source.is_empty() || self.files.is_empty() {
                break;
            }
            let (how, which) = (source.byte(), source.below(self.files.len()));
            let name = self.files.keys().nth(which).cloned().unwrap_or_default();
            self.edit_file(&name, how & 0x7f, source);
            if how & 0x80 != 0 {
                trust = Trust::Nothing;
                if let Some(bytes) = self.files.get_mut(&name) {
                    seal(&name, bytes);
                }
            }
        }
        trust
    }

    fn edit_file(&mut self, name: &str, how: u8, source: &mut Source<'_>) {
        let bytes = self.files.get_mut(name).expect("the name came from the list");
        let at = source.below(bytes.len().max(257));
        let at = at.min(bytes.len());
        match how % 10 {
            0 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= source.byte()),
            1 => overwrite(bytes, at, source.take(8)),
            2 => {
                let length = 1 + source.below(64);
                overwrite(bytes, at, source.take(length));
            }
            3 => bytes.truncate(at),
            4 => bytes.resize((bytes.len() + source.below(GROWTH_BYTES_MAX)).max(at), 0),
            5 => drop(self.files.remove(name)),
            6 => {
                let length = usize::from(source.byte()) + 1;
                let copied = bytes[at..(at + length).min(bytes.len())].to_vec();
                let to = source.below(bytes.len().max(257)) & !7;
                overwrite(bytes, to, &copied);
            }
            7 => {
                let bytes = bytes.clone();
                self.files.insert(renamed(name, source.number::<8>()), bytes);
            }
            8 => {
                let bytes = self.files.remove(name).unwrap_or_default();
                self.files.insert(renamed(name, source.number::<2>()), bytes);
            }
            _ => *bytes = source.rest().to_vec(),
        }
    }
}

fn overwrite(bytes: &mut [u8], at: usize, with: &[u8]) {
    for (byte, with) in bytes.iter_mut().skip(at).zip(with) {
        *byte = *with;
    }
}

/// The same kind of file with another number in its name.
fn renamed(name: &str, number: u64) -> String {
    let Some(first) = name.find(|c: char| c.is_ascii_digit()) else { return name.to_owned() };
    let rest = name[first..].trim_start_matches(|c: char| c.is_ascii_digit());
    format!("{}{number:020}{rest}", &name[..first])
}
