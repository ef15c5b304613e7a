//! The ZeroMQ message transport, version 3 with the mechanism NULL, on any stream of bytes.
//!
//! A [`Connection`] greets its peer, then splits into a [`Reader`] of whole messages and a [`Writer`] of them. What
//! a peer may cost is bounded by [`Limits`] before anything is kept of it: bytes and parts of a message.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use orchestrix_zmtp::{Connection, Incoming, Limits, SocketType};
//!
//! let (near, far) = tokio::io::duplex(1024);
//! let (near, far) = tokio::join!(
//!     Connection::greet(near, SocketType::Dealer, b"w-1", Limits::default()),
//!     Connection::greet(far, SocketType::Router, b"", Limits::default()),
//! );
//! let ((_, mut writer), (mut reader, _)) = (near?.split(), far?.split());
//! writer.send(&[b"hello"]).await?;
//! let Incoming::Message(parts) = reader.next().await? else { panic!("it was a message") };
//! assert_eq!(parts, [&b"hello"[..]]);
//! # Ok::<_, orchestrix_zmtp::Error>(())
//! # }).unwrap();
//! ```

mod connection;
mod frames;
mod greeting;

pub use self::connection::{Connection, Incoming, Reader, Writer};
pub use self::frames::{Broken, Decoder, Frame};
pub use self::greeting::{Command, GREETING_BYTES, Peer, SocketType};

/// What a peer may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one message, all of its parts together.
    pub message_bytes: usize,
    /// Parts of one message.
    pub parts: usize,
    /// From the first byte of a message to its last.
    pub message_time: Option<std::time::Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { message_bytes: 1 << 20, parts: 8, message_time: None }
    }
}

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the peer has closed the connection")]
    Closed,
    #[error(transparent)]
    Io(std::io::Error),
    #[error("{0}")]
    Broken(#[from] Broken),
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::UnexpectedEof { Self::Closed } else { Self::Io(error) }
    }
}
