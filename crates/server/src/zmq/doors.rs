//! A door for the fuzzer: what understands messages, without a socket.

use bytes::Bytes;
use orchestrix_core::Name;

use super::message::parse;

/// Understands a message, and writes down what was understood: the path and the body of a request.
///
/// # Errors
/// What the worker would hear.
pub fn message(parts: &[Bytes]) -> Result<(String, Bytes), String> {
    let session = Name::new("zmq-1").expect("it is a name");
    match parse(parts, &session) {
        Ok(said) => Ok((said.head.uri.path().to_owned(), said.body)),
        Err(fault) => Err(fault.told("").problem.detail),
    }
}
