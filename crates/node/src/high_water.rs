//! The highest that this node has seen of a journal, kept in its own folder: an engine that was wiped, rolled back
//! or exchanged is noticed, even by a node that was not running at that time.
//!
//! **Invariant:** a folder has one process that writes the mark. Two would take what the other has seen for their own.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use orchestrix_core::{Position, is_planted};
use orchestrix_engine::disk::{DiskLock, RealDisk};
use orchestrix_engine::{ChainHash, JournalId, Link, file};

use crate::open::Failure;

/// The name of the file.
const NAME: &str = "high-water";

/// The highest that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub journal: JournalId,
    pub link: Link,
    pub epoch: u64,
}

/// Keeps the mark in memory, and in a file if there is a folder.
#[derive(Clone)]
pub struct HighWater {
    inner: Arc<Inner>,
}

struct Inner {
    known: Mutex<Known>,
    /// Held while the file is written: two at once would leave half of each. `None` where there is no folder, or not
    /// any more.
    folder: Mutex<Option<Folder>>,
}

/// A folder that this process has for itself.
struct Folder {
    path: PathBuf,
    _lock: Arc<dyn DiskLock>,
}

#[derive(Default)]
struct Known {
    mark: Option<Mark>,
    /// What was seen, and may be lost.
    lost: Option<Position>,
    /// What the file says.
    written: Option<String>,
    /// The highest epoch that was seen, in any journal.
    epoch: u64,
}

impl Known {
    fn of(mark: Option<Mark>, lost: Option<Position>) -> Self {
        Self { mark, lost, written: None, epoch: mark.map_or(0, |mark| mark.epoch) }
    }
}

impl std::fmt::Debug for HighWater {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HighWater").field("mark", &self.mark()).finish_non_exhaustive()
    }
}

