//! The handshake of two peers, and the commands between messages.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::frames::Broken;

/// Bytes of a greeting.
pub const GREETING_BYTES: usize = 64;
/// Bytes of an identity.
const IDENTITY_BYTES_MAX: usize = 255;

/// Bytes that a peer may want to hear back from a ping.
const CONTEXT_BYTES_MAX: usize = 16;

/// The kinds of sockets that speak here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketType {
    Dealer,
    Req,
    Router,
}

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub socket: SocketType,
    /// The identity that it sends; it is not checked.
    pub identity: Bytes,
    /// The minor version of its protocol; from 1 on, a peer answers pings.
    pub minor: u8,
}

/// A command that is understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    Ready {
        socket: String,
        identity: Bytes,
    },
    Error(String),
    Ping(Bytes),
    Pong,
    /// Another one, which means nothing to us.
    Other(String),
}

impl SocketType {
    const ALL: [Self; 3] = [Self::Dealer, Self::Req, Self::Router];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dealer => "DEALER",
            Self::Req => "REQ",
            Self::Router => "ROUTER",
        }
    }

    /// The kind that another end says to be, if the two can speak with each other.
    ///
    /// # Errors
    /// When they cannot.
    pub(crate) fn meets(self, other: &str) -> Result<Self, Broken> {
        let known = Self::ALL.into_iter().find(|kind| kind.as_str() == other);
        match (self, known) {
            (Self::Router, Some(kind))
            | (_, Some(kind @ Self::Router))
            | (Self::Dealer, Some(kind @ Self::Dealer)) => Ok(kind),
            (_, Some(_) | None) => {
                Err(Broken::SocketType { ours: self.as_str(), theirs: other.chars().take(32).collect() })
            }
        }
    }
}

/// What is sent first.
pub(crate) fn greeting() -> [u8; GREETING_BYTES] {
    let mut greeting = [0; GREETING_BYTES];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10..12].copy_from_slice(&[3, 1]);
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

/// The minor version of a peer that greets so.
pub(crate) fn check_greeting(greeting: &[u8; GREETING_BYTES]) -> Result<u8, Broken> {
    let mechanism = &greeting[12..32];
    let is_null = mechanism.starts_with(b"NULL") && mechanism[4..].iter().all(|byte| *byte == 0);
    if greeting[0] == 0xff && greeting[9] & 1 == 1 && greeting[10] == 3 && is_null {
        Ok(greeting[11])
    } else {
        Err(Broken::Greeting)
    }
}

pub(crate) fn ready(socket: SocketType, identity: &[u8]) -> Bytes {
    let mut body = named("READY");
    for (name, value) in [("Socket-Type", socket.as_str().as_bytes()), ("Identity", identity)] {
        body.put_u8(u8::try_from(name.len()).expect("it is short"));
        body.put_slice(name.as_bytes());
        body.put_u32(u32::try_from(value.len()).expect("it is short"));
        body.put_slice(value);
    }
    body.freeze()
}

pub(crate) fn error(reason: &str) -> Bytes {
    let reason = &reason.as_bytes()[..reason.len().min(255)];
    let mut body = named("ERROR");
    body.put_u8(u8::try_from(reason.len()).expect("it was cut"));
    body.put_slice(reason);
    body.freeze()
}

/// Asks whether the peer is there. It need not keep to a time by itself.
pub(crate) fn ping() -> Bytes {
    let mut body = named("PING");
    body.put_u16(0);
    body.freeze()
}

pub(crate) fn pong(context: &[u8]) -> Bytes {
    let mut body = named("PONG");
    body.put_slice(context);
    body.freeze()
}

fn named(name: &str) -> BytesMut {
    let mut body = BytesMut::with_capacity(64);
    body.put_u8(u8::try_from(name.len()).expect("it is short"));
    body.put_slice(name.as_bytes());
    body
}

