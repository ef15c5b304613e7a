//! Checks a data folder without changing it.
//!
//! No lock is taken, so a journal in use can be looked at too. It goes on meanwhile: files come and go, and what was read first
//! may be older than what was read last. What looks like damage then is looked at again.
//!
//! **Invariant:** nothing is created, changed or removed.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orchestrix_core::Position;

use super::segment::{Segment, Step, Walk};
use super::snapshot::SnapshotStore;
use super::{floor, names};
use crate::disk::{Disk, RealDisk};
use crate::fault::{damaged, invalid, io_error};
use crate::{Batch, Cause, Error, JournalId, Link, Snapshots};

const DOING: &str = "verify journal segment";
/// How often a journal in use is looked at, as long as each look finds something else wrong.
const LOOKS_MAX: u32 = 5;

/// What is in a data folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The process that has the journal now, if there is one.
    pub holder: Option<String>,
    pub journal: Option<JournalId>,
    /// All up to here was dropped.
    pub floor: Position,
    /// The last batch before the first damage.
    pub end: Link,
    pub segments: u64,
    pub batches: u64,
    pub events: u64,
    pub marks: u64,
    /// Bytes of records.
    pub bytes: u64,
    /// Up to here the files themselves say that all is durable.
    pub durable: Position,
    /// What a start would cut off.
    pub torn: Option<Damage>,
    /// What keeps a start from going on.
    pub damage: Option<Damage>,
    /// Newest first.
    pub snapshots: Vec<SnapshotReport>,
}

impl Report {
    /// Whether a start would find all that was ever durable, and a snapshot to start from if one is needed.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let startable = self.floor == Position(0)
            || self.snapshots.iter().any(|snapshot| snapshot.damage.is_none() && snapshot.at >= self.floor);
        self.damage.is_none() && startable
    }
}

/// A place where bytes are not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    pub path: PathBuf,
    pub offset: u64,
    /// What was expected, and what is there.
    pub what: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotReport {
    pub at: Position,
    pub damage: Option<Damage>,
}

/// Reads all of a data folder and says what is in it. Damage is part of the report.
///
/// # Errors
/// When the folder cannot be read, or has a format that this version does not know.
pub fn verify(folder: &Path) -> Result<Report, Error> {
    let disk = RealDisk::open_to_read(folder).map_err(|error| {
        let operation = "read the journal".to_owned();
        Error { operation, retryable: false, source: Cause::Io(error) }
    })?;
    verify_disk(&(Arc::new(disk) as Arc<dyn Disk>))
}

/// As [`verify`], on any disk.
///
/// # Errors
/// As [`verify`].
pub fn verify_disk(disk: &Arc<dyn Disk>) -> Result<Report, Error> {
    let mut before = None;
    for _ in 1..LOOKS_MAX {
        let outcome = look(disk);
        let doubt = doubt(&outcome);
        // Damage stays where it is; what only was written meanwhile does not.
        if doubt.is_none() || doubt == before {
            return outcome;
        }
        before = doubt;
    }
    look(disk)
}

/// What may look wrong only because a process goes on writing, if something does.
fn doubt(outcome: &Result<Report, Error>) -> Option<String> {
    match outcome {
        Ok(report) if report.holder.is_some() => {
            let bad: Vec<_> =
                report.snapshots.iter().filter_map(|snapshot| snapshot.damage.as_ref()).collect();
            let is_well = report.is_sound() && bad.is_empty();
            (!is_well).then(|| format!("{:?} {bad:?}", report.damage))
        }
        Ok(_) => None,
        // A segment or a snapshot was dropped after it was listed.
        Err(Error { operation, source: Cause::Io(error), .. }) if error.kind() == ErrorKind::NotFound => {
            Some(format!("{operation}: {error}"))
        }
        Err(_) => None,
    }
}

fn look(disk: &Arc<dyn Disk>) -> Result<Report, Error> {
    let holder = disk.holder(names::LOCK).map_err(|error| io_error(&**disk, "read", names::LOCK, error))?;
    let mut report = Report { holder, ..Report::default() };
    report.damage = note(verify_segments(disk, &mut report))?;
    if let Some(id) = report.journal {
        let snapshots = SnapshotStore::new(Arc::clone(disk), id, None);
        for at in snapshots.list()? {
            let damage = note(snapshots.check(at))?;
            report.snapshots.push(SnapshotReport { at, damage });
        }
    }
    judge_end(&mut report, &**disk);
    Ok(report)
}

/// All batches of a data folder in order, read one by one, without a lock.
#[derive(Debug)]
pub struct Batches {
    disk: Arc<dyn Disk>,
    names: std::vec::IntoIter<String>,
    walk: Option<Walk>,
    done: bool,
}

impl Batches {
    /// # Errors
    /// When the folder cannot be listed, or its floor not be read.
    pub fn open(disk: Arc<dyn Disk>) -> Result<Self, Error> {
        let floor = floor::read(&*disk)?.map_or(Position(0), |(_, floor)| floor);
        let names = segment_names(&*disk, floor)?.into_iter();
        Ok(Self { disk, names, walk: None, done: false })
    }

