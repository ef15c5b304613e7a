//! The form of a snapshot: a header, then the section of each entity. Indexes are made anew.
//!
//! The first chunk is the header: CBOR. Every other chunk is a sequence of `length u32` (little-endian) and
//! that many bytes of CBOR, the items of the sections one after the other, which never cross a chunk. The header says
//! how many items each section has: of services and of keys of purged tasks in fields of their own, of every entity
//! that came later under its tag, if it has any. Tasks come last.
//!
//! A snapshot is taken while the state goes on changing: exact at one position, in steps of bounded length. Each
//! entity sees to that for its section.

use std::collections::VecDeque;

use minicbor::{Decode, Encode};
use sha2::{Digest, Sha256};

use crate::entity::Moment;
use crate::event::FORMAT;
use crate::limits::ID_MAX;
use crate::shards::Promises;
use crate::{Position, State, TaskId, Term, Timestamp};

/// The format of snapshots that every version reads.
const PLAIN: u8 = 1;
/// The format of snapshots with keys of purged tasks. The first one has these among the tasks.
pub(crate) const WITH_KEYS: u8 = 2;
/// The format of snapshots with tagged sections, and the newest that this version knows.
pub(crate) const WITH_TAGS: u8 = 3;

/// What a state is besides its items.
#[derive(Debug, Encode, Decode)]
pub(crate) struct Header {
    /// The format of this snapshot.
    #[n(0)]
    pub(crate) snapshot: u8,
    #[n(1)]
    pub(crate) position: Position,
    #[n(2)]
    pub(crate) at: Timestamp,
    #[n(3)]
    pub(crate) term: Term,
    #[n(4)]
    pub(crate) epoch: u64,
    #[n(5)]
    pub(crate) format: u8,
    /// How many services there are.
    #[n(6)]
    pub(crate) services: Option<usize>,
    /// How many keys of purged tasks there are.
    #[n(7)]
    pub(crate) keys: Option<usize>,
    #[n(8)]
    pub(crate) promises: Option<Promises>,
    /// The sections of all other entities but tasks.
    #[n(9)]
    pub(crate) tagged: Option<Vec<Tagged>>,
}

/// How many items an entity has.
#[derive(Clone, Copy, Debug, Encode, Decode)]
pub(crate) struct Tagged {
    #[n(0)]
    tag: u8,
    #[n(1)]
    items: usize,
}

impl Header {
    pub(crate) fn of(state: &State) -> Self {
        let mut header = Self {
            snapshot: PLAIN,
            position: state.position,
            at: state.at,
            term: state.term,
            epoch: state.epoch,
            format: state.format,
            services: None,
            keys: None,
            promises: None,
            tagged: None,
        };
        state.sections().into_iter().for_each(|section| section.announce(&mut header));
        // As low as it can be: the version before reads what has nothing new in it.
        if header.tagged.is_some() {
            header.snapshot = WITH_TAGS;
        } else if header.keys.is_some() {
            header.snapshot = WITH_KEYS;
        }
        header
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        minicbor::to_vec(self).expect("writing to memory cannot fail")
    }

    /// Announces a tagged section. One without items is not there.
    pub(crate) fn announce(&mut self, tag: u8, items: usize) {
        if items > 0 {
            self.tagged.get_or_insert_default().push(Tagged { tag, items });
        }
    }

    /// How many items a tagged section has. An unknown section is of a newer version.
    pub(crate) fn take(&mut self, tag: u8) -> usize {
        let tagged = self.tagged.iter_mut().flat_map(|tagged| tagged.extract_if(.., |one| one.tag == tag));
        tagged.map(|one| one.items).sum()
    }
}

/// The part of a snapshot that belongs to one entity: items in an order of its own.
pub(crate) trait Section {
    /// Says in the header what it has.
    fn announce(&self, header: &mut Header);

    /// Takes from the header of a snapshot what was announced. Answers how many items are to come; all that come if
    /// nothing says it.
    fn expect(&mut self, header: &mut Header) -> Option<usize>;