impl Command {
    /// # Errors
    /// When the command is not well formed.
    pub fn parse(body: &Bytes) -> Result<Self, Broken> {
        let mut rest = body.clone();
        let name = take_short(&mut rest).ok_or_else(|| Broken::Command(String::new()))?;
        let name = String::from_utf8_lossy(&name).into_owned();
        let wrong = || Broken::Command(name.chars().take(32).collect());
        match name.as_str() {
            "READY" => {
                let (mut socket, mut identity) = (None, Bytes::new());
                while rest.has_remaining() {
                    let key = take_short(&mut rest).ok_or_else(wrong)?;
                    let value = take_long(&mut rest).ok_or_else(wrong)?;
                    if key.eq_ignore_ascii_case(b"socket-type") {
                        socket = Some(String::from_utf8_lossy(&value).into_owned());
                    } else if key.eq_ignore_ascii_case(b"identity") {
                        identity = value;
                    }
                }
                if identity.len() > IDENTITY_BYTES_MAX {
                    return Err(wrong());
                }
                Ok(Self::Ready { socket: socket.ok_or_else(wrong)?, identity })
            }
            "ERROR" => {
                let reason = take_short(&mut rest).ok_or_else(wrong)?;
                Ok(Self::Error(String::from_utf8_lossy(&reason).into_owned()))
            }
            // A copy: what it came in may be far longer.
            "PING" if (2..=2 + CONTEXT_BYTES_MAX).contains(&rest.len()) => {
                Ok(Self::Ping(Bytes::copy_from_slice(&rest[2..])))
            }
            "PING" => Err(wrong()),
            "PONG" => Ok(Self::Pong),
            _ => Ok(Self::Other(name)),
        }
    }
}

fn take_short(rest: &mut Bytes) -> Option<Bytes> {
    let length = usize::from(*rest.first()?);
    rest.advance(1);
    (rest.len() >= length).then(|| rest.split_to(length))
}

fn take_long(rest: &mut Bytes) -> Option<Bytes> {
    let length = usize::try_from(rest.try_get_u32().ok()?).ok()?;
    (rest.len() >= length).then(|| rest.split_to(length))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_greeting_of_ours_is_one() {
        assert_eq!(check_greeting(&greeting()), Ok(1));
    }

    #[test]
    fn other_versions_and_mechanisms_are_refused() {
        for (place, byte) in [(0, 0), (9, 0), (10, 1), (12, b'P'), (16, b'X')] {
            let mut greeting = greeting();
            greeting[place] = byte;
            assert_eq!(check_greeting(&greeting), Err(Broken::Greeting), "byte {place}");
        }
    }

    #[test]
    fn compatible_socket_types() {
        use SocketType::{Dealer, Req, Router};
        for kind in [Dealer, Req, Router] {
            assert_eq!(Router.meets(kind.as_str()), Ok(kind));
            assert_eq!(kind.meets("ROUTER"), Ok(Router));
        }
        for (ours, theirs) in [(Router, "PUB"), (Req, "REQ"), (Dealer, "REQ"), (Router, "")] {
            assert!(matches!(ours.meets(theirs), Err(Broken::SocketType { .. })));
        }
    }

    #[test]
    fn commands_come_back() {
        let known = |body: Bytes| Command::parse(&body).unwrap();
        let (socket, identity) = ("DEALER".to_owned(), Bytes::from_static(b"w-1"));
        assert_eq!(known(ready(SocketType::Dealer, b"w-1")), Command::Ready { socket, identity });
        assert_eq!(known(error("no")), Command::Error("no".to_owned()));
        assert_eq!(known(ping()), Command::Ping(Bytes::new()));
        assert_eq!(known(pong(b"ctx")), Command::Pong);
        assert_eq!(known(named("JOIN").freeze()), Command::Other("JOIN".to_owned()));
    }

    #[test]
    fn the_longest_identity_is_the_last_that_passes() {
        assert!(Command::parse(&ready(SocketType::Dealer, &[1; 255])).is_ok());
        assert!(Command::parse(&ready(SocketType::Dealer, &[1; 256])).is_err());
    }

    #[test]
    fn the_longest_context_is_the_last_that_passes() {
        let ping = |context: usize| Bytes::from([&b"\x04PING\x00\x00"[..], &vec![7; context]].concat());
        assert_eq!(Command::parse(&ping(16)), Ok(Command::Ping(Bytes::from_static(&[7; 16]))));
        assert_eq!(Command::parse(&ping(17)), Err(Broken::Command("PING".to_owned())));
    }

    proptest! {
        #[test]
        fn noise_is_a_command_or_refused(noise in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Command::parse(&Bytes::from(noise));
        }
    }
}
