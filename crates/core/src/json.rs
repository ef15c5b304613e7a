//! JSON as it was sent: payloads and results are kept as text, byte for byte, and never interpreted.

use std::fmt;
use std::sync::Arc;

use memchr::memchr2;
use minicbor::{Decode, Decoder, Encode, Encoder, decode, encode};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::limits::JSON_DEPTH_MAX;

/// One JSON value as its text. Shared, not copied.
#[derive(Clone, PartialEq, Eq)]
pub struct Json(Arc<str>);

impl Json {
    /// # Errors
    /// A sentence that says why this is not JSON that we take.
    pub fn parse(text: &str) -> Result<Self, String> {
        let raw: &RawValue = serde_json::from_str(text).map_err(|error| error.to_string())?;
        Self::from_raw(raw)
    }

    #[must_use]
    pub fn null() -> Self {
        Self(Arc::from("null"))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn from_raw(raw: &RawValue) -> Result<Self, String> {
        let text = raw.get();
        if is_deeper(text.as_bytes(), JSON_DEPTH_MAX) {
            return Err(format!("JSON is nested deeper than {JSON_DEPTH_MAX} levels"));
        }
        Ok(Self(Arc::from(text)))
    }
}

/// Sixteen bytes that are equal for two texts with the same meaning: white space, the order of the names
/// in objects and the way characters are escaped do not count; numbers count as they are written.
#[must_use]
pub fn canonical_hash(json: &str) -> [u8; 16] {
    let mut canonical = String::with_capacity(json.len());
    Reader { rest: json.trim_start() }.canonical(&mut canonical);
    let digest = Sha256::digest(canonical.as_bytes());
    let mut hash = [0; 16];
    hash.copy_from_slice(&digest[..16]);
    hash
}

/// Whether arrays and objects are nested deeper than `levels`, in JSON or in what pretends to be.
#[must_use]
pub fn is_deeper(json: &[u8], levels: usize) -> bool {
    // Text with few brackets cannot be deep, and counting them is much faster than following them.
    opening(json) > levels && goes_deeper(json, levels)
}

/// How many brackets open, in strings or not. Counted in bytes, of which a processor adds many at once if it need not
/// look for an overflow, and there is none in so few.
fn opening(json: &[u8]) -> usize {
    let opens = |count: u8, byte: &u8| count.wrapping_add(u8::from(matches!(byte, b'[' | b'{')));
    json.chunks(usize::from(u8::MAX)).map(|some| usize::from(some.iter().fold(0, opens))).sum()
}

fn goes_deeper(json: &[u8], levels: usize) -> bool {
    let (mut rest, mut depth) = (json, 0_usize);
    while let [byte, after @ ..] = rest {
        rest = after;
        match byte {
            b'"' => rest = after_string(after),
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > levels {
            return true;
        }
    }
    false
}

/// What follows the end of the string that this begins in. Most text is in strings, so they are skipped, not read.
fn after_string(inside: &[u8]) -> &[u8] {
    let mut rest = inside;
    while let Some(at) = memchr2(b'"', b'\\', rest) {
        if rest[at] == b'"' {
            return &rest[at + 1..];
        }
        rest = rest.get(at + 2..).unwrap_or_default();
    }
    &[]
}

/// Walks over valid JSON text of bounded depth.
struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn canonical(&mut self, out: &mut String) {
        match self.rest.as_bytes().first() {
            Some(b'{') => self.object(out),
            Some(b'[') => self.array(out),
            Some(b'"') => out.push_str(&self.string()),
            _ => out.push_str(self.scalar()),
        }
        self.rest = self.rest.trim_start();
    }

    fn object(&mut self, out: &mut String) {
        let mut members = Vec::new();
        self.skip(1);
        while !self.rest.is_empty() && !self.rest.starts_with('}') {
            let name = self.string();
            self.rest = self.rest.trim_start();
            self.skip(1);
            let mut value = String::new();
            self.canonical(&mut value);
            members.push((name, value));
            self.comma();
        }
        self.skip(1);
        // Members of one name stay in their order: for most readers the last of them counts.
        members.sort_by(|(one, _), (other, _)| one.cmp(other));
        out.push('{');
        for (n, (name, value)) in members.iter().enumerate() {
            out.push_str(if n == 0 { "" } else { "," });
            out.push_str(name);
            out.push(':');
            out.push_str(value);
        }
        out.push('}');
    }

    fn array(&mut self, out: &mut String) {
        self.skip(1);
        out.push('[');
        while !self.rest.is_empty() && !self.rest.starts_with(']') {
            self.canonical(out);
            if self.comma() {
                out.push(',');
            }
        }
        self.skip(1);
        out.push(']');
    }

    /// One string, escaped in the one way that `serde_json` escapes.
    fn string(&mut self) -> String {
        let mut escaped = false;
        let inner = self.rest.get(1..).unwrap_or_default();
        let end = inner.bytes().position(|byte| {
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        });
        let text = self.take(end.map_or(self.rest.len(), |end| end + 2));
        let plain: Result<String, _> = serde_json::from_str(text);
        plain.map_or_else(|_| text.to_owned(), |plain| serde_json::Value::from(plain).to_string())
    }

    fn scalar(&mut self) -> &str {
        let end = self.rest.find([',', ']', '}', ' ', '\n', '\r', '\t']).unwrap_or(self.rest.len());
        self.take(end.max(1))
    }

    fn comma(&mut self) -> bool {
        let found = self.rest.starts_with(',');
        if found {
            self.skip(1);
        }
        found
    }

    fn skip(&mut self, bytes: usize) {
        self.take(bytes);
        self.rest = self.rest.trim_start();
    }

    fn take(&mut self, bytes: usize) -> &'_ str {
        let (taken, rest) = self.rest.split_at_checked(bytes).unwrap_or((self.rest, ""));
        self.rest = rest;
        taken
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        Self::from_raw(raw).map_err(serde::de::Error::custom)
    }
}

