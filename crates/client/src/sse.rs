//! Server-sent events: bytes in, frames out, wherever the bytes were cut.

use std::collections::VecDeque;

/// Bytes of one frame. Bounds memory when the other side is not what we think it is.
const FRAME_BYTES_MAX: usize = 4 << 20;
/// Bytes of an id. It is repeated in every frame until the next one; ours are numbers.
const ID_BYTES_MAX: usize = 64;

/// One event of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    /// `message` when the stream names none.
    pub(crate) event: String,
    /// The last id that the stream has named, up to this frame.
    pub(crate) id: Option<String>,
    pub(crate) data: String,
}

/// Takes bytes as they come and gives whole frames.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    line: Vec<u8>,
    /// The last byte ended a line as a carriage return; a line feed that follows belongs to it.
    returned: bool,
    event: String,
    data: Option<String>,
    id: Option<String>,
    ready: VecDeque<Frame>,
}

/// The stream has a frame, or an id, that is larger than any of ours.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

impl Parser {
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        for &byte in bytes {
            let after_return = std::mem::replace(&mut self.returned, byte == b'\r');
            match byte {
                b'\n' if after_return => {}
                b'\n' | b'\r' => self.end_line()?,
                other => self.line.push(other),
            }
            if self.line.len() + self.data.as_ref().map_or(0, String::len) > FRAME_BYTES_MAX {
                return Err(TooLong);
            }
        }
        Ok(())
    }

    pub(crate) fn next(&mut self) -> Option<Frame> {
        self.ready.pop_front()
    }

    fn end_line(&mut self) -> Result<(), TooLong> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            self.end_frame();
            return Ok(());
        }
        let line = String::from_utf8_lossy(&line);
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.event),
            "id" if value.len() > ID_BYTES_MAX => return Err(TooLong),
            "id" if !value.contains('\0') => self.id = Some(value.to_owned()),
            "data" => match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            },
            // Comments keep the connection alive; other fields are not ours.
            _ => {}
        }
        Ok(())
    }

    fn end_frame(&mut self) {
        let event = std::mem::take(&mut self.event);
        let Some(data) = self.data.take() else { return };
        let event = if event.is_empty() { "message".to_owned() } else { event };
        self.ready.push_back(Frame { event, id: self.id.clone(), data });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(event: &str, id: Option<&str>, data: &str) -> Frame {
        Frame { event: event.to_owned(), id: id.map(str::to_owned), data: data.to_owned() }
    }

    fn parse(bytes: &[u8]) -> Vec<Frame> {
        let mut parser = Parser::default();
        parser.push(bytes).unwrap();
        std::iter::from_fn(|| parser.next()).collect()
    }

    #[test]
    fn a_frame_has_event_id_and_data() {
        assert_eq!(parse(b"event: gap\nid: 7\ndata: {}\n\n"), [frame("gap", Some("7"), "{}")]);
    }

    #[test]
    fn lines_of_data_are_joined_and_comments_are_skipped() {
        assert_eq!(parse(b": alive\n\ndata: a\ndata:b\n\n"), [frame("message", None, "a\nb")]);
    }

    #[test]
    fn an_id_stays_until_the_next_one() {
        let frames = parse(b"id: 1\ndata: a\n\ndata: b\n\n");
        assert_eq!(frames, [frame("message", Some("1"), "a"), frame("message", Some("1"), "b")]);
    }

    #[test]
    fn a_frame_without_its_empty_line_is_not_given_out() {
        assert_eq!(parse(b"data: half\n"), []);
    }

    #[test]
    fn the_frames_are_the_same_wherever_the_bytes_are_cut() {
        let stream = "event: line\r\nid: 3\r\ndata: {\"text\":\"größer\"}\r\n\r\n:\n\ndata: x\n\n".as_bytes();
        let whole = parse(stream);
        assert_eq!(whole.len(), 2);
        for cut in 0..=stream.len() {
            let mut parser = Parser::default();
            parser.push(&stream[..cut]).unwrap();
            parser.push(&stream[cut..]).unwrap();
            let frames: Vec<Frame> = std::iter::from_fn(|| parser.next()).collect();
            assert_eq!(frames, whole, "cut at {cut}");
        }
    }

    #[test]
    fn a_long_id_is_refused_before_many_frames_repeat_it() {
        let mut stream = b"id: ".to_vec();
        stream.extend(vec![b'7'; 1 << 16]);
        stream.extend(b"\ndata\n\n".repeat(100));
        assert_eq!(Parser::default().push(&stream), Err(TooLong));
    }

    #[test]
    fn a_frame_without_end_is_refused_before_it_fills_the_memory() {
        let mut parser = Parser::default();
        let piece = vec![b'x'; 1 << 20];
        let refused = (0..8).map(|_| parser.push(&piece)).find(Result::is_err);
        assert_eq!(refused, Some(Err(TooLong)));
    }
}
