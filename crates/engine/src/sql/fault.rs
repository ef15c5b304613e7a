//! Short reasons why a database cannot be used.

use std::path::PathBuf;

use crate::{Cause, Error};

use super::Home;

/// What a statement came to, when it has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The server said that the row is there already. Nothing was written.
    Duplicate,
    /// The server said not now: a deadlock, a lock that is held. Nothing was written.
    Busy(String),
    /// The server said no. Nothing was written.
    Refused(String),
    /// There was no answer, or one that does not say whether anything was written.
    Lost(String),
}

impl Failure {
    pub(super) fn error(self, home: &Home, operation: &str) -> Error {
        let (what, retryable) = match self {
            Self::Duplicate => ("it is there already".to_owned(), false),
            Self::Busy(what) | Self::Lost(what) => (what, true),
            Self::Refused(what) => (what, false),
        };
        let source =
            Cause::Remote { place: home.address.place().to_owned(), what: home.address.scrub(&what) };
        Error { operation: operation.to_owned(), retryable, source }
    }
}

/// The caller or the server has something that will not get better by itself.
pub(super) fn refuse(operation: &str, place: &str, what: impl Into<String>) -> Error {
    let source = Cause::Remote { place: place.to_owned(), what: what.into() };
    Error { operation: operation.to_owned(), retryable: false, source }
}

/// A stored row is not what was written. The path names the table, the domain and the row.
pub(super) fn damaged(
    home: &Home,
    operation: &str,
    table: &str,
    row: impl std::fmt::Display,
    what: impl Into<String>,
) -> Error {
    let path = PathBuf::from(format!("{}/{table}/{}/{row}", home.address.place(), home.domain));
    Error {
        operation: operation.to_owned(),
        retryable: false,
        source: Cause::Damaged { path, offset: 0, what: what.into() },
    }
}
