//! Functions for the fuzzer: the decoders of this crate, without a socket.

use crate::call;
use crate::sse::{Frame, Parser};

/// The frames of a stream that came in these pieces: event, id and data of each. `None` when it is refused.
#[must_use]
pub fn frames<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Option<Vec<(String, Option<String>, String)>> {
    let mut parser = Parser::default();
    let mut frames = Vec::new();
    for piece in pieces {
        parser.push(piece).ok()?;
        let ready = std::iter::from_fn(|| parser.next());
        frames.extend(ready.map(|Frame { event, id, data }| (event, id, data)));
    }
    Some(frames)
}

/// A value as it is written into a query.
#[must_use]
pub fn encode(value: &str) -> String {
    call::encode(value)
}
