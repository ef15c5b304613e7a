//! The queue of frames: short ones first, then a piece of each message in turn, so that a long one delays no other.
//!
//! **Invariant:** no more long messages than the limit are begun and not ended, so the other end has no more of them in part.

use std::collections::{HashMap, VecDeque};

use crate::link::frame::{self, Kind, PAYLOAD_BYTES_MAX};
use crate::link::message::AskId;

/// A message on its way out, and what is held until all of it is handed over.
#[derive(Debug)]
pub(super) struct Sending<H> {
    bytes: Vec<u8>,
    sent: usize,
    has_turn: bool,
    _held: H,
}

impl<H> Sending<H> {
    pub(super) fn new(bytes: Vec<u8>, held: H) -> Self {
        Self { bytes, sent: 0, has_turn: false, _held: held }
    }

    /// Whether nothing of it was handed over.
    pub(super) fn is_unsent(&self) -> bool {
        self.sent == 0
    }

    /// Whether it takes more than one frame.
    fn is_long(&self) -> bool {
        self.bytes.len() > PAYLOAD_BYTES_MAX
    }
}

#[derive(Debug)]
pub(super) struct Outbox<H> {
    kind: Kind,
    control: Vec<u8>,
    /// One answers all the `ping`s since the last.
    owes_pong: bool,
    messages: HashMap<AskId, Sending<H>>,
    /// Whose piece is next. Messages that were dropped are skipped.
    turns: VecDeque<AskId>,
    /// Long messages that begin when another one has ended.
    line: VecDeque<AskId>,
    /// Long messages that take turns.
    long: usize,
    long_max: usize,
    /// Bytes of messages that are not handed over.
    bytes: usize,
}

impl<H> Outbox<H> {
    /// An outbox whose messages are of a kind, with at most so many long ones taking turns.
    pub(super) fn new(kind: Kind, long_max: usize) -> Self {
        let (turns, line) = (VecDeque::new(), VecDeque::new());
        let (control, messages) = (Vec::new(), HashMap::new());
        Self { kind, control, owes_pong: false, messages, turns, line, long: 0, long_max, bytes: 0 }
    }

    pub(super) fn control(&mut self) -> &mut Vec<u8> {
        &mut self.control
    }

    /// Gives a sign of life. A peer that asks for many and reads none costs no memory.
    pub(super) fn pong(&mut self) {
        self.owes_pong = true;
    }

    pub(super) fn push(&mut self, ask: AskId, message: Sending<H>) {
        self.bytes += message.bytes.len();
        let is_long = message.is_long();
        self.messages.insert(ask, message);
        if is_long && self.long >= self.long_max {
            self.line.push_back(ask);
        } else {
            self.give_turn(ask);
        }
    }

    fn give_turn(&mut self, ask: AskId) {
        let Some(message) = self.messages.get_mut(&ask) else { return };
        message.has_turn = true;
        self.long += usize::from(message.is_long());
        self.turns.push_back(ask);
    }

    pub(super) fn get(&self, ask: AskId) -> Option<&Sending<H>> {
        self.messages.get(&ask)
    }

    /// The rest of a message is not sent. Answers the message, if it was here.
    pub(super) fn drop_message(&mut self, ask: AskId) -> Option<Sending<H>> {
        let message = self.messages.remove(&ask)?;
        self.bytes -= message.bytes.len() - message.sent;
        self.ended(&message);
        Some(message)
    }

    /// One that waits in line begins when a long message ends.
    fn ended(&mut self, message: &Sending<H>) {
        if !message.has_turn || !message.is_long() {
            return;
        }
        self.long -= 1;
        while self.long < self.long_max
            && let Some(next) = self.line.pop_front()
        {
            self.give_turn(next);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.control.is_empty() && !self.owes_pong && self.messages.is_empty()
    }

    /// Bytes of messages that are not handed over.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Messages that are not handed over whole.
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Moves frames into a buffer until it has about `enough` bytes.
    pub(super) fn fill(&mut self, buffer: &mut Vec<u8>, enough: usize) {
        if std::mem::take(&mut self.owes_pong) {
            frame::write(&mut self.control, Kind::Pong, true, 0, &[]);
        }
        buffer.append(&mut self.control);
        while buffer.len() < enough
            && let Some(ask) = self.turns.pop_front()
        {
            let Some(message) = self.messages.get_mut(&ask) else { continue };
            let rest = &message.bytes[message.sent..];
            let piece = &rest[..rest.len().min(PAYLOAD_BYTES_MAX)];
            let is_last = piece.len() == rest.len();
            frame::write(buffer, self.kind, is_last, ask.0, piece);
            message.sent += piece.len();
            self.bytes -= piece.len();
            if !is_last {
                self.turns.push_back(ask);
            } else if let Some(message) = self.messages.remove(&ask) {
                self.ended(&message);
            }
        }
    }
}
