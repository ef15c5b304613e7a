//! Frames: what stands between two peers as bytes, with limits before anything is kept.

/// Bytes of a frame, its head included. Bounds how long one piece of a large answer keeps others waiting.
pub const FRAME_BYTES_MAX: usize = 64 << 10;
/// Bytes before the payload: kind, flags, length, number of the ask.
pub(super) const HEAD_BYTES: usize = 12;
/// Bytes of a payload.
pub(super) const PAYLOAD_BYTES_MAX: usize = FRAME_BYTES_MAX - HEAD_BYTES;

/// Set on the last piece of an ask or answer.
const LAST: u8 = 1;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Hello,
    /// A piece of an ask.
    Ask,
    /// A piece of an answer.
    Answer,
    /// The caller has disconnected.
    Cancel,
    /// Leases of an answer that was not taken.
    GiveBack,
    /// Asks that the loop has taken and not answered yet.
    Taken,
    Ping,
    Pong,
    /// Asks with a larger number are not taken.
    GoAway,
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::Hello,
        Self::Ask,
        Self::Answer,
        Self::Cancel,
        Self::GiveBack,
        Self::Taken,
        Self::Ping,
        Self::Pong,
        Self::GoAway,
    ];

    fn byte(self) -> u8 {
        match self {
            Self::Hello => 1,
            Self::Ask => 2,
            Self::Answer => 3,
            Self::Cancel => 4,
            Self::GiveBack => 5,
            Self::Taken => 6,
            Self::Ping => 7,
            Self::Pong => 8,
            Self::GoAway => 9,
        }
    }
}

/// Why a link cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("the peer does not support the node link")]
    NotALink,
    #[error("the peer speaks versions {theirs:?} of the node link, this node {ours:?}")]
    Version { ours: (u32, u32), theirs: (u32, u32) },
    #[error("protocol error: {0}")]
    Protocol(&'static str),
    #[error("the peer sent more than {max} bytes of {what}")]
    TooLarge { what: &'static str, max: usize },
    #[error("the peer sent no sign of life in time")]
    Silent,
}

/// One frame that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) kind: Kind,
    pub(super) is_last: bool,
    pub(super) ask: u64,
    pub(super) payload: &'a [u8],
}

/// Writes a frame.
pub(super) fn write(out: &mut Vec<u8>, kind: Kind, is_last: bool, ask: u64, payload: &[u8]) {
    let length = u16::try_from(payload.len()).expect("a payload is cut to fit its frame");
    out.extend([kind.byte(), if is_last { LAST } else { 0 }]);
    out.extend(length.to_le_bytes());
    out.extend(ask.to_le_bytes());
    out.extend(payload);
}

/// Bytes that came and are no whole frame yet: less than one frame of them.
#[derive(Debug, Default)]
pub(super) struct Received {
    bytes: Vec<u8>,
}

impl Received {
    /// Hands over every whole frame of what came before and of `bytes`.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        mut each: impl FnMut(Frame<'_>) -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        let mut rest = bytes;
        while !self.bytes.is_empty() {
            let need = wanted(&self.bytes)? - self.bytes.len();
            let (now, later) = rest.split_at(need.min(rest.len()));
            self.bytes.extend_from_slice(now);
            rest = later;
            if now.len() < need {
                return Ok(());
            }
            if self.bytes.len() >= HEAD_BYTES && wanted(&self.bytes)? == self.bytes.len() {
                each(parse(&self.bytes)?)?;
                self.bytes.clear();
            }
        }
        while rest.len() >= HEAD_BYTES && rest.len() >= wanted(rest)? {
            let (frame, later) = rest.split_at(wanted(rest)?);
            each(parse(frame)?)?;
            rest = later;
        }
        if !rest.is_empty() {
            wanted(rest)?;
            self.bytes.extend_from_slice(rest);
        }
        Ok(())
    }
}

/// Bytes that a head or a frame needs in all, as far as its beginning says.
fn wanted(bytes: &[u8]) -> Result<usize, Broken> {
    if let Some(first) = bytes.first() {
        kind(*first)?;
    }
    if bytes.len() < HEAD_BYTES {
        return Ok(HEAD_BYTES);
    }
    let length = usize::from(u16::from_le_bytes([bytes[2], bytes[3]]));
    if length > PAYLOAD_BYTES_MAX {
        return Err(Broken::TooLarge { what: "one frame", max: FRAME_BYTES_MAX });
    }
    Ok(HEAD_BYTES + length)
}

fn kind(byte: u8) -> Result<Kind, Broken> {
    let kind = Kind::ALL.into_iter().find(|kind| kind.byte() == byte);
    kind.ok_or(Broken::Protocol("unknown kind of frame"))
}

fn parse(bytes: &[u8]) -> Result<Frame<'_>, Broken> {
    let (head, payload) = bytes.split_at(HEAD_BYTES);
    let kind = kind(head[0])?;
    if head[1] & !LAST != 0 {
        return Err(Broken::Protocol("unknown flag"));
    }
    let ask = head[4..].try_into().map(u64::from_le_bytes).expect("eight bytes of the head are left");
    Ok(Frame { kind, is_last: head[1] == LAST, ask, payload })
}
