//! Entries of a channel, their ids, and the checks of what is sent and read.

use std::fmt;

use orchestrix_core::LeaseId;

use super::{ENTRIES_MAX, MESSAGE_BYTES_MAX, Message, OFFERS_MAX, Offer, Queue, READ_CHANNELS_MAX};
use crate::Error;
use crate::fault::invalid;

/// The only field of an entry that is read.
pub(crate) const DATA: &str = "data";

/// Names an entry of a channel, and so how far a reader got. Ids grow within a channel. An offer has the id of its lease.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EntryId {
    pub major: u64,
    pub minor: u64,
}

/// An entry as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub id: EntryId,
    pub content: Content,
}

/// What an entry says.
#[derive(Clone, PartialEq, Eq)]
pub enum Content {
    Data(String),
    /// Without data, not UTF-8, or too long. Its length in bytes.
    Malformed {
        bytes: usize,
    },
}

impl EntryId {
    /// Before every entry.
    pub const ZERO: Self = Self { major: 0, minor: 0 };

    /// Reads the form `1-0`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once('-')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

impl From<LeaseId> for EntryId {
    fn from(lease: LeaseId) -> Self {
        Self { major: lease.0, minor: 0 }
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.major, self.minor)
    }
}

impl fmt::Debug for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Messages are long, and may be confidential.
impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(data) => write!(f, "Data({} bytes)", data.len()),
            Self::Malformed { bytes } => write!(f, "Malformed({bytes} bytes)"),
        }
    }
}

impl Content {
    /// What the fields of an entry say.
    pub(crate) fn of(fields: &[(Vec<u8>, Vec<u8>)]) -> Self {
        let bytes = length(fields.iter().map(|(field, value)| field.len() + value.len()).sum());
        let data = fields.iter().find(|(field, _)| field == DATA.as_bytes()).map(|(_, value)| value);
        let text = data.filter(|_| bytes <= MESSAGE_BYTES_MAX).and_then(|data| str::from_utf8(data).ok());
        text.map_or(Self::Malformed { bytes }, |text| Self::Data(text.to_owned()))
    }

    /// How much of a budget it spends.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Data(data) => data.len(),
            Self::Malformed { .. } => 0,
        }
    }
}

/// The length of an entry whose names and values have so many bytes: that of its data, if it has nothing else.
pub(crate) fn length(bytes: usize) -> usize {
    bytes.saturating_sub(DATA.len())
}

pub(crate) fn check_messages(doing: &str, messages: &[Message]) -> Result<(), Error> {
    check_count(doing, messages.len())?;
    messages.iter().try_for_each(|message| check_length(doing, &message.data))
}

pub(crate) fn check_count(doing: &str, count: usize) -> Result<(), Error> {
    if count > ENTRIES_MAX {
        return Err(invalid(doing, format!("{count} at once exceed the limit of {ENTRIES_MAX}")));
    }
    Ok(())
}

pub(crate) fn check_channels(doing: &str, count: usize) -> Result<(), Error> {
    if count > READ_CHANNELS_MAX {
        let why = format!("{count} channels at once exceed the limit of {READ_CHANNELS_MAX}");
        return Err(invalid(doing, why));
    }
    Ok(())
}

pub(crate) fn check_reclaimed(doing: &str, queue: &Queue) -> Result<(), Error> {
    match queue {
        Queue::Assigned | Queue::Handoff => Ok(()),
        Queue::Dispatch(_) => {
            Err(invalid(doing, "offers are never reclaimed: two workers would have one lease"))
        }
    }
}

pub(crate) fn check_offers(doing: &str, offers: &[Offer]) -> Result<(), Error> {
    if offers.len() > OFFERS_MAX {
        let why = format!("{} offers at once exceed the limit of {OFFERS_MAX}", offers.len());
        return Err(invalid(doing, why));
    }
    if !offers.is_sorted_by(|one, next| one.lease < next.lease) || offers.iter().any(|it| it.lease.0 == 0) {
        return Err(invalid(doing, "offers are published in the order of their leases"));
    }
    for offer in offers {
        check_length(doing, &offer.dispatch)?;
        check_length(doing, &offer.assigned)?;
    }
    Ok(())
}

fn check_length(doing: &str, data: &str) -> Result<(), Error> {
    if data.len() > MESSAGE_BYTES_MAX {
        let why = format!("a message of {} bytes exceeds the limit of {MESSAGE_BYTES_MAX}", data.len());
        return Err(invalid(doing, why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(fields: &[(&str, &[u8])]) -> Content {
        let owned: Vec<_> =
            fields.iter().map(|(field, value)| (field.as_bytes().to_vec(), value.to_vec())).collect();
        Content::of(&owned)
    }

    #[test]
    fn only_text_of_a_bounded_length_is_data() {
        assert_eq!(content(&[("data", b"{}")]), Content::Data("{}".to_owned()));
        assert_eq!(content(&[("x", b"y"), ("data", b"{}")]), Content::Data("{}".to_owned()));
        assert_eq!(content(&[("text", b"{}")]), Content::Malformed { bytes: 2 });
        assert_eq!(content(&[("data", b"\xff")]), Content::Malformed { bytes: 1 });
        let long = vec![b'x'; MESSAGE_BYTES_MAX + 1];
        assert_eq!(content(&[("data", &long)]), Content::Malformed { bytes: MESSAGE_BYTES_MAX + 1 });
        assert!(matches!(content(&[("data", &long[1..])]), Content::Data(_)));
    }

    #[test]
    fn an_id_is_read_as_it_is_written() {
        let id = EntryId { major: u64::MAX, minor: 7 };
        assert_eq!(EntryId::parse(&id.to_string()), Some(id));
        assert_eq!(EntryId::parse("7"), None);
        assert!(EntryId::from(LeaseId(9)) < EntryId { major: 9, minor: 1 });
    }
}