    /// Takes its next item, from a snapshot that was taken here.
    fn load(&mut self, item: &[u8], here: Moment) -> Result<(), SnapshotError>;

    /// There are no more items.
    fn finish(&mut self) -> Result<(), SnapshotError> {
        Ok(())
    }

    /// Writes down all items as they are now, each in a piece of its own.
    fn each_item(&self, write: &mut dyn FnMut(&[u8]));

    /// From here on it may change: what is written later is what it is now.
    fn begin_capture(&mut self, here: Moment);

    /// Writes some more items to `chunk`, within `room`.
    fn step_capture(&mut self, room: Room, chunk: &mut Vec<u8>) -> Step;

    /// The capture is over, or given up.
    fn end_capture(&mut self);
}

/// How much one step of a capture may write: so many items, and about so many bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) items: usize,
    pub(crate) bytes: usize,
}

/// Whether the step of a section ends the chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It does: there is more, or the chunk is full.
    Full,
    /// The section is written, and the next may follow in the same chunk.
    Done,
}

/// The items of a section that is small enough to be written down at once.
#[derive(Debug, Default)]
pub(crate) struct Written(VecDeque<Vec<u8>>);

impl Written {
    pub(crate) fn all(section: &dyn Section) -> Self {
        let mut items = Vec::new();
        section.each_item(&mut |item| items.push(item.to_vec()));
        Self::of(items)
    }

    pub(crate) fn of(items: Vec<Vec<u8>>) -> Self {
        Self(VecDeque::from(items))
    }

    pub(crate) fn step(&mut self, room: Room, chunk: &mut Vec<u8>) -> Step {
        while let Some(item) = self.0.front() {
            // A large one has a chunk of its own.
            if !chunk.is_empty() && chunk.len() + item.len() > room.bytes {
                return Step::Full;
            }
            chunk.extend_from_slice(item);
            self.0.pop_front();
        }
        Step::Done
    }
}

/// Appends an item as it stands in a chunk.
pub(crate) fn encode_item(item: impl Encode<()>, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    minicbor::encode(item, &mut *out).expect("writing to memory cannot fail");
    let length = u32::try_from(out.len() - start - 4).expect("an item is far smaller than 4 GiB");
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

impl State {
    /// Begins a capture at the present position; answers its first chunk.
    ///
    /// # Panics
    /// When one is under way already.
    pub fn begin_capture(&mut self) -> Vec<u8> {
        assert!(!self.capturing, "one capture at a time");
        self.capturing = true;
        let (header, here) = (Header::of(self).encode(), self.here());
        self.sections_mut().into_iter().for_each(|section| section.begin_capture(here));
        header
    }

    #[must_use]
    pub fn is_capturing(&self) -> bool {
        self.capturing
    }

    /// Writes some more items to `chunk`, at most so many `items` and about `bytes` bytes. Answers whether there are more.
    pub fn step_capture(&mut self, items: usize, bytes: usize, chunk: &mut Vec<u8>) -> bool {
        if !self.capturing {
            return false;
        }
        let room = Room { items, bytes };
        if self.sections_mut().into_iter().any(|section| section.step_capture(room, chunk) == Step::Full) {
            return true;
        }
        self.end_capture();
        false
    }

    /// Gives the capture up.
    pub fn end_capture(&mut self) {
        self.capturing = false;
        self.sections_mut().into_iter().for_each(Section::end_capture);
    }

    /// Sixteen bytes that are equal for equal states.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 16] {
        let mut digest = Sha256::new();
        digest.update(Header::of(self).encode());
        self.sections().into_iter().for_each(|section| section.each_item(&mut |item| digest.update(item)));
        let mut fingerprint = [0; 16];
        fingerprint.copy_from_slice(&digest.finalize()[..16]);
        fingerprint
    }
}

/// Builds a state from the chunks of a snapshot.
#[derive(Debug)]
pub struct SnapshotLoader {
    state: Option<State>,
    /// Items of each section that are still to come.
    left: Vec<Option<usize>>,
    /// The newest format of a journal whose snapshots are loaded.
    newest: u8,
}

