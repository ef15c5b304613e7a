//! The tables, and their version.

use std::path::PathBuf;

use crate::{Cause, Error};

use super::fault::Failure;
use super::server::{Column, Value};
use super::session::Session;

/// The version of the tables that this program makes and knows.
const VERSION: i64 = 1;

/// How often to try when others make the same tables at the same time.
const TRIES: usize = 20;

/// Makes the tables if they are not there, together with whoever else does. Newer ones are refused.
pub(super) fn prepare(session: &Session) -> Result<(), Error> {
    let doing = "prepare the tables";
    let failed = |failure: Failure| failure.error(session.home(), doing);
    let mut last = None;
    for _ in 0..TRIES {
        if let Some(found) = version(session).map_err(failed)? {
            return check(session, found);
        }
        // Two servers at once may both find nothing and one of them a table that has just been made.
        match make(session) {
            Ok(()) | Err(Failure::Duplicate) => {}
            Err(failure) => last = Some(failure),
        }
    }
    Err(failed(last.unwrap_or(Failure::Busy("others are making the tables".to_owned()))))
}

fn check(session: &Session, found: i64) -> Result<(), Error> {
    if found <= VERSION {
        return Ok(());
    }
    let path = PathBuf::from(format!("{}/orchestrix_schema", session.home().address.place()));
    let number = |version| u32::try_from(version).unwrap_or(u32::MAX);
    let source = Cause::UnknownFormat { path, found: number(found), known: number(VERSION) };
    Err(Error { operation: "prepare the tables".to_owned(), retryable: false, source })
}

fn version(session: &Session) -> Result<Option<i64>, Failure> {
    let statements = session.home().server.statements();
    let there = session.rows(statements.has_schema, &[Column::Int], &[])?;
    if there.into_iter().next().is_none_or(|mut row| row.int() == 0) {
        return Ok(None);
    }
    let asked = "SELECT version FROM orchestrix_schema WHERE name = 'orchestrix'";
    let found = session.rows(asked, &[Column::Int], &[])?;
    Ok(found.into_iter().next().map(|mut row| row.int()))
}

fn make(session: &Session) -> Result<(), Failure> {
    for table in session.home().server.statements().tables {
        session.execute(table, &[])?;
    }
    // Last: whoever reads a version finds all tables.
    let note = "INSERT INTO orchestrix_schema (name, version) VALUES ('orchestrix', ?)";
    session.execute(note, &[Value::Int(VERSION)]).map(|_| ())
}
