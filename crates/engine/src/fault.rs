//! Constructors of engine errors.

use std::io;

use crate::disk::{self, Disk};
use crate::file::layout::{FORMAT, Flaw};
use crate::{Cause, Error};

/// An I/O error. A full disk may have space later; no other I/O error passes by itself.
pub(crate) fn io_error(disk: &dyn Disk, doing: &str, name: &str, error: io::Error) -> Error {
    let operation = format!("{doing} {name}");
    if disk::is_full(&error) {
        return Error { operation, retryable: true, source: Cause::Full { path: disk.path(name) } };
    }
    Error { operation, retryable: false, source: Cause::Io(error) }
}

pub(crate) fn damaged(
    disk: &dyn Disk,
    doing: &str,
    name: &str,
    offset: u64,
    what: impl Into<String>,
) -> Error {
    let source = Cause::Damaged { path: disk.path(name), offset, what: what.into() };
    Error { operation: format!("{doing} {name}"), retryable: false, source }
}

pub(crate) fn flawed(disk: &dyn Disk, doing: &str, name: &str, offset: u64, flaw: Flaw) -> Error {
    match flaw {
        Flaw::Damaged(what) => damaged(disk, doing, name, offset, what),
        Flaw::Newer(found) => {
            let source = Cause::UnknownFormat { path: disk.path(name), found, known: u32::from(FORMAT) };
            Error { operation: format!("{doing} {name}"), retryable: false, source }
        }
    }
}

/// The caller made an invalid request.
pub(crate) fn invalid(doing: &str, why: impl Into<String>) -> Error {
    let source = Cause::Io(io::Error::new(io::ErrorKind::InvalidInput, why.into()));
    Error { operation: doing.to_owned(), retryable: false, source }
}

pub(crate) fn stopped(doing: &str) -> Error {
    Error { operation: doing.to_owned(), retryable: false, source: Cause::Stopped }
}

pub(crate) fn is_full(error: &Error) -> bool {
    matches!(error.source, Cause::Full { .. })
}
