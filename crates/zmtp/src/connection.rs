//! A connection from its greeting on: whole messages in, whole messages out.

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};

use tokio::time::{Instant, timeout_at};

use crate::frames::{Broken, Decoder, Frame};
use crate::greeting::{self, Command, GREETING_BYTES, Peer, SocketType};
use crate::{Error, Limits};

/// Bytes that are read at once.
const READ_BYTES: usize = 4 << 10;

/// Two peers that know each other.
#[derive(Debug)]
pub struct Connection<S> {
    stream: S,
    decoder: Decoder,
    peer: Peer,
}

/// Reads what the peer says.
#[derive(Debug)]
pub struct Reader<S> {
    stream: ReadHalf<S>,
    decoder: Decoder,
    /// Those of a message that has not ended.
    parts: Vec<Bytes>,
    /// Since when a message is on its way.
    began: Option<Instant>,
}

/// Says something to the peer.
#[derive(Debug)]
pub struct Writer<S> {
    stream: WriteHalf<S>,
    buffer: BytesMut,
}

/// What came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming {
    Message(Vec<Bytes>),
    /// The peer wants to hear this back, by [`Writer::pong`].
    Ping(Bytes),
    /// An answer to a ping.
    Pong,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Greets the peer and hears who it is. Takes as long as the peer does: the caller sets a timeout.
    ///
    /// # Errors
    /// When the peer speaks something else, or is of a kind that does not fit.
    pub async fn greet(
        mut stream: S,
        socket: SocketType,
        identity: &[u8],
        limits: Limits,
    ) -> Result<Self, Error> {
        let mut first = BytesMut::from(&greeting::greeting()[..]);
        Frame::put_command(&mut first, &greeting::ready(socket, identity));
        stream.write_all(&first).await?;
        stream.flush().await?;
        let mut theirs = [0; GREETING_BYTES];
        stream.read_exact(&mut theirs).await?;
        let minor = greeting::check_greeting(&theirs)?;
        let mut decoder = Decoder::new(limits);
        let Frame::Command(body) = next(&mut stream, &mut decoder).await? else {
            return Err(Broken::Greeting.into());
        };
        let (theirs, identity) = match Command::parse(&body)? {
            Command::Ready { socket, identity } => (socket, identity),
            Command::Error(reason) => return Err(Broken::Refused(reason).into()),
            Command::Ping(_) | Command::Pong | Command::Other(_) => return Err(Broken::Greeting.into()),
        };
        match socket.meets(&theirs) {
            Ok(socket) => Ok(Self { stream, decoder, peer: Peer { socket, identity, minor } }),
            Err(why) => {
                let mut refusal = BytesMut::new();
                Frame::put_command(&mut refusal, &greeting::error("Invalid socket type"));
                // A peer that does not read the reason sees the end of the connection.
                let _ = stream.write_all(&refusal).await;
                Err(why.into())
            }
        }
    }

    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    pub fn split(self) -> (Reader<S>, Writer<S>) {
        let (read, write) = tokio::io::split(self.stream);
        let reader = Reader { stream: read, decoder: self.decoder, parts: Vec::new(), began: None };
        (reader, Writer { stream: write, buffer: BytesMut::new() })
    }
}

impl<S: AsyncRead> Reader<S> {
    /// The next message or ping. May be dropped and called again: what has come is kept.
    ///
    /// # Errors
    /// When the connection is over, or the peer does what is not allowed.
    pub async fn next(&mut self) -> Result<Incoming, Error> {
        loop {
            let Some(frame) = self.decoder.take()? else {
                self.fill().await?;
                continue;
            };
            match frame {
                Frame::Part { more, body } => {
                    self.parts.push(body);
                    if !more {
                        self.began = None;
                        return Ok(Incoming::Message(std::mem::take(&mut self.parts)));
                    }
                }
                Frame::Command(body) => match Command::parse(&body)? {
                    Command::Ping(context) => return Ok(Incoming::Ping(context)),
                    Command::Pong => return Ok(Incoming::Pong),
                    Command::Error(reason) => return Err(Broken::Refused(reason).into()),
                    Command::Ready { .. } | Command::Other(_) => {}
                },
            }
        }
    }
}

