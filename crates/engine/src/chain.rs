//! The chain: how the hash of a batch covers everything before it.
//!
//! **Invariant:** the same batches in the same journal give the same links on every engine.

use blake3::Hasher;
use orchestrix_core::{Position, Term};

use crate::{Batch, ChainHash, JournalId, Link};

/// The largest batch, in bytes of its records. Bounds what a reader must hold in memory at once.
pub const BATCH_BYTES_MAX: usize = 64 << 20;

/// A batch whose records are somewhere else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRef<'a> {
    pub previous: Link,
    pub term: Term,
    pub count: u32,
    pub records: &'a [u8],
}

impl BatchRef<'_> {
    /// The position of the last event of this batch.
    #[must_use]
    pub fn last(&self) -> Position {
        Position(self.previous.position.0 + u64::from(self.count))
    }

    /// The end of a journal that ends with this batch.
    #[must_use]
    pub fn link(&self, journal: JournalId) -> Link {
        let mut head = [0; 52];
        head[..16].copy_from_slice(&journal.0);
        head[16..32].copy_from_slice(&self.previous.hash.0);
        head[32..40].copy_from_slice(&self.term.0.to_le_bytes());
        head[40..48].copy_from_slice(&self.previous.position.next().0.to_le_bytes());
        head[48..].copy_from_slice(&self.count.to_le_bytes());
        let hash = Hasher::new().update(&head).update(self.records).finalize();
        let mut first = [0; 16];
        first.copy_from_slice(&hash.as_bytes()[..16]);
        Link { position: self.last(), hash: ChainHash(first) }
    }

    #[must_use]
    pub fn to_batch(&self) -> Batch {
        Batch { previous: self.previous, term: self.term, count: self.count, records: self.records.to_vec() }
    }
}

impl Batch {
    #[must_use]
    pub fn as_ref(&self) -> BatchRef<'_> {
        BatchRef { previous: self.previous, term: self.term, count: self.count, records: &self.records }
    }

    /// The end of a journal that ends with this batch.
    #[must_use]
    pub fn link(&self, journal: JournalId) -> Link {
        self.as_ref().link(journal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_batch_changes_its_hash() {
        let batch = Batch { previous: Link::default(), term: Term(1), count: 2, records: b"ab".to_vec() };
        let id = JournalId([1; 16]);
        let other = |change: &dyn Fn(&mut Batch)| {
            let mut changed = batch.clone();
            change(&mut changed);
            changed.link(id).hash
        };
        let hashes = [
            batch.link(id).hash,
            batch.link(JournalId([2; 16])).hash,
            other(&|batch| batch.term = Term(2)),
            other(&|batch| batch.count = 3),
            other(&|batch| batch.records.push(0)),
            other(&|batch| batch.previous.position = Position(1)),
            other(&|batch| batch.previous.hash = ChainHash([1; 16])),
        ];
        let distinct: std::collections::BTreeSet<_> = hashes.iter().collect();
        assert_eq!(distinct.len(), hashes.len());
    }
}
