//! What every store of task logs must do.

use std::collections::BTreeSet;

use orchestrix_core::{LeaseId, TaskId};

use crate::{Bookmark, LogChunk, LogPlace, Logged, Logs};

/// Makes a new, empty store of logs.
pub type MakeLogs<'a> = &'a mut dyn FnMut() -> Box<dyn Logs>;

/// All sentences about logs.
pub fn logs(make: MakeLogs<'_>) {
    chunks_are_read_in_the_order_in_which_they_were_stored(make);
    a_chunk_is_stored_once(make);
    tasks_do_not_see_each_other(make);
    a_log_read_respects_its_limit_but_gives_at_least_one(make);
    a_deleted_log_is_gone_and_can_begin_again(make);
    a_walk_names_every_task_that_has_lines_all_the_while(make);
    concurrent_appends_are_all_kept(make);
    an_append_behind_other_chunks_than_are_there_is_refused(make);
    of_two_appends_with_one_number_one_is_stored(make);
}

fn store(logs: &dyn Logs, task: u64, lease: u64, offset: u64, bytes: &[u8]) -> Logged {
    let at = LogPlace { task: TaskId(task), number: count(logs, task), lease: LeaseId(lease), offset };
    logs.append(at, bytes).expect("a chunk is stored")
}

/// How many chunks of a task there are.
fn count(logs: &dyn Logs, task: u64) -> usize {
    let mut count = 0;
    loop {
        match read(logs, task, count, 1 << 20).len() {
            0 => return count,
            more => count += more,
        }
    }
}

fn read(logs: &dyn Logs, task: u64, skip: usize, limit: usize) -> Vec<LogChunk> {
    logs.read(TaskId(task), skip, limit).expect("a log is read")
}

fn tasks(logs: &dyn Logs) -> Vec<TaskId> {
    logs.tasks().expect("tasks are listed")
}

fn chunk(lease: u64, offset: u64, bytes: &[u8]) -> LogChunk {
    LogChunk { lease: LeaseId(lease), offset, bytes: bytes.to_vec() }
}

pub fn chunks_are_read_in_the_order_in_which_they_were_stored(make: MakeLogs<'_>) {
    let logs = make();
    store(&*logs, 1, 5, 3, b"second lines");
    store(&*logs, 1, 5, 0, b"first lines");
    store(&*logs, 1, 4, 0, b"");
    let expected = [chunk(5, 3, b"second lines"), chunk(5, 0, b"first lines"), chunk(4, 0, b"")];
    assert_eq!(read(&*logs, 1, 0, 1 << 20), expected);
    assert_eq!(read(&*logs, 1, 2, 1 << 20), expected[2..]);
    assert_eq!(read(&*logs, 1, 3, 1 << 20), []);
    assert_eq!(read(&*logs, 1, 99, 1 << 20), []);
}

pub fn a_chunk_is_stored_once(make: MakeLogs<'_>) {
    let logs = make();
    assert_eq!(store(&*logs, 1, 5, 0, b"a"), Logged::Stored);
    assert_eq!(store(&*logs, 1, 5, 0, b"a"), Logged::Existed);
    assert_eq!(store(&*logs, 1, 5, 0, b"other"), Logged::Existed);
    assert_eq!(store(&*logs, 1, 6, 0, b"b"), Logged::Stored);
    assert_eq!(read(&*logs, 1, 0, 1 << 20), [chunk(5, 0, b"a"), chunk(6, 0, b"b")]);
}

pub fn tasks_do_not_see_each_other(make: MakeLogs<'_>) {
    let logs = make();
    store(&*logs, 1, 5, 0, b"of one");
    store(&*logs, 2, 5, 0, b"of two");
    assert_eq!(read(&*logs, 1, 0, 1 << 20), [chunk(5, 0, b"of one")]);
    assert_eq!(read(&*logs, 2, 0, 1 << 20), [chunk(5, 0, b"of two")]);
    assert_eq!(read(&*logs, 3, 0, 1 << 20), []);
}

pub fn a_log_read_respects_its_limit_but_gives_at_least_one(make: MakeLogs<'_>) {
    let logs = make();
    for offset in 0..5 {
        store(&*logs, 1, 5, offset, &[b'x'; 100]);
    }
    for (limit, expected) in [(0, 1), (100, 1), (299, 2), (300, 3), (1 << 20, 5)] {
        assert_eq!(read(&*logs, 1, 0, limit).len(), expected, "with a limit of {limit}");
    }
}

