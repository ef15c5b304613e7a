//! The error of a server that cannot be started, as one sentence.

use std::fmt;

/// What goes wrong around servers. There is nothing to do about it but to say so.
pub struct Error(String);

/// An answer, or why there is none.
pub type Result<T = ()> = std::result::Result<T, Error>;

impl Error {
    /// An error with these words.
    pub fn new(words: impl Into<String>) -> Self {
        Self(words.into())
    }
}

/// Says what could not be done.
pub(crate) fn failed<E: fmt::Display>(what: impl fmt::Display) -> impl FnOnce(E) -> Error {
    move |error| Error(format!("cannot {what}: {error}"))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The same words: a test that unwraps it is read by people.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl From<Error> for String {
    fn from(error: Error) -> Self {
        error.0
    }
}