    fn next_batch(&mut self) -> Result<Option<Batch>, Error> {
        loop {
            if let Some(walk) = &mut self.walk {
                match walk.step()? {
                    Step::Batch { batch, .. } => return Ok(Some(batch.to_batch())),
                    Step::Mark => continue,
                    Step::Tail(_) => {}
                }
            }
            let Some(name) = self.names.next() else { return Ok(None) };
            let (segment, walk) = self.open_next(&name)?;
            if let Some(before) = self.walk.take() {
                check_link(&*self.disk, &before, &segment)?;
            }
            self.walk = Some(walk);
        }
    }

    /// Opens a segment that was listed. A process that goes on may have dropped it meanwhile.
    fn open_next(&self, name: &str) -> Result<(Segment, Walk), Error> {
        let opened = Segment::open(&*self.disk, name)
            .and_then(|segment| segment.walk(&self.disk).map(|walk| (segment, walk)));
        opened.map_err(|error| match (&error.source, floor::read(&*self.disk)) {
            (Cause::Io(missing), Ok(Some((_, floor))))
                if missing.kind() == ErrorKind::NotFound && names::segment_position(name) <= Some(floor) =>
            {
                let what = format!("the events up to {floor} were dropped meanwhile; read it again");
                invalid("read the journal", what)
            }
            _ => error,
        })
    }
}

impl Iterator for Batches {
    type Item = Result<Batch, Error>;

    /// The first damage is the last item.
    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let next = self.next_batch();
        self.done = !matches!(next, Ok(Some(_)));
        next.transpose()
    }
}

fn verify_segments(disk: &Arc<dyn Disk>, report: &mut Report) -> Result<(), Error> {
    let floor = floor::read(&**disk)?;
    report.floor = floor.map_or(Position(0), |(_, floor)| floor);
    let mut before: Option<Walk> = None;
    for name in segment_names(&**disk, report.floor)? {
        let segment = Segment::open(&**disk, &name)?;
        let header = segment.header;
        let id = *report.journal.get_or_insert(header.journal);
        if header.journal != id || floor.is_some_and(|(of, _)| of != id) {
            let what = format!("it belongs to journal {}, expected {id}", header.journal);
            return Err(damaged(&**disk, DOING, &name, 16, what));
        }
        match &before {
            Some(before) => check_link(&**disk, before, &segment)?,
            None if header.follows.position > report.floor => {
                let what = format!("the segment with position {} is missing", report.floor.next());
                return Err(damaged(&**disk, DOING, &name, 0, what));
            }
            None => {}
        }
        let mut walk = segment.walk(disk)?;
        report.segments += 1;
        let why = count(&mut walk, report)?;
        let tail = walk.tail()?;
        report.durable = report.durable.max(tail.durable.map_or(Position(0), |(durable, _)| durable));
        report.torn = (tail.bytes > 0).then(|| Damage {
            path: disk.path(&name),
            offset: walk.offset,
            what: format!("{why}; {} bytes behind the last whole frame", tail.bytes),
        });
        before = Some(walk);
    }
    Ok(())
}

/// Counts the frames of a segment; answers why it ended.
fn count(walk: &mut Walk, report: &mut Report) -> Result<String, Error> {
    loop {
        match walk.step()? {
            Step::Batch { batch, link, .. } => {
                report.batches += 1;
                report.events += u64::from(batch.count);
                report.bytes += batch.records.len() as u64;
                report.end = link;
            }
            Step::Mark => report.marks += 1,
            Step::Tail(why) => {
                report.end = walk.end;
                report.durable = report.durable.max(walk.durable);
                return Ok(why);
            }
        }
    }
}

/// A torn end is damage if anything says that more than what is whole was durable.
fn judge_end(report: &mut Report, disk: &dyn Disk) {
    let newest = report.snapshots.iter().find(|snapshot| snapshot.damage.is_none());
    let most = report.durable.max(report.floor).max(newest.map_or(Position(0), |snapshot| snapshot.at));
    if report.damage.is_none() && most > report.end.position {
        let what = format!("all up to {most} was durable, but the journal ends at {}", report.end.position);
        let damage = report.torn.take().map(|torn| Damage { what: format!("{}; {what}", torn.what), ..torn });
        report.damage = Some(damage.unwrap_or(Damage { path: disk.path(""), offset: 0, what }));
    }
}

fn check_link(disk: &dyn Disk, before: &Walk, segment: &Segment) -> Result<(), Error> {
    if before.end == segment.header.follows {
        return Ok(());
    }
    let what = format!(
        "the last whole frame before ends at {:?}, but {} follows {:?}",
        before.end, segment.name, segment.header.follows
    );
    Err(damaged(disk, DOING, before.name(), before.offset, what))
}

/// The segments that a start would look at.
fn segment_names(disk: &dyn Disk, floor: Position) -> Result<Vec<String>, Error> {
    let mut all = disk.list().map_err(|error| io_error(disk, "list", "the data folder", error))?;
    all.retain(|name| names::segment_position(name).is_some());
    let needless = names::first_needed(&all, floor).unwrap_or(0);
    Ok(all.split_off(needless))
}

/// Damage is a finding; everything else is an error.
fn note(outcome: Result<(), Error>) -> Result<Option<Damage>, Error> {
    match outcome {
        Ok(()) => Ok(None),
        Err(Error { source: Cause::Damaged { path, offset, what }, .. }) => {
            Ok(Some(Damage { path, offset, what }))
        }
        Err(error) => Err(error),
    }
}
