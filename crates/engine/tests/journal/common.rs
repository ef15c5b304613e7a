//! A stand-in for the node: a state that is the fold of the journal, its snapshots, and how it starts.

use std::sync::Arc;

use orchestrix_core::{Position, Term};
use orchestrix_engine::disk::Disk;
use orchestrix_engine::disk::sim::SimDisk;
use orchestrix_engine::file::{FileJournal, Options, Prepare};
use orchestrix_engine::{Appended, Batch, Error, Journal, Link};

pub(crate) const SMALL: Options = Options { segment_bytes: Some(1024), prepare: Prepare::Inline };

/// What makes a snapshot longer.
const FILLER: u8 = 0x5a;

/// Depends on every byte of every batch, and on their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) link: Link,
    pub(crate) fold: u64,
}

impl State {
    pub(crate) fn apply(&mut self, records: &[u8], link: Link) {
        for byte in records {
            self.fold = (self.fold ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(5);
        }
        self.fold = self.fold.wrapping_add(1);
        self.link = link;
    }

    fn encode(&self) -> [u8; 8] {
        self.fold.to_le_bytes()
    }
}

/// A journal, and the state that its events amount to.
pub(crate) struct Node {
    pub(crate) journal: FileJournal,
    pub(crate) state: State,
    /// How many snapshots could not be used at the start.
    pub(crate) bad_snapshots: usize,
}

impl Node {
    /// Starts as a node does: newest snapshot that is whole, then all that follows.
    pub(crate) fn start(disk: Arc<dyn Disk>, options: Options) -> Result<Self, Error> {
        let opening = FileJournal::start(disk, options)?;
        let id = opening.id();
        let mut state = State::default();
        let mut bad_snapshots = 0;
        for at in opening.snapshots().list()? {
            match load(&opening, at) {
                Ok(loaded) => {
                    state = loaded;
                    break;
                }
                Err(_) => bad_snapshots += 1,
            }
        }
        let journal = opening.replay(state.link, |batch| -> Result<(), Error> {
            state.apply(batch.records, batch.link(id));
            Ok(())
        })?;
        assert_eq!(journal.end(), state.link, "the journal ends with what was replayed");
        Ok(Self { journal, state, bad_snapshots })
    }

    pub(crate) fn append(&mut self, batch: &Batch) -> Result<Link, Error> {
        match self.journal.append(batch)? {
            Appended::Done(link) => {
                self.state.apply(&batch.records, link);
                Ok(link)
            }
            other @ (Appended::Conflict(_) | Appended::Unknown) => {
                panic!("a batch after the end is done, not {other:?}")
            }
        }
    }

    pub(crate) fn snapshot(&self) -> Result<(), Error> {
        self.snapshot_of(0)
    }

    /// A snapshot that is longer than it needs to be.
    pub(crate) fn snapshot_of(&self, more: usize) -> Result<(), Error> {
        let mut writer = self.journal.snapshots().create(self.state.link)?;
        writer.chunk(&self.state.encode()[..3])?;
        writer.chunk(&self.state.encode()[3..])?;
        for part in vec![FILLER; more].chunks(500) {
            writer.chunk(part)?;
        }
        writer.finish()
    }
}

fn load(opening: &orchestrix_engine::file::Opening, at: Position) -> Result<State, Error> {
    let mut reader = opening.snapshots().open(at)?;
    let mut bytes = Vec::new();
    while let Some(chunk) = reader.next()? {
        bytes.extend(chunk);
    }
    let (fold, more) = bytes.split_first_chunk().expect("a whole snapshot has eight bytes");
    assert!(more.iter().all(|byte| *byte == FILLER), "what is read is what was written");
    let fold = u64::from_le_bytes(*fold);
    Ok(State { link: reader.link(), fold })
}

/// The states that one history goes through, from none to all of its batches.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) batches: Vec<Batch>,
    pub(crate) states: Vec<State>,
}

impl History {
    pub(crate) fn new() -> Self {
        Self { batches: Vec::new(), states: vec![State::default()] }
    }

    /// The next batch, which the caller tries to append.
    pub(crate) fn next(&mut self, journal: &FileJournal, count: u32, bytes: usize) -> Batch {
        let number = self.batches.len();
        let records = (0..bytes).map(|at| ((at * 7 + number * 13) % 251) as u8 + 1).collect();
        let batch = Batch { previous: journal.end(), term: Term(1), count, records };
        let mut state = self.states[number];
        state.apply(&batch.records, batch.link(journal.id()));
        self.batches.push(batch.clone());
        self.states.push(state);
        batch
    }

    /// How many batches led to a state; a state that never was is a violation.
    pub(crate) fn reached(&self, state: &State) -> usize {
        self.states.iter().position(|known| known == state).expect("recovery gives a state that once was")
    }
}

/// Appends batches of changing length; the last `rest` is up to the caller.
pub(crate) fn fill(node: &mut Node, history: &mut History, batches: usize) {
    for _ in 0..batches {
        let number = history.batches.len();
        let batch = history.next(&node.journal, 1 + (number % 3) as u32, 20 + number * 17 % 90);
        node.append(&batch).expect("a disk without faults takes a batch");
    }
}

/// The names of the files of a kind.
pub(crate) fn names(disk: &SimDisk, ending: &str) -> Vec<String> {
    disk.list().unwrap().into_iter().filter(|name| name.ends_with(ending)).collect()
}
