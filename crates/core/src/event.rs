//! The declaration of an entity's events, and the encoding of their bodies: an array of its fields by number in
//! CBOR. Fields may be added at the end as options; a changed meaning is a new kind.
//!
//! Their JSON is that of `orchestrix journal dump`, which shows what is stored. What `/v1/events` shows is in `wire::events`.

use minicbor::Decode;

use crate::record::RecordError;

/// The newest format of records that this version reads and, after `FormatRaised`, writes.
pub const FORMAT: u8 = 2;

/// The format of a new journal, and of every journal before its first `FormatRaised`.
pub const FIRST_FORMAT: u8 = 1;

/// The format with the bus: nodes, owners and offers, and the worker in a report about a lease that nobody has started.
pub const WITH_BUS: u8 = 2;

/// The first format whose readers know a kind.
pub(crate) const fn format_of(kind: u8) -> u8 {
    if kind <= LAST_OF_FIRST { FIRST_FORMAT } else { WITH_BUS }
}

/// The last kind that the readers of the first format know.
const LAST_OF_FIRST: u8 = 22;

/// Defines the events of an entity, the enum of them, and the way between an event and its kind.
macro_rules! events {
    (
        $(#[$about:meta])* $all:ident of $entity:ident;
        $($(#[$doc:meta])* $kind:literal $name:ident { $($body:tt)* })*
    ) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, PartialEq, minicbor::Encode, minicbor::Decode, serde::Serialize)]
            pub struct $name { $($body)* }

            impl $name {
                /// The number that stands for this type in the journal.
                pub const KIND: u8 = $kind;
            }

            impl From<$name> for $all {
                fn from(event: $name) -> Self {
                    Self::$name(event)
                }
            }

            impl From<$name> for $crate::Event {
                fn from(event: $name) -> Self {
                    Self::$entity($all::$name(event))
                }
            }
        )*

        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize)]
        #[serde(tag = "type")]
        pub enum $all {
            $($name($name),)*
        }

        impl $all {
            /// The numbers that stand for these types in the journal.
            pub(crate) const KINDS: &'static [u8] = &[$($kind),*];
            #[cfg(test)]
            pub(crate) const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            /// The number that stands for its type in the journal.
            #[must_use]
            pub fn kind(&self) -> u8 {
                match self { $(Self::$name(_) => $kind,)* }
            }

            /// Its type, as people see it.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => stringify!($name),)* }
            }

            pub(crate) fn encode_body(&self, out: &mut Vec<u8>) {
                let written = match self { $(Self::$name(event) => minicbor::encode(event, out),)* };
                written.expect("writing to memory cannot fail");
            }

            /// `None` when the kind is not one of these.
            pub(crate) fn decode_body(
                kind: u8,
                body: &[u8],
            ) -> Option<Result<$crate::Event, $crate::RecordError>> {
                match kind {
                    $($kind => Some($crate::event::decode_whole::<$name>(body).map(Into::into)),)*
                    _ => None,
                }
            }
        }
    };
}

pub(crate) use events;

pub(crate) fn decode_whole<'b, T: Decode<'b, ()>>(body: &'b [u8]) -> Result<T, RecordError> {
    let mut decoder = minicbor::Decoder::new(body);
    let value = decoder.decode()?;
    if decoder.position() != body.len() {
        return Err(minicbor::decode::Error::message("there are bytes after the last field").into());
    }
    Ok(value)
}
