//! What every entity does, and the one list of entities.
//!
//! An entity is a folder: its commands, its events, the rules between them (`decide`), what events change (`fold`), what is
//! kept (`state`), its section of a snapshot, and how others see it. `State` knows no more of it than these two traits.

use crate::snapshot::Section;
use crate::term::{TermCommand, TermEvent, TermStarted};
use crate::{Decision, Position, Refusal, Term, Timestamp};

/// Where an event stands in the journal, and when it happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) position: Position,
    pub(crate) at: Timestamp,
}

/// What a decision depends on besides the state and the command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) now: Timestamp,
    /// How many queues may have tasks at one time.
    pub(crate) queues_max: usize,
}

/// One kind of thing that the state is made of.
pub(crate) trait Entity: Section {
    type Command;
    type Event;

    /// Checks all that needs no state: sizes and ranges.
    fn validate(command: &Self::Command) -> Result<(), Refusal>;

    /// May this happen? An entity may look at the others, and changes nothing.
    fn decide(state: &State, command: &Self::Command, asked: Asked) -> Result<Decision, Refusal>;

    /// Called with the time of every event, before it is applied.
    fn pass_time(&mut self, _at: Timestamp) {}

    /// A term begins; `last` is the time of the event before it.
    fn begin_term(&mut self, _term: &TermStarted, _last: Timestamp, _here: Moment) {}

    /// Folds an event of this entity. Cannot refuse.
    fn apply(&mut self, event: Self::Event, here: Moment);
}

/// Makes commands, events and the state of the entities in a list, and the ways from one to the other.
macro_rules! entities {
    ($($(#[$meta:meta])* $name:ident { $field:ident: $entity:path, $command:path, $event:path })*) => {
        /// A question to the rules: may this happen?
        #[derive(Clone, Debug, PartialEq)]
        pub enum Command {
            Term(TermCommand),
            $($(#[$meta])* $name($command),)*
        }

        /// One thing that has happened.
        #[derive(Clone, Debug, PartialEq, serde::Serialize)]
        #[serde(untagged)]
        pub enum Event {
            Term(TermEvent),
            $($(#[$meta])* $name($event),)*
        }

        $($(#[$meta])*
        impl From<$command> for Command {
            fn from(command: $command) -> Self {
                Self::$name(command)
            }
        })*

        impl Command {
            /// Checks all that needs no state: sizes and ranges.
            ///
            /// # Errors
            /// The first field that is wrong.
            pub fn validate(&self) -> Result<(), Refusal> {
                match self {
                    Self::Term(TermCommand::Start { .. }) => Ok(()),
                    $($(#[$meta])* Self::$name(command) => <$entity>::validate(command),)*
                }
            }
        }

        impl Event {
            /// The number that stands for its type in the journal.
            #[must_use]
            pub fn kind(&self) -> u8 {
                match self {
                    Self::Term(event) => event.kind(),
                    $($(#[$meta])* Self::$name(event) => event.kind(),)*
                }
            }

            /// Its type, as people see it.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    Self::Term(event) => event.name(),
                    $($(#[$meta])* Self::$name(event) => event.name(),)*
                }
            }

            pub(crate) fn encode_body(&self, out: &mut Vec<u8>) {
                match self {
                    Self::Term(event) => event.encode_body(out),
                    $($(#[$meta])* Self::$name(event) => event.encode_body(out),)*
                }
            }

            pub(crate) fn decode_body(kind: u8, body: &[u8]) -> Result<Self, crate::RecordError> {
                $($(#[$meta])*
                if let Some(event) = <$event>::decode_body(kind, body) {
                    return event;
                })*
                if let Some(event) = TermEvent::decode_body(kind, body) {
                    return event;
                }
                Err(crate::RecordError::UnknownKind(kind))
            }

            /// The kinds of each entity.
            const KINDS: &'static [&'static [u8]] =
                &[TermEvent::KINDS, $($(#[$meta])* <$event>::KINDS),*];

            /// The types of each entity.
            #[cfg(test)]
            pub(crate) const NAMES: &'static [&'static [&'static str]] =
                &[TermEvent::NAMES, $($(#[$meta])* <$event>::NAMES),*];
        }

        /// All that the journal amounts to, after the event at [`State::position`].
        #[derive(Debug, Default)]
        pub struct State {
            pub(crate) position: Position,
            pub(crate) at: Timestamp,
            pub(crate) term: Term,
            pub(crate) epoch: u64,
            pub(crate) format: u8,
            /// A snapshot is being taken.
            pub(crate) capturing: bool,
            $($(#[$meta])* pub(crate) $field: $entity,)*
        }

        impl State {
            pub(crate) fn judge(&self, command: &Command, asked: Asked) -> Result<Decision, Refusal> {
                match command {
                    Command::Term(command) => Ok(self.judge_term(command)),
                    $($(#[$meta])* Command::$name(command) => <$entity>::decide(self, command, asked),)*
                }
            }

            /// Folds an event that stands here; `last` is the time of the one before it.
            #[inline]
            pub(crate) fn fold(&mut self, event: Event, last: Timestamp, here: Moment) {
                $($(#[$meta])* self.$field.pass_time(here.at);)*
                match event {
                    Event::Term(event) => self.apply_term(&event, last, here),
                    $($(#[$meta])* Event::$name(event) => self.$field.apply(event, here),)*
                }
            }

            pub(crate) fn begin_term(&mut self, term: &TermStarted, last: Timestamp, here: Moment) {
                $($(#[$meta])* self.$field.begin_term(term, last, here);)*
            }

            /// The sections of a snapshot, in their order.
            #[expect(clippy::vec_init_then_push, reason = "some are there in tests only")]
            pub(crate) fn sections(&self) -> Vec<&dyn Section> {
                let mut sections: Vec<&dyn Section> = Vec::new();
                $($(#[$meta])* sections.push(&self.$field);)*
                sections
            }

            #[expect(clippy::vec_init_then_push, reason = "some are there in tests only")]
            pub(crate) fn sections_mut(&mut self) -> Vec<&mut dyn Section> {
                let mut sections: Vec<&mut dyn Section> = Vec::new();
                $($(#[$meta])* sections.push(&mut self.$field);)*
                sections
            }
        }
    };
}

// In the order of their sections in a snapshot, which stays as it is: a new entity comes before tasks. These are last,
// because nothing says how many there are.
entities! {
    Shard { shards: crate::shards::Shards, crate::shards::ShardCommand, crate::shards::ShardEvent }
    Ownership {
        ownership: crate::ownership::Ownership, crate::ownership::OwnershipCommand, crate::ownership::OwnershipEvent
    }
    #[cfg(test)]
    Note { notes: crate::notes::Notes, crate::notes::NoteCommand, crate::notes::NoteEvent }
    Task { tasks: crate::tasks::Tasks, crate::tasks::TaskCommand, crate::tasks::TaskEvent }
}

// A number stands for one kind of event only.
const _: () = {
    let mut seen = [false; 256];
    let mut entity = 0;
    while entity < Event::KINDS.len() {
        let kinds = Event::KINDS[entity];
        let mut n = 0;
        while n < kinds.len() {
            assert!(!seen[kinds[n] as usize], "two events have one number");
            seen[kinds[n] as usize] = true;
            n += 1;
        }
        entity += 1;
    }
};