impl HighWater {
    /// Takes a folder for this process and reads its mark.
    ///
    /// # Errors
    /// When the folder cannot be used, another process has it, or the file is not one of ours.
    pub fn open(folder: PathBuf) -> Result<Self, Failure> {
        let unusable = |error| {
            let folder = folder.display();
            Failure::new(format!(
                "cannot use {folder} as the data folder: {error}; choose another with --data"
            ))
        };
        let disk = RealDisk::open(&folder).map_err(unusable)?;
        let lock = file::take_lock(&disk)?;
        let path = folder.join(NAME);
        let known = match fs::read_to_string(&path) {
            Ok(text) => parse(&text).ok_or_else(|| {
                let path = path.display();
                Failure::new(format!(
                    "{path} is damaged: it says how far this node has seen the journal; if you know that the engine has \
                     lost nothing, remove it"
                ))
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Known::default(),
            Err(error) => return Err(unusable(error)),
        };
        Ok(Self::keeping(Some(Folder { path, _lock: lock }), known))
    }

    /// Keeps the mark in memory only.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::keeping(None, Known::default())
    }

    /// Keeps the mark in memory only, beginning with what an earlier life has seen.
    #[must_use]
    pub fn remembering(mark: Option<Mark>) -> Self {
        Self::keeping(None, Known::of(mark, None))
    }

    fn keeping(folder: Option<Folder>, known: Known) -> Self {
        Self { inner: Arc::new(Inner { known: Mutex::new(known), folder: Mutex::new(folder) }) }
    }

    /// Unlocks the folder for the next start. Nothing is written after this.
    pub(crate) fn close(&self) {
        self.flush();
        self.folder().take();
    }

    fn folder(&self) -> MutexGuard<'_, Option<Folder>> {
        self.inner.folder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[must_use]
    pub fn mark(&self) -> Option<Mark> {
        self.lock().mark
    }

    /// The highest epoch that was seen. No term may have it again, not even on another journal.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    /// The operator accepts that data which this node has seen may be lost. New positions are above all seen ones; the
    /// epoch stays, because stores that fence old leaders must not see it twice.
    pub fn accept_loss(&self) {
        let mut known = self.lock();
        if is_planted("epoch-lost-with-data") {
            known.epoch = 0;
        }
        known.lost = known.mark.take().map(|mark| mark.link.position).max(known.lost);
    }

    /// What was seen before a loss that was accepted.
    pub(crate) fn lost(&self) -> Option<Position> {
        self.lock().lost
    }

    /// Takes in how far the journal is.
    pub(crate) fn saw(&self, journal: JournalId, link: Link, epoch: u64) {
        let mut known = self.lock();
        known.epoch = known.epoch.max(epoch);
        if known.mark.is_some_and(|mark| mark.link.position >= link.position) {
            return;
        }
        let mark = Mark { journal, link, epoch: known.epoch };
        known.mark = Some(mark);
        // Above all that was seen before the loss, nothing comes twice.
        known.lost = known.lost.filter(|lost| link.position <= *lost);
    }

    /// Writes the mark down, if the file does not have it. Not at every batch: what happens to the engine while nodes
    /// run is noticed without the file.
    pub(crate) fn flush(&self) {
        let folder = self.folder();
        let Some(Folder { path, .. }) = &*folder else { return };
        let text = {
            let known = self.lock();
            let Some(mark) = known.mark else { return };
            let text = text(&mark, known.lost);
            if known.written.as_ref() == Some(&text) {
                return;
            }
            text
        };
        match replace(path, &text) {
            Ok(()) => self.lock().written = Some(text),
            // The next one tries again: until then an older mark stands there, which notices less.
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "cannot store the position of this node")
            }
        }
    }

    /// Whether a journal can be the one that was seen.
    pub(crate) fn check_journal(&self, id: JournalId, end: Link, place: &str) -> Result<(), Failure> {
        let Some(mark) = self.mark().filter(|_| !is_planted("loss-unnoticed")) else { return Ok(()) };
        if mark.journal != id {
            return Err(lost(
                place,
                &format!("it has another journal ({id}) than this node has seen ({})", mark.journal),
            ));
        }
        if end.position < mark.link.position {
            let (end, seen) = (end.position, mark.link.position);
            return Err(lost(place, &format!("its journal ends at {end}, but this node has seen {seen}")));
        }
        Ok(())
    }

    /// Whether a batch can be part of what was seen.
    pub(crate) fn check_link(&self, link: Link, place: &str) -> Result<(), Failure> {
        let Some(mark) = self.mark().filter(|mark| mark.link.position == link.position) else {
            return Ok(());
        };
        if mark.link.hash == link.hash {
            return Ok(());
        }
        Err(other_history(link.position, place))
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.inner.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn other_history(position: Position, place: &str) -> Failure {
    lost(place, &format!("at position {position} it has another history than this node has seen"))
}

fn lost(place: &str, what: &str) -> Failure {
    Failure::new(format!(
        "{place} was wiped, rolled back or exchanged: {what}. Restore it; or give --accept-data-loss to every node, \
         once, and go on with what there is"
    ))
}

fn replace(path: &std::path::Path, text: &str) -> std::io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

fn text(mark: &Mark, lost: Option<Position>) -> String {
    let Mark { journal, link, epoch } = mark;
    let lost = lost.map(|lost| format!("lost {}\n", lost.0)).unwrap_or_default();
    format!("journal {journal}\nposition {}\nhash {}\nepoch {epoch}\n{lost}", link.position.0, link.hash)
}

fn parse(text: &str) -> Option<Known> {
    let mut lines = text.lines();
    let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
    let journal = JournalId(bytes(field("journal")?)?);
    let position = Position(field("position")?.parse().ok()?);
    let hash = ChainHash(bytes(field("hash")?)?);
    let epoch = field("epoch")?.parse().ok()?;
    let lost = match field("lost") {
        Some(lost) => Some(Position(lost.parse().ok()?)),
        None => None,
    };
    Some(Known::of(Some(Mark { journal, link: Link { position, hash }, epoch }), lost))
}

fn bytes(hexadecimal: &str) -> Option<[u8; 16]> {
    let mut bytes = [0; 16];
    hex::decode_to_slice(hexadecimal, &mut bytes).ok().map(|()| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(position: u64, hash: u8) -> Link {
        Link { position: Position(position), hash: ChainHash([hash; 16]) }
    }

    fn open(folder: &std::path::Path) -> HighWater {
        HighWater::open(folder.to_owned()).unwrap()
    }

    const JOURNAL: JournalId = JournalId([7; 16]);

    #[test]
    fn the_highest_is_kept_across_lives() {
        let folder = tempfile::tempdir().unwrap();
        let marks = open(folder.path());
        assert_eq!(marks.mark(), None);
        marks.saw(JOURNAL, link(5, 5), 3);
        marks.saw(JOURNAL, link(9, 9), 2);
        marks.saw(JOURNAL, link(4, 4), 4);
        marks.close();
        let mark = open(folder.path()).mark().unwrap();
        assert_eq!(mark, Mark { journal: JOURNAL, link: link(9, 9), epoch: 3 });
    }

    #[test]
    fn an_accepted_loss_is_remembered_until_it_is_passed() {
        let folder = tempfile::tempdir().unwrap();
        let marks = open(folder.path());
        marks.saw(JOURNAL, link(50, 5), 3);
        marks.accept_loss();
        // The journal that there is now is behind.
        marks.saw(JournalId([8; 16]), link(2, 2), 1);
        marks.close();
        let marks = open(folder.path());
        assert_eq!((marks.lost(), marks.epoch()), (Some(Position(50)), 3), "another life knows of it");
        marks.saw(JournalId([8; 16]), link(50, 6), 4);
        assert_eq!(marks.lost(), Some(Position(50)));
        marks.saw(JournalId([8; 16]), link(51, 7), 4);
        assert_eq!(marks.lost(), None);
        marks.close();
        assert_eq!(open(folder.path()).lost(), None);
    }

    #[test]
    fn a_folder_is_for_one_process_and_free_when_that_has_closed_it() {
        let folder = tempfile::tempdir().unwrap();
        let first = open(folder.path());
        let told = HighWater::open(folder.path().to_owned()).unwrap_err().to_string();
        let pid = std::process::id().to_string();
        assert!(
            told.contains(&pid)
                && told.contains("choose another data folder")
                && told.contains("another process"),
            "{told}"
        );
        first.saw(JOURNAL, link(9, 9), 1);
        first.close();
        let second = open(folder.path());
        assert_eq!(second.mark().map(|mark| mark.link), Some(link(9, 9)));
        second.saw(JOURNAL, link(12, 12), 1);
        second.close();
        // What still has a handle of the first leaves the file alone.
        first.saw(JOURNAL, link(10, 10), 1);
        first.flush();
        assert_eq!(open(folder.path()).mark().map(|mark| mark.link), Some(link(12, 12)));
    }

    #[test]
    fn less_or_something_else_is_refused_with_a_way_out() {
        let marks = HighWater::in_memory();
        marks.saw(JOURNAL, link(9, 9), 1);
        marks.check_journal(JOURNAL, link(9, 9), "here").unwrap();
        let told = |result: Result<(), Failure>| result.unwrap_err().to_string();
        let behind = told(marks.check_journal(JOURNAL, link(8, 8), "here"));
        assert!(
            behind.contains("ends at 8")
                && behind.contains("seen 9")
                && behind.contains("--accept-data-loss")
        );
        assert!(
            told(marks.check_journal(JournalId([8; 16]), link(9, 9), "here")).contains("another journal")
        );
        assert!(told(marks.check_link(link(9, 1), "here")).contains("another history"));
        marks.check_link(link(9, 9), "here").unwrap();
        marks.accept_loss();
        marks.check_journal(JournalId([8; 16]), link(0, 0), "here").unwrap();
        assert_eq!(marks.epoch(), 1, "a token is never used twice");
        marks.saw(JournalId([8; 16]), link(1, 1), 0);
        assert_eq!(marks.mark().map(|mark| mark.epoch), Some(1));
    }

    #[test]
    fn a_damaged_mark_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(NAME), "journal 07\n").unwrap();
        let told = HighWater::open(folder.path().to_owned()).unwrap_err().to_string();
        assert!(told.contains("high-water is damaged"), "{told}");
    }
}
