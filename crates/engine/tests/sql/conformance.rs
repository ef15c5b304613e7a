//! The suite, unchanged.

use std::sync::Arc;

use orchestrix_engine::sql::SqlPlace;
use orchestrix_engine::suite;
use orchestrix_engine::{Journal, Logs, Register, Shared};

use super::{Database, TIMEOUT, new_name};

/// A place that nobody has used: a domain of its own. The user has the rights that the page names for nodes.
fn place(database: &Database) -> impl Fn() -> Arc<dyn Shared> + use<> {
    let (url, domain) = (database.node_url(), new_name());
    move || Arc::new(SqlPlace::connect_to(&url, &domain, TIMEOUT).unwrap())
}

pub(crate) fn the_journal_keeps_its_contract(database: &Database) {
    suite::journal(&mut || place(database)().journal().unwrap());
}

pub(crate) fn snapshots_keep_their_contract(database: &Database) {
    suite::snapshots(&mut || -> Box<dyn Journal> { place(database)().journal().unwrap() });
    suite::a_snapshot_that_stands_on_no_batch_is_refused(&mut || place(database)().journal().unwrap());
}

/// A handle of the logs is a trait object behind an `Arc`; the suite wants a box.
struct Boxed(Arc<dyn Logs>);

impl Logs for Boxed {
    fn append(
        &self,
        at: orchestrix_engine::LogPlace,
        bytes: &[u8],
    ) -> Result<orchestrix_engine::Logged, orchestrix_engine::Error> {
        self.0.append(at, bytes)
    }

    fn read(
        &self,
        task: orchestrix_core::TaskId,
        skip: usize,
        limit_bytes: usize,
    ) -> Result<Vec<orchestrix_engine::LogChunk>, orchestrix_engine::Error> {
        self.0.read(task, skip, limit_bytes)
    }

    fn some_tasks(
        &self,
        from: orchestrix_engine::Bookmark,
        about: usize,
    ) -> Result<(Vec<orchestrix_core::TaskId>, Option<orchestrix_engine::Bookmark>), orchestrix_engine::Error>
    {
        self.0.some_tasks(from, about)
    }

    fn delete(&self, tasks: &[orchestrix_core::TaskId]) -> Result<(), orchestrix_engine::Error> {
        self.0.delete(tasks)
    }
}

pub(crate) fn logs_keep_their_contract(database: &Database) {
    suite::logs(&mut || Box::new(Boxed(place(database)().logs())));
}

pub(crate) fn the_register_keeps_its_contract(database: &Database) {
    suite::register(&mut |handles| -> Vec<Arc<dyn Register>> {
        let connect = place(database);
        (0..handles).map(|_| connect().register()).collect()
    });
}

pub(crate) fn several_nodes_keep_the_contract(database: &Database) {
    suite::shared(&mut || Box::new(place(database)));
}

/// Simulations have a model of this server; both say the same.
pub(crate) fn the_script_is_answered_as_written(database: &Database) {
    assert_eq!(suite::transcript(&place(database)), suite::SQL_ANSWERS);
}
