//! Tests of output whose parts are stored twice, stored by others, or damaged.

mod gaps;

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use orchestrix_engine::disk::Disk;
use orchestrix_engine::disk::sim::SimDisk;
use orchestrix_engine::file::FileLogs;
use orchestrix_engine::memory::MemoryLogs;

use super::*;
use orchestrix_core::LeaseId;
use orchestrix_engine::{Bookmark, Cause, Link, LogChunk, SystemClock};

use crate::write_guard::LeaderLease;

const TASK: TaskId = TaskId(1);

fn logs(engine: impl Logs + 'static) -> TaskLogs {
    under(engine, WriteGuard::default())
}

fn under(engine: impl Logs + 'static, guard: WriteGuard) -> TaskLogs {
    TaskLogs::new(
        Arc::new(engine),
        &Options::default(),
        Arc::new(SystemClock),
        Arc::default(),
        guard,
        Calls::Threads,
    )
}

fn lines(offset: u64, texts: &[&str]) -> LogAppend {
    let line = |text: &&str| LogText { text: (*text).to_owned(), stream: LogStream::Stdout };
    LogAppend {
        lease_id: LeaseId(2),
        lines: texts.iter().map(line).collect(),
        offset: Some(offset),
        skipped: 0,
    }
}

async fn texts(logs: &TaskLogs) -> Vec<String> {
    let page = logs.read(TASK, 0, 10, None).await.unwrap();
    assert!((0..).zip(&page.lines).all(|(n, line)| n == line.n), "{page:?}");
    page.lines.into_iter().map(|line| line.text).collect()
}

#[tokio::test]
async fn an_uncounted_chunk_is_counted_with_its_repeat() {
    let engine = MemoryLogs::default();
    let (logs, before) = (logs(engine.clone()), logs(engine));
    assert!(texts(&logs).await.is_empty());
    before.append(TASK, 1, lines(0, &["one", "two"])).await.unwrap();
    assert_eq!(logs.append(TASK, 1, lines(0, &["one", "two"])).await.unwrap().next, 2);
    logs.append(TASK, 1, lines(2, &["three"])).await.unwrap();
    assert_eq!(texts(&logs).await, ["one", "two", "three"]);
}

#[tokio::test]
async fn lines_that_are_partly_stored_are_stored_to_the_end() {
    let engine = MemoryLogs::default();
    let (logs, before) = (logs(engine.clone()), logs(engine));
    assert!(texts(&logs).await.is_empty());
    before.append(TASK, 1, lines(0, &["one", "two"])).await.unwrap();
    assert_eq!(logs.append(TASK, 1, lines(0, &["one", "two", "three"])).await.unwrap().next, 3);
    assert_eq!(texts(&logs).await, ["one", "two", "three"]);
}

#[tokio::test]
async fn an_unreadable_part_keeps_its_place() {
    let engine = MemoryLogs::default();
    logs(engine.clone()).append(TASK, 1, lines(0, &["one"])).await.unwrap();
    engine.append(LogPlace::nth(TASK, LeaseId(2), 1), b"?").unwrap();
    let logs = logs(engine);
    logs.append(TASK, 1, lines(1, &["two"])).await.unwrap_err();
    assert_eq!(texts(&logs).await, ["one", MISSING]);
    let unnumbered = LogAppend { offset: None, ..lines(0, &["three"]) };
    assert_eq!(logs.append(TASK, 1, unnumbered).await.unwrap().next, 3);
    assert_eq!(texts(&logs).await, ["one", MISSING, "three"]);
}

#[tokio::test]
async fn unreadable_output_is_one_gap_for_each_part() {
    let engine = MemoryLogs::default();
    engine.append(LogPlace::first(TASK, LeaseId(2)), b"?").unwrap();
    engine.append(LogPlace { offset: 5, ..LogPlace::nth(TASK, LeaseId(2), 1) }, b"?").unwrap();
    let logs = logs(engine);
    assert_eq!(texts(&logs).await, [MISSING, MISSING]);
    assert!(logs.read(TASK, 0, 10, None).await.unwrap().lines[0].at > Timestamp(0));
}

