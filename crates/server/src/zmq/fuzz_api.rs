//! A function for the fuzzer: the decoder of messages, without a socket.

use bytes::Bytes;
use orchestrix_core::Name;

use super::message::parse;
use crate::http::of_shards;

/// Understands a message, and writes down what was understood: the path and the body of the request
/// that it would be over HTTP.
///
/// # Errors
/// What the worker would hear.
pub fn message(parts: &[Bytes]) -> Result<(String, Bytes), String> {
    let session = Name::new("zmq-1").expect("it is a name");
    let understood = parse(parts, &session).and_then(|said| said.ask());
    let ask = understood.map_err(|fault| fault.problem("").problem.detail)?;
    Ok(of_shards(&ask).expect("a worker says what HTTP has, too"))
}
