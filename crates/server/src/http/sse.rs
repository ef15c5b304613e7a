//! Server-sent events: frames as text.

use std::fmt::Write;
use std::future::Future;

use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use serde::Serialize;

use crate::http::answer::Reply;
use crate::http::error::Fault;
use crate::http::handle::Call;
use crate::http::streams::{self, Gone, Sink};

/// Bytes after which a piece is sent, even if more is at hand.
const PIECE_BYTES: usize = 16 << 10;

/// Milliseconds after which a reader whose stream ended comes back.
const RETRY_MS: u64 = 2_000;

/// What a stream of frames is called.
pub(crate) const EVENT_STREAM: &str = "text/event-stream";
pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Frames to be sent together.
#[derive(Debug, Default)]
pub(crate) struct Piece(String);

impl Piece {
    /// Adds a frame. The data is JSON, so it has no line breaks.
    pub(crate) fn frame<T: Serialize>(&mut self, event: Option<&str>, id: Option<u64>, data: &T) {
        let written = (|| {
            if let Some(event) = event {
                writeln!(self.0, "event: {event}")?;
            }
            if let Some(id) = id {
                writeln!(self.0, "id: {id}")?;
            }
            let data = serde_json::to_string(data).expect("what we stream is plain JSON");
            write!(self.0, "data: {data}\n\n")
        })();
        written.expect("writing to memory cannot fail");
    }

    /// How a stream begins: with how long a reader waits before it comes back.
    fn opening() -> Self {
        Self(format!("retry: {RETRY_MS}\n\n"))
    }

    /// A sign of life that no reader sees.
    pub(crate) fn comment() -> Self {
        Self(": still here\n\n".to_owned())
    }

    /// The same at the beginning of a stream. A reader that comes back says this id, also if it had no frame yet.
    pub(crate) fn beginning(id: u64) -> Self {
        Self(format!("id: {id}\n: still here\n\n"))
    }

    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= PIECE_BYTES
    }
}

impl From<Piece> for Bytes {
    fn from(piece: Piece) -> Self {
        piece.0.into()
    }
}

/// Answers with a stream of frames; see [`streams::reply`].
pub(crate) fn reply<F>(call: &Call<'_>, fill: impl FnOnce(Sink) -> F) -> Result<Reply, Fault>
where
    F: Future<Output = Result<(), Gone>> + Send + 'static,
{
    streams::reply(call, EVENT_STREAM, |sink| {
        let opened = sink.clone();
        let filling = fill(sink);
        async move {
            opened.send(Piece::opening()).await?;
            drop(opened);
            filling.await
        }
    })
}

/// What a reader had last, when it comes back.
pub(crate) fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, Fault> {
    let Some(given) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    let number = given.to_str().ok().and_then(|text| text.trim().parse().ok());
    number
        .map(Some)
        .ok_or_else(|| Fault::Invalid("the header Last-Event-ID is not an id of this stream".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_one_line_of_data_between_empty_lines() {
        let mut piece = Piece::default();
        piece.frame(Some("line"), Some(7), &"two\nlines");
        piece.frame(None, None, &1);
        assert_eq!(piece.0, "event: line\nid: 7\ndata: \"two\\nlines\"\n\ndata: 1\n\n");
    }
}