#[tokio::test]
async fn a_part_that_was_damaged_is_read_once_it_was_sent_again() {
    let disk = SimDisk::new(1);
    let open = || FileLogs::open_with(Arc::new(disk.clone()), 300).unwrap();
    let before = logs(open());
    before.append(TASK, 1, lines(0, &["one"])).await.unwrap();
    before.append(TASK, 1, lines(1, &["two", "three"])).await.unwrap();
    for task in 2..9 {
        before.append(TaskId(task), 1, lines(0, &["other"])).await.unwrap();
    }
    drop(before);
    let name = disk.list().unwrap().into_iter().find(|name| name.ends_with(".chunks")).unwrap();
    let bytes = disk.bytes(&name).unwrap();
    disk.rot(&name, bytes.windows(3).position(|bytes| bytes == b"two").unwrap(), 1);

    let after = logs(open());
    assert_eq!(texts(&after).await, ["one", MISSING]);
    let appended = after.append(TASK, 1, lines(1, &["two", "three"])).await.unwrap();
    assert_eq!((appended.next, appended.dropped), (3, 0));
    after.append(TASK, 1, lines(3, &["four"])).await.unwrap();
    assert_eq!(texts(&after).await, ["one", "two", "three", "four"]);
    drop(after);
    assert_eq!(texts(&logs(open())).await, ["one", "two", "three", "four"]);
}

/// Output in memory on an engine that stores and then says nothing, or says nothing at all, as often as told.
#[derive(Default)]
struct Mute {
    logs: MemoryLogs,
    after_storing: AtomicU32,
    before_reading: AtomicU32,
}

impl Mute {
    fn speaks(left: &AtomicU32) -> Result<(), orchestrix_engine::Error> {
        let spent = left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        if spent.is_err() {
            return Ok(());
        }
        let source = Cause::Remote { place: "far away".to_owned(), what: "no answer".to_owned() };
        Err(orchestrix_engine::Error { operation: "use it".to_owned(), retryable: true, source })
    }
}

impl Logs for Mute {
    fn append(&self, at: LogPlace, bytes: &[u8]) -> Result<Logged, orchestrix_engine::Error> {
        let logged = self.logs.append(at, bytes)?;
        Self::speaks(&self.after_storing).map(|()| logged)
    }

    fn read(
        &self,
        task: TaskId,
        skip: usize,
        limit_bytes: usize,
    ) -> Result<Vec<LogChunk>, orchestrix_engine::Error> {
        Self::speaks(&self.before_reading)?;
        self.logs.read(task, skip, limit_bytes)
    }

    fn some_tasks(
        &self,
        from: Bookmark,
        about: usize,
    ) -> Result<(Vec<TaskId>, Option<Bookmark>), orchestrix_engine::Error> {
        self.logs.some_tasks(from, about)
    }

    fn delete(&self, tasks: &[TaskId]) -> Result<(), orchestrix_engine::Error> {
        self.logs.delete(tasks)
    }
}

#[tokio::test]
async fn a_repeat_resolves_what_a_silent_engine_left_unknown() {
    let logs = logs(Mute { after_storing: AtomicU32::new(1), ..Mute::default() });
    let unknown = logs.append(TASK, 1, lines(0, &["one"])).await.unwrap_err();
    assert_eq!(unknown, Error::OutcomeUnknown);
    assert_eq!(texts(&logs).await, ["one"], "what is stored is read, whoever knows of it");
    assert_eq!(logs.append(TASK, 1, lines(0, &["one"])).await.unwrap().next, 1);
    logs.append(TASK, 1, lines(1, &["two"])).await.unwrap();
    assert_eq!(texts(&logs).await, ["one", "two"]);
}

