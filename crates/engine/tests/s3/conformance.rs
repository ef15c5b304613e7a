//! Everything that every engine must do.

use std::sync::Arc;

use orchestrix_core::TaskId;
use orchestrix_engine::{Bookmark, Error, LogChunk, LogPlace, Logged, Logs, Register, Shared, suite};

use crate::common::{PATIENT, journal, new_prefix, place, shared, shared_store};

/// All at once: those that race spend most of their time waiting for the locks of the store.
#[test]
fn the_store_does_what_every_engine_must_do() {
    let parts: [fn(); 5] = [
        || suite::journal(&mut || journal(&new_prefix())),
        || suite::snapshots(&mut || journal(&new_prefix())),
        || {
            suite::register(&mut |handles| {
                let prefix = new_prefix();
                (0..handles).map(|_| -> Arc<dyn Register> { shared(&prefix).register() }).collect()
            })
        },
        || {
            suite::shared(&mut || {
                let prefix = new_prefix();
                Box::new(move || shared(&prefix))
            })
        },
        || suite::logs(&mut || Box::new(Through(shared(&new_prefix()).logs()))),
    ];
    std::thread::scope(|scope| parts.iter().for_each(|part| drop(scope.spawn(part))));
}

/// Simulations have a model of this store; both say the same.
#[test]
fn the_script_is_answered_as_written() {
    let prefix = new_prefix();
    assert_eq!(suite::transcript(&|| shared(&prefix)), suite::S3_ANSWERS);
}

/// The suite wants a box.
struct Through(Arc<dyn Logs>);

impl Logs for Through {
    fn append(&self, at: LogPlace, bytes: &[u8]) -> Result<Logged, Error> {
        self.0.append(at, bytes)
    }

    fn read(&self, task: TaskId, skip: usize, limit_bytes: usize) -> Result<Vec<LogChunk>, Error> {
        self.0.read(task, skip, limit_bytes)
    }

    fn some_tasks(&self, from: Bookmark, about: usize) -> Result<(Vec<TaskId>, Option<Bookmark>), Error> {
        self.0.some_tasks(from, about)
    }

    fn delete(&self, tasks: &[TaskId]) -> Result<(), Error> {
        self.0.delete(tasks)
    }
}

#[test]
fn prefixes_do_not_see_each_other() {
    let outer = new_prefix();
    let inner = format!("{outer}/inner");
    let ids = [&outer, &inner].map(|prefix| journal(prefix).id());
    assert!(ids[0] != ids[1], "{ids:?}");
    assert_eq!(place(shared_store().s3, &outer, PATIENT).journal().unwrap().id(), ids[0]);
}
