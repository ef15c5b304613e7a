//! One call, before it is sent.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

use crate::error::{Error, Repeat};

/// One request to make.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) path: String,
    pub(crate) body: Bytes,
    pub(crate) repeat: Repeat,
    /// How long the coordinator may hold the answer back on purpose.
    pub(crate) held: Duration,
    /// No try takes longer, even if the client would wait.
    pub(crate) limit: Duration,
    pub(crate) view: View,
}

/// What an answer has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// All that this client has heard of, also from another node.
    NotOlderThanSeen,
    /// Any position. Commands are decided by the leader, which has the newest state.
    Any,
}

impl Call {
    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self {
            method: Method::GET,
            path: path.into(),
            body: Bytes::new(),
            repeat: Repeat::Harmless,
            held: Duration::ZERO,
            limit: Duration::MAX,
            view: View::NotOlderThanSeen,
        }
    }

    pub(crate) fn post(
        path: impl Into<String>,
        body: &impl Serialize,
        repeat: Repeat,
    ) -> Result<Self, Error> {
        let body = serde_json::to_vec(body)
            .map_err(|error| Error::invalid(format!("cannot write JSON: {error}")))?;
        Ok(Self { body: Bytes::from(body), ..Self::post_empty(path, repeat) })
    }

    /// What is set twice is set once.
    pub(crate) fn put(path: impl Into<String>, body: &impl Serialize) -> Result<Self, Error> {
        Ok(Self { method: Method::PUT, ..Self::post(path, body, Repeat::Harmless)? })
    }

    pub(crate) fn post_empty(path: impl Into<String>, repeat: Repeat) -> Self {
        Self { method: Method::POST, repeat, view: View::Any, ..Self::get(path) }
    }

    /// For people: what was asked.
    pub(crate) fn name(&self) -> String {
        let path = self.path.split('?').next().unwrap_or_default();
        format!("{} {path}", self.method)
    }
}

/// What stands for itself in a query.
const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Writes a value for a query.
pub(crate) fn encode(value: &str) -> String {
    utf8_percent_encode(value, &PLAIN).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_query_are_encoded() {
        assert_eq!(encode("a b&c=ä"), "a%20b%26c%3D%C3%A4");
    }
}
