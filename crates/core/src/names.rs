//! Names that users choose: of queues, workers and requests, and idempotency keys. Valid by construction.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use minicbor::{Decode, Decoder, Encode, Encoder, decode, encode};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::limits::{KEY_BYTES_MAX, NAME_BYTES_MAX};

macro_rules! text_newtype {
    ($(#[$doc:meta])* $name:ident, $check:path) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash)]
        pub struct $name(Arc<str>);

        impl Ord for $name {
            fn cmp(&self, other: &Self) -> Ordering {
                // Names that the state keeps share one text.
                if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.cmp(&other.0) }
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl $name {
            /// # Errors
            /// A sentence that says what is wrong with the text.
            pub fn new(text: &str) -> Result<Self, String> {
                $check(text)?;
                Ok(Self(Arc::from(text)))
            }

            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(TextVisitor($check)).map(Self)
            }
        }

        impl<C> Encode<C> for $name {
            fn encode<W: encode::Write>(&self, e: &mut Encoder<W>, _: &mut C) -> Result<(), encode::Error<W::Error>> {
                e.str(&self.0)?.ok()
            }
        }

        impl<'b, C> Decode<'b, C> for $name {
            fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Self, decode::Error> {
                Ok(Self(Arc::from(d.str()?)))
            }
        }
    };
}

text_newtype!(
    /// The name of a queue, a worker or a request: 1 to 128 bytes of `A–Z a–z 0–9 . _ : -`.
    Name,
    check_name
);
text_newtype!(
    /// An idempotency key: 1 to 256 bytes of any text without control characters.
    Key,
    check_key
);

/// What [`Name`]s are, as a regular expression.
pub const NAME_PATTERN: &str = "^[A-Za-z0-9._:-]+$";

fn check_name(text: &str) -> Result<(), String> {
    check_length("a name", text, NAME_BYTES_MAX)?;
    match text.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '-'))) {
        Some(bad) => Err(format!("a name has only letters, digits and . _ : -, but this one has {bad:?}")),
        None => Ok(()),
    }
}

fn check_key(text: &str) -> Result<(), String> {
    check_length("a key", text, KEY_BYTES_MAX)?;
    match text.chars().find(|c| c.is_control()) {
        Some(bad) => Err(format!("a key has no control characters, but this one has {bad:?}")),
        None => Ok(()),
    }
}

fn check_length(what: &str, text: &str, max: usize) -> Result<(), String> {
    match text.len() {
        0 => Err(format!("{what} must not be empty")),
        length if length > max => Err(format!("{what} has at most {max} bytes, but this one has {length}")),
        _ => Ok(()),
    }
}

struct TextVisitor(fn(&str) -> Result<(), String>);

impl serde::de::Visitor<'_> for TextVisitor {
    type Value = Arc<str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Arc<str>, E> {
        (self.0)(text).map_err(E::custom)?;
        Ok(Arc::from(text))
    }
}

#[cfg(feature = "openapi")]
mod schema {
    use utoipa::openapi::{ObjectBuilder, RefOr, Type, schema::Schema};

    use super::{KEY_BYTES_MAX, Key, NAME_BYTES_MAX, NAME_PATTERN, Name};

    impl utoipa::PartialSchema for Name {
        fn schema() -> RefOr<Schema> {
            ObjectBuilder::new()
                .schema_type(Type::String)
                .min_length(Some(1))
                .max_length(Some(NAME_BYTES_MAX))
                .pattern(Some(NAME_PATTERN))
                .into()
        }
    }
    impl utoipa::ToSchema for Name {}

    impl utoipa::PartialSchema for Key {
        fn schema() -> RefOr<Schema> {
            ObjectBuilder::new()
                .schema_type(Type::String)
                .min_length(Some(1))
                .max_length(Some(KEY_BYTES_MAX))
                .pattern(Some(r"^[^\u0000-\u001F\u007F-\u009F]+$"))
                .into()
        }
    }
    impl utoipa::ToSchema for Key {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_accepted_up_to_its_limit() {
        assert!(Name::new(&"n".repeat(NAME_BYTES_MAX)).is_ok());
        assert!(Name::new(&"n".repeat(NAME_BYTES_MAX + 1)).is_err());
        assert!(Name::new("").is_err());
    }

    #[test]
    fn a_name_with_slash_space_or_non_ascii_is_refused() {
        for bad in ["a/b", "a b", "ä", "a\n", "a\0"] {
            assert!(Name::new(bad).is_err(), "{bad:?}");
        }
        assert!(Name::new("Mail.out_1:eu-west").is_ok());
    }

    #[test]
    fn a_key_has_a_limit_and_no_control_characters() {
        assert!(Key::new(&"k".repeat(KEY_BYTES_MAX)).is_ok());
        assert!(Key::new(&"k".repeat(KEY_BYTES_MAX + 1)).is_err());
        assert!(Key::new("https://example.com/ä?x=1 2").is_ok());
        assert!(Key::new("a\tb").is_err());
    }
}
