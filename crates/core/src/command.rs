//! Decisions, and checks that commands of all entities share.

use crate::{Event, Refusal};

pub use crate::wire::Outcome;

/// The answer of the rules to a command that they do not refuse.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// This happens now.
    Event(Event),
    /// It is a repeat of what has happened; this came of it then.
    Already(Outcome),
    /// There is nothing to do.
    Nothing,
}

impl From<Event> for Decision {
    fn from(event: Event) -> Self {
        Self::Event(event)
    }
}

pub(crate) fn in_range(field: &'static str, value: u64, min: u64, max: u64) -> Result<(), Refusal> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(invalid(field, format!("must be from {min} to {max}, not {value}")))
}

pub(crate) fn at_most(field: &'static str, items: usize, max: usize) -> Result<(), Refusal> {
    if items <= max {
        return Ok(());
    }
    Err(invalid(field, format!("has {items} items, at most {max} are accepted in one call")))
}

pub(crate) fn fits(field: &'static str, bytes: usize, max: usize) -> Result<(), Refusal> {
    if bytes <= max { Ok(()) } else { Err(Refusal::TooLarge { field, bytes, max }) }
}

pub(crate) fn invalid(field: &'static str, problem: String) -> Refusal {
    Refusal::Invalid { field, problem }
}
