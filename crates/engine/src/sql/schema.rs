//! The tables, and their version.
//!
//! The first node to start upgrades tables of an older version, alone: in one transaction for each version
//! under an advisory lock on PostgreSQL, under a named lock on MySQL, which commits every change of a table by itself.
//!
//! **Invariant:** the version is written last, so a reader of a version finds all of its tables. Every statement here does
//! no harm when it was done before: what was broken off is done again.

use std::path::PathBuf;

use crate::{Cause, Error};

use super::fault::Failure;
use super::server::{Column, Connection, Statements, Value};
use super::session::Session;

const DOING: &str = "prepare the tables";

/// Makes the tables if they are not there, and brings older ones up to date. Newer ones are refused. `patient` is for
/// changes of tables, which may take longer than any other call.
pub(super) fn prepare(session: &Session, patient: &Session) -> Result<(), Error> {
    let statements = session.home().server.statements();
    let failed = |failure: Failure| failure.error(session.home(), DOING);
    let found = session.together(async |connection| version(connection, statements).await).map_err(failed)?;
    match found {
        Some(found) if found == newest(statements) => Ok(()),
        Some(found) if found > newest(statements) => Err(newer(session, found)),
        Some(_) | None => {
            patient.together(async |connection| alone(connection, statements).await).map_err(failed)
        }
    }
}

/// The version of the tables that this program makes and knows.
fn newest(statements: &Statements) -> i64 {
    1 + i64::try_from(statements.upgrades.len()).unwrap_or(i64::MAX - 1)
}

fn newer(session: &Session, found: i64) -> Error {
    let path = PathBuf::from(format!("{}/orchestrix_schema", session.home().address.place()));
    let number = |version| u32::try_from(version).unwrap_or(u32::MAX);
    let known = number(newest(session.home().server.statements()));
    let source = Cause::UnknownFormat { path, found: number(found), known };
    Error { operation: DOING.to_owned(), retryable: false, source }
}

async fn version(connection: &mut Connection, statements: &Statements) -> Result<Option<i64>, Failure> {
    let there = connection.rows(statements.has_schema, &[], &[Column::Int]).await?;
    if there.into_iter().next().is_none_or(|mut row| row.int() == 0) {
        return Ok(None);
    }
    let asked = "SELECT version FROM orchestrix_schema WHERE name = 'orchestrix'";
    let found = connection.rows(asked, &[], &[Column::Int]).await?;
    Ok(found.into_iter().next().map(|mut row| row.int()))
}

/// Brings the tables up to date, one version after the other: what a step has locked is free before the next one begins.
async fn alone(connection: &mut Connection, statements: &Statements) -> Result<(), Failure> {
    loop {
        for statement in statements.schema_begin {
            connection.execute(statement, &[]).await?;
        }
        let done = raise(connection, statements).await;
        let end = if done.is_ok() { statements.schema_end } else { statements.schema_undo };
        connection.execute(end, &[]).await?;
        if done? >= newest(statements) {
            return Ok(());
        }
    }
}

/// Makes the tables, or upgrades them to the next version, under a lock. Returns their version after that.
async fn raise(connection: &mut Connection, statements: &Statements) -> Result<i64, Failure> {
    let locked = connection.rows(statements.schema_lock, &[], &[Column::Int]).await?;
    if locked.into_iter().next().is_none_or(|mut row| row.int() != 1) {
        return Err(Failure::Busy("another node is changing the tables".to_owned()));
    }
    // Another node may have done this meanwhile.
    let found = version(connection, statements).await?;
    let known = newest(statements);
    if let Some(found) = found.filter(|found| *found >= known) {
        return Ok(found);
    }
    // Only what is missing: what a statement locks, it locks though it changes nothing.
    let (made, steps, note) = match found {
        // New tables are as upgraded ones; only those that were half made need the steps.
        None => {
            for table in statements.tables {
                connection.execute(table, &[]).await?;
            }
            (
                known,
                statements.upgrades,
                "INSERT INTO orchestrix_schema (version, name) VALUES (?, 'orchestrix')",
            )
        }
        Some(found) => {
            let done = usize::try_from(found - 1).unwrap_or(0);
            let next = statements.upgrades.get(done..=done).unwrap_or_default();
            (found + 1, next, "UPDATE orchestrix_schema SET version = ? WHERE name = 'orchestrix'")
        }
    };
    for statement in steps.iter().copied().flatten() {
        match connection.execute(statement, &[]).await {
            // It was done before, by a server that cannot be asked to do it only if it was not.
            Ok(_) | Err(Failure::Duplicate) => {}
            Err(failure) => return Err(failure),
        }
    }
    connection.execute(note, &[Value::Int(made)]).await?;
    Ok(made)
}
