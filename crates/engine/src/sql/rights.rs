//! Whether the user may do what the engine does, asked before anything is written.
//!
//! A node that lacks a right would start, lead, and fail at its first append. So a user that lacks one is refused at the
//! start. Later a right that is withdrawn is a refusal that may pass.

use crate::{Cause, Error};

use super::address::Kind;
use super::fault::{Failure, refuse};
use super::server::Column;
use super::session::Session;

const DOING: &str = "check the rights of the user";

/// Every right, the tables that it is needed for, and a statement that needs it and touches no row.
const RIGHTS: [(&str, &[&str], &str); 4] = [
    (
        "SELECT",
        &[
            "orchestrix_schema",
            "orchestrix_journals",
            "orchestrix_batches",
            "orchestrix_snapshots",
            "orchestrix_chunks",
            "orchestrix_logs",
            "helix_locks",
        ],
        "SELECT COUNT(*) FROM # WHERE 1 = 0",
    ),
    (
        "INSERT",
        &[
            "orchestrix_journals",
            "orchestrix_batches",
            "orchestrix_snapshots",
            "orchestrix_chunks",
            "orchestrix_logs",
            "helix_locks",
        ],
        "INSERT INTO # SELECT * FROM # WHERE 1 = 0",
    ),
    (
        "UPDATE",
        &["orchestrix_journals", "orchestrix_snapshots", "orchestrix_logs", "helix_locks"],
        "UPDATE # SET @ = @ WHERE 1 = 0",
    ),
    (
        "DELETE",
        &[
            "orchestrix_batches",
            "orchestrix_snapshots",
            "orchestrix_chunks",
            "orchestrix_logs",
            "helix_locks",
        ],
        "DELETE FROM # WHERE 1 = 0",
    ),
];

/// How the servers say that a right is missing: to a database, a table or a column.
const DENIED: [&str; 4] = ["(error 1044)", "(error 1142)", "(error 1143)", "(error 42501)"];

/// Refuses a user that lacks a right to a table. Tables that are not there yet are made by their user.
pub(super) fn check(session: &Session) -> Result<(), Error> {
    let missing = match session.home().address.kind {
        Kind::MySql => tried(session),
        Kind::Postgres => asked(session),
    };
    let missing = missing.map_err(|failure| failure.error(session.home(), DOING))?;
    let of = |right: &str| {
        let places: Vec<_> =
            missing.iter().filter(|(it, _)| it == right).map(|(_, place)| &**place).collect();
        (!places.is_empty()).then(|| format!("{right} on {}", places.join(", ")))
    };
    let lacks: Vec<_> =
        ["SELECT", "INSERT", "UPDATE", "DELETE", "USAGE"].into_iter().filter_map(of).collect();
    if lacks.is_empty() {
        return Ok(());
    }
    let what = format!("the user lacks {}; {} has all rights", lacks.join("; "), page(session));
    Err(refuse(DOING, session.home().address.place(), what))
}

/// An error of a server that denies a right, with the page that lists them.
pub(super) fn explain(session: &Session, mut error: Error) -> Error {
    if let Cause::Remote { what, .. } = &mut error.source
        && denies(what)
    {
        *what = format!("{what}; {} has all rights", page(session));
    }
    error
}

fn page(session: &Session) -> &'static str {
    match session.home().address.kind {
        Kind::MySql => "docs/engines/mysql.md",
        Kind::Postgres => "docs/engines/postgres.md",
    }
}

fn denies(what: &str) -> bool {
    DENIED.iter().any(|code| what.ends_with(code))
}

/// Does what needs the rights, to no row: this server looks at the rights all the same, and has no other way to ask
/// that knows of roles.
fn tried(session: &Session) -> Result<Vec<(String, String)>, Failure> {
    let mut missing = Vec::new();
    for (right, tables, statement) in RIGHTS {
        for table in tables {
            let column = if *table == "helix_locks" { "epoch" } else { "domain" };
            match session.execute(&statement.replace('#', table).replace('@', column), &[]) {
                Err(Failure::Refused(what)) if denies(&what) => {
                    missing.push((right.to_owned(), (*table).to_owned()));
                }
                Err(Failure::Lost(why)) => return Err(Failure::Lost(why)),
                // Anything else says nothing about the user.
                Ok(_) | Err(Failure::Refused(_) | Failure::Busy(_) | Failure::Duplicate) => {}
            }
        }
    }
    Ok(missing)
}

/// Asks which rights are missing. What a table lacks that is not there is not known, and so not missing. To number output,
/// one of two rights is enough.
fn asked(session: &Session) -> Result<Vec<(String, String)>, Failure> {
    let needs = RIGHTS.iter().flat_map(|(right, tables, _)| tables.iter().map(move |table| (right, table)));
    let needs: Vec<_> = needs.map(|(right, table)| format!("('{right}', '{table}')")).collect();
    let sql = format!(
        "SELECT needed, place FROM (VALUES {}) AS needs (needed, place)
            WHERE NOT has_table_privilege(to_regclass(place), needed)
        UNION ALL SELECT 'USAGE', 'orchestrix_logs_place_seq'
            WHERE NOT has_sequence_privilege(to_regclass('orchestrix_logs_place_seq'), 'USAGE, UPDATE')",
        needs.join(", ")
    );
    let rows = session.rows(&sql, &[Column::Text, Column::Text], &[])?;
    Ok(rows.into_iter().map(|mut row| (row.text(), row.text())).collect())
}
