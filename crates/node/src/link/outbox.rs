//! What is to be sent: short frames first, then a piece of each message in turn, so that a long one keeps nobody waiting.

use std::collections::VecDeque;

use crate::link::frame::{self, Kind, PAYLOAD_BYTES_MAX};
use crate::link::message::AskId;

/// A message on its way out, and what is held until all of it is handed over.
#[derive(Debug)]
pub(super) struct Sending<H> {
    pub(super) ask: AskId,
    pub(super) bytes: Vec<u8>,
    sent: usize,
    _held: H,
}

impl<H> Sending<H> {
    pub(super) fn new(ask: AskId, bytes: Vec<u8>, held: H) -> Self {
        Self { ask, bytes, sent: 0, _held: held }
    }
}

#[derive(Debug)]
pub(super) struct Outbox<H> {
    kind: Kind,
    control: Vec<u8>,
    messages: VecDeque<Sending<H>>,
}

impl<H> Outbox<H> {
    /// An outbox whose messages are of a kind.
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, control: Vec::new(), messages: VecDeque::new() }
    }

    pub(super) fn control(&mut self) -> &mut Vec<u8> {
        &mut self.control
    }

    pub(super) fn push(&mut self, message: Sending<H>) {
        self.messages.push_back(message);
    }

    /// The rest of a message is not sent.
    pub(super) fn drop_message(&mut self, ask: AskId) {
        self.messages.retain(|message| message.ask != ask);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.control.is_empty() && self.messages.is_empty()
    }

    /// Moves frames into a buffer until it has about `enough` bytes.
    pub(super) fn fill(&mut self, buffer: &mut Vec<u8>, enough: usize) {
        buffer.append(&mut self.control);
        while buffer.len() < enough
            && let Some(mut message) = self.messages.pop_front()
        {
            let rest = &message.bytes[message.sent..];
            let piece = &rest[..rest.len().min(PAYLOAD_BYTES_MAX)];
            let is_last = piece.len() == rest.len();
            frame::write(buffer, self.kind, is_last, message.ask.0, piece);
            message.sent += piece.len();
            if !is_last {
                self.messages.push_back(message);
            }
        }
    }
}