impl Default for SnapshotLoader {
    fn default() -> Self {
        Self::up_to(FORMAT)
    }
}

impl SnapshotLoader {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Loads as a version does whose newest format is this.
    #[must_use]
    pub fn up_to(format: u8) -> Self {
        Self { state: None, left: Vec::new(), newest: format }
    }

    /// Takes the next chunk.
    ///
    /// # Errors
    /// When it is not a chunk that follows here.
    pub fn load(&mut self, chunk: &[u8]) -> Result<(), SnapshotError> {
        let Some(state) = &mut self.state else { return self.begin(minicbor::decode(chunk)?) };
        let (here, mut sections) = (state.here(), state.sections_mut());
        let mut rest = chunk;
        while !rest.is_empty() {
            let (length, after) = rest.split_at_checked(4).ok_or(SnapshotError::Short)?;
            let length = u32::from_le_bytes(length.try_into().expect("four bytes"));
            let length = usize::try_from(length).expect("an address has at least 32 bits");
            let (item, after) = after.split_at_checked(length).ok_or(SnapshotError::Short)?;
            let next = self.left.iter().position(|left| *left != Some(0)).ok_or(SnapshotError::Order)?;
            self.left[next] = self.left[next].map(|left| left - 1);
            sections[next].load(item, here)?;
            rest = after;
        }
        Ok(())
    }

    fn begin(&mut self, mut header: Header) -> Result<(), SnapshotError> {
        let mut state = state_of(&header, self.newest)?;
        self.left = state.sections_mut().into_iter().map(|section| section.expect(&mut header)).collect();
        if let Some(unknown) = header.tagged.iter().flatten().next() {
            return Err(SnapshotError::UnknownSection(unknown.tag));
        }
        self.state = Some(state);
        Ok(())
    }

    /// The whole state.
    ///
    /// # Errors
    /// When there was not even a header, or some items are missing.
    pub fn finish(self) -> Result<State, SnapshotError> {
        let whole = self.left.iter().all(|left| left.is_none_or(|left| left == 0));
        let mut state = self.state.filter(|_| whole).ok_or(SnapshotError::Short)?;
        state.sections_mut().into_iter().try_for_each(Section::finish)?;
        if !state.ownership.has_just(state.tasks.leases_of_bus()) {
            return Err(SnapshotError::ImpossibleOwner("other leases have owners than are of the bus"));
        }
        Ok(state)
    }
}

fn state_of(header: &Header, newest: u8) -> Result<State, SnapshotError> {
    if header.snapshot > WITH_TAGS {
        return Err(SnapshotError::UnknownFormat(header.snapshot));
    }
    if header.format > newest {
        return Err(SnapshotError::UnknownRecords { found: header.format, newest });
    }
    let Header { position, at, term, epoch, format, .. } = *header;
    if position.0 > ID_MAX || epoch == u64::MAX {
        return Err(SnapshotError::Last(position, epoch));
    }
    Ok(State { position, at, term, epoch, format, ..State::default() })
}

/// Why a snapshot cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("the snapshot ends too early")]
    Short,
    #[error("the snapshot has format {0}, this version reads up to {WITH_TAGS}; use a newer version")]
    UnknownFormat(u8),
    #[error(
        "the snapshot is of a journal of format {found}, this version reads up to {newest}; use a newer version"
    )]
    UnknownRecords { found: u8, newest: u8 },
    #[error("the snapshot has a section {0}, which this version does not know; use a newer version")]
    UnknownSection(u8),
    #[error("the snapshot has an item out of order")]
    Order,
    #[error("the snapshot is at position {0} of epoch {1}, after which nothing can follow")]
    Last(Position, u64),
    #[error("the snapshot has task {0}, which cannot be: {1}")]
    Impossible(TaskId, &'static str),
    #[error("the snapshot has an owner that cannot be: {0}")]
    ImpossibleOwner(&'static str),
    #[error("the snapshot has a service that cannot be: {0}")]
    ImpossibleService(&'static str),
    #[error("the snapshot is not readable: {0}")]
    Body(#[from] minicbor::decode::Error),
}
