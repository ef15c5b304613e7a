//! All disks that a loss of power could leave.

use std::collections::BTreeSet;

use super::SimDisk;
use crate::disk::Disk;

impl SimDisk {
    /// Calls `with` for every disk that a loss of power could leave, if there are at most `most` choices of what
    /// had become durable, else for `sampled` of them. Equal disks are shown once. Answers whether this was all.
    pub fn each_crash(&self, most: usize, sampled: u64, mut with: impl FnMut(Self)) -> Covered {
        let mut known = BTreeSet::new();
        let mut show = |disk: Self| {
            if known.insert(disk.fingerprint()) {
                with(disk);
            }
        };
        if self.pending() <= most.ilog2() as usize && self.has_at_most(most) {
            self.each_choice(&mut |disk| {
                show(disk);
                true
            });
            return Covered::All;
        }
        show(self.crash(&mut || true));
        show(self.crash(&mut || false));
        for seed in 2..sampled.max(2) {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            show(self.crash(&mut || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state & 0x100 != 0
            }));
        }
        Covered::Some
    }

    /// The same for disks with the same files.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for name in self.list().unwrap_or_default() {
            let bytes = self.bytes(&name).unwrap_or_default();
            hasher.update(name.as_bytes()).update(&[0]);
            hasher.update(&(bytes.len() as u64).to_le_bytes()).update(&bytes);
        }
        *hasher.finalize().as_bytes()
    }

    /// Whether there are at most so many choices. Which files are asked about depends on the names that were
    /// kept, so [`SimDisk::pending`] alone does not say it.
    fn has_at_most(&self, most: usize) -> bool {
        let mut choices = 0;
        self.each_choice(&mut |_| {
            choices += 1;
            choices <= most
        });
        choices <= most
    }

    /// Goes through all choices, like counting in binary, until `with` says that it is enough.
    fn each_choice(&self, with: &mut dyn FnMut(Self) -> bool) {
        let mut path: Vec<bool> = Vec::new();
        loop {
            let mut asked = 0;
            let disk = self.crash(&mut || {
                if asked == path.len() {
                    path.push(false);
                }
                asked += 1;
                path[asked - 1]
            });
            path.truncate(asked);
            if !with(disk) {
                return;
            }
            while path.pop_if(|kept| *kept).is_some() {}
            match path.last_mut() {
                Some(kept) => *kept = true,
                None => return,
            }
        }
    }
}

/// Whether all that a loss of power could leave was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Covered {
    All,
    Some,
}