pub fn a_deleted_log_is_gone_and_can_begin_again(make: MakeLogs<'_>) {
    let logs = make();
    store(&*logs, 1, 5, 0, b"old");
    store(&*logs, 2, 5, 0, b"kept");
    logs.delete(&[TaskId(1), TaskId(7)]).expect("logs are deleted");
    assert_eq!(read(&*logs, 1, 0, 1 << 20), []);
    assert_eq!(read(&*logs, 2, 0, 1 << 20), [chunk(5, 0, b"kept")]);
    assert_eq!(tasks(&*logs), [TaskId(2)]);
    assert_eq!(store(&*logs, 1, 9, 0, b"new"), Logged::Stored);
    assert_eq!(read(&*logs, 1, 0, 1 << 20), [chunk(9, 0, b"new")]);
    // All at once, beyond the limit of one message of an engine.
    let many = [100, 101, 199, 200, 1_099, 1_100, 1_101];
    many.iter().for_each(|task| assert_eq!(store(&*logs, *task, 5, 0, b"line"), Logged::Stored));
    logs.delete(&(100..=1_100).map(TaskId).collect::<Vec<_>>()).expect("logs are deleted");
    assert_eq!(tasks(&*logs), [TaskId(1), TaskId(2), TaskId(1_101)]);
    logs.delete(&[]).expect("nothing is deleted");
}

pub fn a_walk_names_every_task_that_has_lines_all_the_while(make: MakeLogs<'_>) {
    let logs = make();
    assert_eq!(tasks(&*logs), []);
    let ids = [3, 4, 7, 11, 12, u64::from(u32::MAX) + 5];
    for task in ids {
        for offset in 0..3 {
            assert_eq!(store(&*logs, task, 20, offset, b"line"), Logged::Stored);
        }
    }
    assert_eq!(tasks(&*logs), ids.map(TaskId));
    for about in [1, 2, ids.len(), ids.len() + 1] {
        let (mut named, mut from) = (BTreeSet::new(), Some(Bookmark::default()));
        while let Some(bookmark) = from {
            let (some, next) = logs.some_tasks(bookmark, about).expect("tasks are listed");
            assert!(some.len() <= ids.len(), "nothing else is there: {some:?}");
            // What is deleted on the way hides nothing that comes after.
            logs.delete(&[TaskId(4)]).expect("logs are deleted");
            named.extend(some);
            from = next;
        }
        for task in ids {
            assert!(task == 4 || named.contains(&TaskId(task)), "{task} is missing, {about} at a time");
        }
        store(&*logs, 4, 20, 0, b"line");
    }
}

pub fn concurrent_appends_are_all_kept(make: MakeLogs<'_>) {
    let logs = make();
    std::thread::scope(|scope| {
        for task in 1..=4 {
            let logs = &*logs;
            scope.spawn(move || {
                for offset in 0..25 {
                    assert_eq!(store(logs, task, 5, offset, &task.to_le_bytes()), Logged::Stored);
                }
            });
        }
    });
    for task in 1..=4 {
        let offsets: Vec<_> = read(&*logs, task, 0, 1 << 20).iter().map(|chunk| chunk.offset).collect();
        assert_eq!(offsets, (0..25).collect::<Vec<_>>());
    }
}

pub fn an_append_behind_other_chunks_than_are_there_is_refused(make: MakeLogs<'_>) {
    let logs = make();
    let append = |number, lease, offset| {
        let at = LogPlace { task: TaskId(1), number, lease: LeaseId(lease), offset };
        logs.append(at, &[u8::try_from(lease).expect("a small number")]).expect("it is answered")
    };
    assert_eq!(append(1, 5, 0), Logged::Conflict, "there is none before it");
    assert_eq!(tasks(&*logs), [], "nothing is left of it");
    assert_eq!(append(0, 5, 0), Logged::Stored);
    assert_eq!(append(1, 6, 0), Logged::Stored);
    for number in [0, 1, 3] {
        assert_eq!(append(number, 7, 0), Logged::Conflict, "two are there, not {number}");
    }
    assert_eq!(append(0, 6, 0), Logged::Existed, "a repeat is a repeat wherever it comes");
    assert_eq!(append(9, 5, 0), Logged::Existed);
    assert_eq!(append(2, 7, 0), Logged::Stored);
    let expected = [chunk(5, 0, &[5]), chunk(6, 0, &[6]), chunk(7, 0, &[7])];
    assert_eq!(read(&*logs, 1, 0, 1 << 20), expected);
    logs.delete(&[TaskId(1)]).expect("logs are deleted");
    assert_eq!(append(3, 8, 0), Logged::Conflict, "a late one finds nothing of what it follows");
    assert_eq!(append(0, 8, 0), Logged::Stored);
    assert_eq!(read(&*logs, 1, 0, 1 << 20), [chunk(8, 0, &[8])]);
}

pub fn of_two_appends_with_one_number_one_is_stored(make: MakeLogs<'_>) {
    let logs = make();
    for number in 0..20 {
        let append = |lease| {
            let at = LogPlace { task: TaskId(1), number, lease: LeaseId(lease), offset: number as u64 };
            logs.append(at, b"line").expect("it is answered")
        };
        let stored = std::thread::scope(|scope| {
            let racing: Vec<_> = (5..8).map(|lease| scope.spawn(move || append(lease))).collect();
            racing.into_iter().map(|one| one.join().expect("nobody panics")).collect::<Vec<_>>()
        });
        let count = |wanted| stored.iter().filter(|logged| **logged == wanted).count();
        assert_eq!((count(Logged::Stored), count(Logged::Conflict)), (1, 2), "{stored:?}");
        assert_eq!(read(&*logs, 1, number, 1 << 20).len(), 1);
    }
}