impl<C> Encode<C> for Json {
    fn encode<W: encode::Write>(&self, e: &mut Encoder<W>, _: &mut C) -> Result<(), encode::Error<W::Error>> {
        e.str(&self.0)?.ok()
    }
}

impl<'b, C> Decode<'b, C> for Json {
    fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Self, decode::Error> {
        Ok(Self(Arc::from(d.str()?)))
    }
}

#[cfg(feature = "openapi")]
mod schema {
    use utoipa::openapi::{ObjectBuilder, RefOr, schema::Schema, schema::SchemaType};

    use super::Json;

    impl utoipa::PartialSchema for Json {
        fn schema() -> RefOr<Schema> {
            ObjectBuilder::new().schema_type(SchemaType::AnyValue).description(Some("Any JSON value.")).into()
        }
    }
    impl utoipa::ToSchema for Json {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_kept_as_it_was_sent() {
        let json = Json::parse(r#"{ "b": 1.50, "a": [1e400] }"#).unwrap();
        assert_eq!(json.as_str(), r#"{ "b": 1.50, "a": [1e400] }"#);
        assert_eq!(serde_json::to_string(&json).unwrap(), json.as_str());
    }

    #[test]
    fn nesting_is_accepted_up_to_its_limit() {
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert!(Json::parse(&nested(JSON_DEPTH_MAX)).is_ok());
        assert!(Json::parse(&nested(JSON_DEPTH_MAX + 1)).is_err());
        assert!(
            Json::parse(&format!("{:?}", "[".repeat(100))).is_ok(),
            "brackets inside a string are not nesting"
        );
    }

    /// The depth, read byte by byte.
    fn depth(json: &[u8]) -> usize {
        let (mut depth, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
        for byte in json {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if in_string => escaped = true,
                b'"' => in_string = !in_string,
                b'[' | b'{' if !in_string => {
                    depth += 1;
                    deepest = deepest.max(depth);
                }
                b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        deepest
    }

    proptest::proptest! {
        #[test]
        fn skipping_finds_the_depth_that_reading_finds(json in r#"[]\[{}"\\a]{0,600}"#, levels in 0_usize..40) {
            proptest::prop_assert_eq!(is_deeper(json.as_bytes(), levels), depth(json.as_bytes()) > levels);
        }
    }

    #[test]
    fn brackets_are_counted_past_what_a_byte_holds() {
        let nested = "[".repeat(10_000);
        assert!(is_deeper(nested.as_bytes(), 9_999) && !is_deeper(nested.as_bytes(), 10_000));
    }

    #[test]
    fn the_canonical_hash_depends_on_meaning_not_spelling() {
        let same = |a: &str, b: &str| canonical_hash(a) == canonical_hash(b);
        assert!(same(r#"{"a":1,"b":[true,null]}"#, " { \"b\" : [ true , null ] ,\n \"a\" : 1 } "));
        assert!(same(r#"{"k":"A\u00e9\/"}"#, r#"{"k":"\u0041é/"}"#));
        assert!(same(r#"{"a":{"y":"}","x":"\""}}"#, r#"{"a":{"x":"\"","y":"}"}}"#));
        assert!(!same("[1,2]", "[2,1]"));
        assert!(!same("1", "1.0"));
        assert!(!same(r#"{"a":"1"}"#, r#"{"a":1}"#));
        assert!(!same(r#"["a,b"]"#, r#"["a","b"]"#));
        assert!(!same(r#"{"a":1,"a":2}"#, r#"{"a":2,"a":1}"#), "the last of two with one name counts");
    }
}
