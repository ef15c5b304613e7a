//! The smallest entity, which only tests have: it shows that the recipe of ARCHITECTURE.md, "To add an entity", is whole. A
//! note is written once, is kept for ever, and says nothing.

use minicbor::{Decode, Encode};

use crate::entity::{Asked, Entity, Moment};
use crate::event::events;
use crate::snapshot::{Header, Room, Section, SnapshotError, Step, Written, encode_item};
use crate::{Decision, Position, Refusal, State};

/// What stands for its section in snapshots.
const TAG: u8 = 250;

events! {
    /// What happens to notes.
    NoteEvent of Note;

    /// A note was written.
    250 NoteWritten {
        #[n(0)] pub text: String,
    }
}

/// What may be asked about notes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoteCommand {
    Write(String),
}

/// All notes.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    written: Vec<Note>,
    capture: Written,
}

#[derive(Clone, Debug, Encode, Decode)]
struct Note {
    #[n(0)]
    at: Position,
    #[n(1)]
    text: String,
}

impl Entity for Notes {
    type Command = NoteCommand;
    type Event = NoteEvent;

    fn validate(NoteCommand::Write(text): &NoteCommand) -> Result<(), Refusal> {
        crate::command::fits("text", text.len(), 9)
    }

    fn decide(_: &State, NoteCommand::Write(text): &NoteCommand, _: Asked) -> Result<Decision, Refusal> {
        Ok(Decision::Event(NoteWritten { text: text.clone() }.into()))
    }

    fn apply(&mut self, NoteEvent::NoteWritten(event): NoteEvent, here: Moment) {
        self.written.push(Note { at: here.position, text: event.text });
    }
}

impl Section for Notes {
    fn announce(&self, header: &mut Header) {
        header.announce(TAG, self.written.len());
    }

    fn expect(&mut self, header: &mut Header) -> Option<usize> {
        Some(header.take(TAG))
    }

    fn load(&mut self, item: &[u8], _: Moment) -> Result<(), SnapshotError> {
        self.written.push(minicbor::decode(item)?);
        Ok(())
    }

    fn each_item(&self, write: &mut dyn FnMut(&[u8])) {
        for note in &self.written {
            let mut item = Vec::new();
            encode_item(note, &mut item);
            write(&item);
        }
    }

    fn begin_capture(&mut self, _: Moment) {
        self.capture = Written::all(self);
    }

    fn step_capture(&mut self, room: Room, chunk: &mut Vec<u8>) -> Step {
        self.capture.step(room, chunk)
    }

    fn end_capture(&mut self) {
        self.capture = Written::default();
    }
}

mod tests;
