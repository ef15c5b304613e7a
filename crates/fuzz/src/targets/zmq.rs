//! ZeroMQ: what peers send, and what workers say with it.

use bytes::{BufMut, Bytes};
use http::Method;
use orchestrix_server::http::fuzz_api;
use orchestrix_server::zmq::fuzz_api::message;
use orchestrix_zmtp::{Broken, Command, Decoder, Frame, Limits};

const LIMITS: Limits = Limits { message_bytes: 4 << 10, parts: 8, message_time: None };

/// The first byte says in how long pieces the bytes come; their frames do not depend on that.
pub(super) fn frames(input: &[u8]) {
    let Some((&length, bytes)) = input.split_first() else { return };
    let whole = decode([bytes]);
    let cut = decode(bytes.chunks(usize::from(length) + 1));
    assert_eq!(whole, cut, "the frames are the same wherever the bytes are cut");
    for frame in whole.0 {
        match frame {
            Frame::Part { body, .. } => assert!(body.len() <= LIMITS.message_bytes),
            Frame::Command(body) => drop(Command::parse(&body)),
        }
    }
}

fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Frame>, Option<Broken>) {
    let (mut decoder, mut frames) = (Decoder::new(LIMITS), Vec::new());
    for piece in pieces {
        decoder.buffer().put_slice(piece);
        loop {
            match decoder.take() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(broken) => return (frames, Some(broken)),
            }
        }
    }
    (frames, None)
}

/// What a worker says becomes a request of a route that is there, and never of another worker or service.
pub(super) fn messages(input: &[u8]) {
    let body = Bytes::copy_from_slice(input);
    let said = message(std::slice::from_ref(&body));
    assert_eq!(said, message(&[Bytes::new(), body]), "an empty part before it changes nothing");
    match said {
        Ok((path, body)) => {
            assert_eq!(path.matches('/').count(), 6, "{path}");
            let (route, parts) = fuzz_api::route(&Method::POST, &path).expect("there is such a route");
            assert_eq!(parts.len(), 2);
            let understood = fuzz_api::body(route, &body);
            assert!(understood.is_some(), "its route reads a body");
        }
        Err(why) => assert!(!why.is_empty()),
    }
}