impl<S: AsyncRead> Reader<S> {
    /// What the peer may cost from now on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.decoder.set_limits(limits);
    }

    /// Takes more bytes, unless a message has been on its way for too long. Pings between its parts do not help.
    async fn fill(&mut self) -> Result<(), Error> {
        let is_amid = !self.parts.is_empty() || !self.decoder.buffer().is_empty();
        let limit = self.decoder.limits().message_time.filter(|_| is_amid);
        self.began = is_amid.then(|| self.began.unwrap_or_else(Instant::now));
        let buffer = self.decoder.buffer();
        buffer.reserve(READ_BYTES);
        let reading = self.stream.read_buf(buffer);
        let read = match self.began.zip(limit) {
            None => reading.await,
            Some((began, limit)) => timeout_at(began + limit, reading)
                .await
                .map_err(|_| Broken::TooSlow { seconds: limit.as_secs() })?,
        };
        if read? == 0 { Err(Error::Closed) } else { Ok(()) }
    }
}

async fn next<S: AsyncRead + Unpin>(stream: &mut S, decoder: &mut Decoder) -> Result<Frame, Error> {
    loop {
        if let Some(frame) = decoder.take()? {
            return Ok(frame);
        }
        let buffer = decoder.buffer();
        buffer.reserve(READ_BYTES);
        if stream.read_buf(buffer).await? == 0 {
            return Err(Error::Closed);
        }
    }
}

impl<S: AsyncWrite> Writer<S> {
    /// Sends a message of these parts.
    ///
    /// # Errors
    /// When the connection is over.
    pub async fn send(&mut self, parts: &[&[u8]]) -> Result<(), Error> {
        for (n, part) in parts.iter().enumerate() {
            Frame::put_part(&mut self.buffer, part, n + 1 < parts.len());
        }
        self.flush().await
    }

    /// Asks whether the peer is there.
    ///
    /// # Errors
    /// When the connection is over.
    pub async fn ping(&mut self) -> Result<(), Error> {
        Frame::put_command(&mut self.buffer, &greeting::ping());
        self.flush().await
    }

    /// Answers a ping.
    ///
    /// # Errors
    /// When the connection is over.
    pub async fn pong(&mut self, context: &[u8]) -> Result<(), Error> {
        Frame::put_command(&mut self.buffer, &greeting::pong(context));
        self.flush().await
    }

    async fn flush(&mut self) -> Result<(), Error> {
        self.stream.write_all_buf(&mut self.buffer).await?;
        Ok(self.stream.flush().await?)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    async fn pair() -> (Connection<tokio::io::DuplexStream>, Connection<tokio::io::DuplexStream>) {
        let (near, far) = duplex(1 << 10);
        let (near, far) = tokio::join!(
            Connection::greet(near, SocketType::Dealer, b"w-1", Limits::default()),
            Connection::greet(far, SocketType::Router, b"", Limits::default()),
        );
        (near.unwrap(), far.unwrap())
    }

    #[tokio::test]
    async fn peers_exchange_identities_and_messages() {
        let (near, far) = pair().await;
        let who = |socket, identity| Peer { socket, identity: Bytes::from_static(identity), minor: 1 };
        assert_eq!(
            (near.peer(), far.peer()),
            (&who(SocketType::Router, b""), &who(SocketType::Dealer, b"w-1"))
        );
        let ((mut from_far, mut to_far), (mut from_near, mut to_near)) = (near.split(), far.split());
        // More than the stream holds, so that both ends have to take turns.
        let long = vec![7; 100_000];
        let parts = [&b""[..], &long];
        let (sent, came) = tokio::join!(to_far.send(&parts), from_near.next());
        sent.unwrap();
        assert_eq!(came.unwrap(), Incoming::Message(vec![Bytes::new(), long.into()]));
        to_near.ping().await.unwrap();
        assert_eq!(from_far.next().await.unwrap(), Incoming::Ping(Bytes::new()));
        to_far.pong(b"").await.unwrap();
        assert_eq!(from_near.next().await.unwrap(), Incoming::Pong);
        drop((from_far, to_far));
        assert!(matches!(from_near.next().await, Err(Error::Closed)));
    }

    #[tokio::test]
    async fn a_peer_of_another_kind_gets_an_error() {
        let (near, far) = duplex(1 << 10);
        let (near, far) = tokio::join!(
            Connection::greet(near, SocketType::Req, b"", Limits::default()),
            Connection::greet(far, SocketType::Dealer, b"", Limits::default()),
        );
        for ended in [near.map(drop), far.map(drop)] {
            assert!(matches!(ended, Err(Error::Broken(Broken::SocketType { .. }))), "{ended:?}");
        }
    }

    #[tokio::test]
    async fn a_peer_with_another_protocol_is_refused() {
        let (mut near, far) = duplex(1 << 10);
        near.write_all(format!("{:<64}", "GET / HTTP/1.1").as_bytes()).await.unwrap();
        let greeted = Connection::greet(far, SocketType::Router, b"", Limits::default()).await;
        assert!(matches!(greeted, Err(Error::Broken(Broken::Greeting))), "{greeted:?}");
    }
}
