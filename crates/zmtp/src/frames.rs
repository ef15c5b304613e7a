//! Frames on the wire: a byte of flags, a length, a body.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::Limits;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
/// Bytes of a command. Those that are known have far fewer.
const COMMAND_BYTES_MAX: usize = 4 << 10;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    Part { more: bool, body: Bytes },
    Command(Bytes),
}

/// What a peer did that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("a frame begins with the flags {0:#04x}, which mean nothing")]
    Flags(u8),
    #[error("a message has {bytes} bytes, and {max} are the limit")]
    TooLong { bytes: u64, max: usize },
    #[error("a message has more than {max} parts, which is the limit")]
    TooManyParts { max: usize },
    #[error("a message was not complete after {seconds} s, which is the limit")]
    TooSlow { seconds: u64 },
    #[error("its greeting is not version 3 of the protocol with the mechanism NULL")]
    Greeting,
    #[error("the command {0:?} is not well formed")]
    Command(String),
    #[error("a {ours} socket cannot connect to a {theirs} socket")]
    SocketType { ours: &'static str, theirs: String },
    #[error("the peer says: {0}")]
    Refused(String),
}

/// Finds frames in bytes as they come. Keeps nothing that is longer than allowed.
#[derive(Debug)]
pub struct Decoder {
    buffer: BytesMut,
    limits: Limits,
    /// Parts and bytes of the message that has begun.
    parts: usize,
    bytes: usize,
}

impl Decoder {
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { buffer: BytesMut::new(), limits, parts: 0, bytes: 0 }
    }

    /// What the peer may cost from now on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Where the next bytes go.
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// The next frame, when all of it is there.
    ///
    /// # Errors
    /// When the peer does what is not allowed; nothing of it can be trusted any more.
    pub fn take(&mut self) -> Result<Option<Frame>, Broken> {
        let Some(&flags) = self.buffer.first() else { return Ok(None) };
        let is_command = flags & COMMAND != 0;
        if flags & !(MORE | LONG | COMMAND) != 0 || (is_command && flags & MORE != 0) {
            return Err(Broken::Flags(flags));
        }
        let header = if flags & LONG == 0 { 2 } else { 9 };
        if self.buffer.len() < header {
            return Ok(None);
        }
        let bytes = match flags & LONG {
            0 => u64::from(self.buffer[1]),
            _ => (&self.buffer[1..9]).get_u64(),
        };
        let (before, max) =
            if is_command { (0, COMMAND_BYTES_MAX) } else { (self.bytes, self.limits.message_bytes) };
        let length = usize::try_from(bytes).ok().filter(|length| *length <= max.saturating_sub(before));
        let length = length.ok_or(Broken::TooLong { bytes: bytes.saturating_add(before as u64), max })?;
        if !is_command && self.parts >= self.limits.parts {
            return Err(Broken::TooManyParts { max: self.limits.parts });
        }
        if self.buffer.len() < header + length {
            self.buffer.reserve(header + length - self.buffer.len());
            return Ok(None);
        }
        self.buffer.advance(header);
        let body = self.buffer.split_to(length).freeze();
        if is_command {
            return Ok(Some(Frame::Command(body)));
        }
        let more = flags & MORE != 0;
        (self.parts, self.bytes) = if more { (self.parts + 1, self.bytes + length) } else { (0, 0) };
        Ok(Some(Frame::Part { more, body }))
    }
}

impl Frame {
    /// Writes a part.
    pub fn put_part(to: &mut BytesMut, body: &[u8], more: bool) {
        put(to, if more { MORE } else { 0 }, body);
    }

    /// Writes a command.
    pub fn put_command(to: &mut BytesMut, body: &[u8]) {
        put(to, COMMAND, body);
    }
}

fn put(to: &mut BytesMut, flags: u8, body: &[u8]) {
    to.reserve(9 + body.len());
    match u8::try_from(body.len()) {
        Ok(length) => to.put_slice(&[flags, length]),
        Err(_) => {
            to.put_u8(flags | LONG);
            to.put_u64(body.len() as u64);
        }
    }
    to.put_slice(body);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FEW: Limits = Limits { message_bytes: 300, parts: 3, message_time: None };

    fn all(bytes: &[u8], limits: Limits) -> Result<Vec<Frame>, Broken> {
        let mut decoder = Decoder::new(limits);
        decoder.buffer().put_slice(bytes);
        std::iter::from_fn(|| decoder.take().transpose()).collect()
    }

    fn part(body: &[u8], more: bool) -> Frame {
        Frame::Part { more, body: Bytes::copy_from_slice(body) }
    }

    #[test]
    fn the_limit_of_bytes_is_the_last_that_passes() {
        let mut bytes = BytesMut::new();
        Frame::put_part(&mut bytes, &[7; 300], false);
        assert_eq!(all(&bytes, FEW), Ok(vec![part(&[7; 300], false)]));
        bytes.clear();
        Frame::put_part(&mut bytes, &[7; 301], false);
        assert_eq!(all(&bytes, FEW), Err(Broken::TooLong { bytes: 301, max: 300 }));
        // All parts count.
        for (last, passes) in [(100, true), (101, false)] {
            bytes.clear();
            Frame::put_part(&mut bytes, &[7; 200], true);
            Frame::put_part(&mut bytes, &vec![7; last], false);
            assert_eq!(all(&bytes, FEW).is_ok(), passes, "200 and {last}");
        }
    }

    #[test]
    fn the_limit_of_parts_is_the_last_that_passes() {
        let mut bytes = BytesMut::new();
        for n in 0..3 {
            Frame::put_part(&mut bytes, b"x", n < 2);
        }
        assert_eq!(all(&bytes, FEW).unwrap().len(), 3);
        bytes.clear();
        for n in 0..4 {
            Frame::put_part(&mut bytes, b"x", n < 3);
        }
        assert_eq!(all(&bytes, FEW), Err(Broken::TooManyParts { max: 3 }));
    }

    #[test]
    fn an_impossible_length_is_refused_before_allocation() {
        let mut decoder = Decoder::new(Limits::default());
        decoder.buffer().put_slice(&[LONG, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(decoder.take(), Err(Broken::TooLong { bytes: u64::MAX, max: 1 << 20 }));
        assert!(decoder.buffer().capacity() < 1 << 10);
    }

    #[test]
    fn flags_that_mean_nothing_are_refused() {
        for flags in [8, 0x80, 0xff, COMMAND | MORE] {
            assert_eq!(all(&[flags, 0], FEW), Err(Broken::Flags(flags)));
        }
    }

    proptest! {
        #[test]
        fn frames_are_found_however_they_are_cut(
            messages in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 1..=3), 0..5),
            cuts in prop::collection::vec(1..40_usize, 1..20),
        ) {
            let (mut bytes, mut expected) = (BytesMut::new(), Vec::new());
            for message in &messages {
                for (n, body) in message.iter().enumerate() {
                    let more = n + 1 < message.len();
                    Frame::put_part(&mut bytes, body, more);
                    expected.push(part(body, more));
                }
                Frame::put_command(&mut bytes, b"\x04PING\x00\x00");
                expected.push(Frame::Command(Bytes::from_static(b"\x04PING\x00\x00")));
            }
            let (mut decoder, mut found, mut rest) = (Decoder::new(FEW), Vec::new(), &bytes[..]);
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break }
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                decoder.buffer().put_slice(now);
                rest = later;
                while let Some(frame) = decoder.take().unwrap() { found.push(frame) }
            }
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn noise_is_frames_or_refused(noise in prop::collection::vec(any::<u8>(), 0..2_000)) {
            let _ = all(&noise, FEW);
        }
    }
}