#[tokio::test]
async fn an_engine_that_cannot_be_read_now_can_be_asked_again() {
    let logs = logs(Mute { before_reading: AtomicU32::new(2), ..Mute::default() });
    assert_eq!(logs.read(TASK, 0, 10, None).await.unwrap_err(), Error::Unavailable);
    let unsent = logs.append(TASK, 1, lines(0, &["one"])).await.unwrap_err();
    assert_eq!(unsent, Error::Unavailable, "nothing was stored: it was not even known what is there");
    logs.append(TASK, 1, lines(0, &["one"])).await.unwrap();
    assert_eq!(texts(&logs).await, ["one"]);
}

fn of_lease(lease: u64, offset: u64, texts: &[&str]) -> LogAppend {
    LogAppend { lease_id: LeaseId(lease), ..lines(offset, texts) }
}

#[tokio::test]
async fn a_late_append_of_another_leader_hides_no_lines() {
    let engine = MemoryLogs::default();
    let (leader, deposed) = (logs(engine.clone()), logs(engine.clone()));
    for logs in [&deposed, &leader] {
        assert!(texts(logs).await.is_empty());
    }
    // It lands after the present leader has counted, under a lease that is over.
    deposed.append(TASK, 1, of_lease(2, 0, &["late"])).await.unwrap();
    leader.append(TASK, 2, of_lease(3, 0, &["one", "two"])).await.unwrap();
    assert_eq!(texts(&leader).await, ["late", "one", "two"]);
    leader.append(TASK, 2, of_lease(3, 2, &["three"])).await.unwrap();
    assert_eq!(texts(&leader).await, ["late", "one", "two", "three"]);
    assert_eq!(texts(&logs(engine)).await, ["late", "one", "two", "three"], "and so says the next leader");
}

#[tokio::test]
async fn an_append_that_lands_after_others_is_not_stored() {
    let engine = MemoryLogs::default();
    let (leader, deposed) = (logs(engine.clone()), logs(engine.clone()));
    assert!(texts(&deposed).await.is_empty());
    leader.append(TASK, 2, of_lease(3, 0, &["one"])).await.unwrap();
    let late = LogPlace::first(TASK, LeaseId(2));
    assert_eq!(engine.append(late, b"sent before").unwrap(), Logged::Conflict);
    assert_eq!(texts(&leader).await, ["one"]);
    // A deposed leader that is asked counts again, and what it stores moves nothing.
    deposed.append(TASK, 1, of_lease(2, 0, &["late"])).await.unwrap();
    assert_eq!(texts(&leader).await, ["one"]);
    leader.append(TASK, 2, of_lease(3, 1, &["two"])).await.unwrap();
    assert_eq!(texts(&leader).await, ["one", "late", "two"]);
}

/// A leader lease that ends when a test says so.
#[derive(Default)]
struct Ending(AtomicU32);

impl LeaderLease for Ending {
    fn holds(&self) -> bool {
        self.0.load(SeqCst) == 0
    }

    fn prove(&self, _: Link) {}
}

#[tokio::test]
async fn lines_stored_after_the_end_of_a_term_are_not_acknowledged() {
    let (engine, lease) = (MemoryLogs::default(), Arc::new(Ending::default()));
    let deposed =
        under(engine.clone(), WriteGuard { leader_lease: Some(lease.clone()), ..WriteGuard::default() });
    deposed.append(TASK, 1, lines(0, &["one"])).await.unwrap();
    let leader = logs(engine.clone());
    assert_eq!(texts(&leader).await, ["one"]);
    lease.0.store(1, SeqCst);
    for _ in 0..2 {
        // The present leader has counted before, and does not show it.
        assert_eq!(deposed.append(TASK, 1, lines(1, &["two"])).await.unwrap_err(), Error::OutcomeUnknown);
    }
    assert_eq!(leader.append(TASK, 1, lines(1, &["two", "three"])).await.unwrap().next, 3);
    assert_eq!(texts(&leader).await, ["one", "two", "three"]);
}
