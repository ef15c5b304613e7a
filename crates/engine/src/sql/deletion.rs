//! Deletes batches below the floor beside appends, which would else wait for it: a server may take longer to delete what
//! one snapshot covers than to append hundreds of batches.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use orchestrix_core::Position;

use super::Home;
use super::fault::Failure;
use super::journal::int;
use super::server::{Column, Value};
use super::session::Session;

/// The most rows that one statement deletes. Bounds how long it holds its locks.
const ROWS_MAX: i64 = 256;

/// What deletes for one handle of a journal. It continues when the handle is dropped: data below a floor cannot be read.
#[derive(Debug, Default)]
pub(super) struct Deletion(Option<JoinHandle<()>>);

impl Deletion {
    /// Begins to delete what is below the floor, unless it is at it: the next truncation takes what is left.
    pub(super) fn begin(&mut self, home: &Arc<Home>, floor: Position) {
        if self.0.as_ref().is_some_and(|at_it| !at_it.is_finished()) {
            return;
        }
        let home = Arc::clone(home);
        let delete = move || {
            if let Err(failure) = delete_below(&home, floor) {
                let error = failure.error(&home, "delete batches below the floor");
                tracing::warn!(%error, "they stay until the next truncation");
            }
        };
        match thread::Builder::new().name("orchestrix-delete".to_owned()).spawn(delete) {
            Ok(begun) => self.0 = Some(begun),
            Err(error) => {
                tracing::warn!(%error, "no thread to delete batches; they stay until the next truncation")
            }
        }
    }
}

fn delete_below(home: &Arc<Home>, floor: Position) -> Result<(), Failure> {
    let (session, domain) = (Session::new(home), Value::Text(&home.domain));
    let listing = "SELECT last_position FROM orchestrix_batches
        WHERE domain = ? AND last_position < ? ORDER BY last_position LIMIT ?";
    // A replica that took over may not know the floor, and needs the batches below it.
    let delete = "DELETE FROM orchestrix_batches WHERE domain = ? AND last_position <= ?
        AND EXISTS (SELECT 1 FROM orchestrix_journals j WHERE j.domain = ? AND j.floor_position >= ?)";
    loop {
        let values = [domain, Value::Int(int(floor)), Value::Int(ROWS_MAX)];
        let rows = session.rows(listing, &[Column::Int], &values)?;
        let Some(to) = rows.into_iter().next_back().map(|mut row| row.int()) else { return Ok(()) };
        let floor = Value::Int(int(floor));
        if session.execute(delete, &[domain, Value::Int(to), domain, floor])? == 0 {
            return Ok(());
        }
    }
}
