//! Values that people write: JSON, names, keys, durations, sizes.

use orchestrix_core::limits::{JSON_DEPTH_MAX, KEY_BYTES_MAX, NAME_BYTES_MAX};
use orchestrix_core::{Json, Key, Name, canonical_hash, is_deeper};
use orchestrix_server::units::{Size, Span};
use serde_json::Value;

/// Accepted text is kept byte for byte; its canonical hash does not see how it is written.
pub(super) fn json(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let parsed = Json::parse(text);
    let as_value: Result<Value, _> = serde_json::from_str(text);
    let Ok(json) = parsed else {
        assert!(as_value.is_err() || is_deeper(input, JSON_DEPTH_MAX), "JSON of bounded depth is taken");
        return;
    };
    let blank = |c: char| matches!(c, ' ' | '\t' | '\r' | '\n');
    assert_eq!(json.as_str(), text.trim_matches(blank), "text is kept as it was sent");
    assert_eq!(serde_json::to_string(&json).ok().as_deref(), Some(json.as_str()));
    assert!(!is_deeper(json.as_str().as_bytes(), JSON_DEPTH_MAX));
    let hash = canonical_hash(text);
    assert_eq!(hash, canonical_hash(&format!(" \n{text}\t ")), "white space around it does not count");
    assert_eq!(hash, canonical_hash(&spread(json.as_str())), "white space inside it does not count");
    if let Ok(value) = as_value {
        check_order(&value);
    }
}

/// The same JSON with white space wherever that may stand.
fn spread(json: &str) -> String {
    let (mut spread, mut in_string, mut escaped) = (String::new(), false, false);
    for c in json.chars() {
        let structural = !in_string && "{}[]:,".contains(c);
        spread.push_str(if structural { " " } else { "" });
        spread.push(c);
        spread.push_str(if structural { "\n" } else { "" });
        in_string ^= c == '"' && !escaped;
        escaped = in_string && c == '\\' && !escaped;
    }
    spread
}

/// An object with its members in another order is the same; an array is not.
fn check_order(value: &Value) {
    let hash = canonical_hash(&value.to_string());
    match value {
        Value::Object(members) => {
            let turned: Vec<_> = members
                .iter()
                .rev()
                .map(|(name, value)| format!("{}:{value}", Value::from(name.as_str())))
                .collect();
            assert_eq!(
                hash,
                canonical_hash(&format!("{{{}}}", turned.join(","))),
                "order of names does not count"
            );
        }
        Value::Array(items) if items.first() != items.last() => {
            let turned: Vec<_> = items.iter().rev().collect();
            let turned = serde_json::to_string(&turned).unwrap_or_default();
            assert_ne!(hash, canonical_hash(&turned), "order in arrays counts");
        }
        Value::Array(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A name is taken if and only if it keeps the rules, whichever way it comes in.
pub(super) fn names(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    let is_name = (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(allowed);
    let is_key = (1..=KEY_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
    assert_eq!(Name::new(text).is_ok(), is_name);
    assert_eq!(Key::new(text).is_ok(), is_key);
    let quoted = Value::from(text).to_string();
    let (name, key): (Result<Name, _>, Result<Key, _>) =
        (serde_json::from_str(&quoted), serde_json::from_str(&quoted));
    assert_eq!(name.ok().as_ref().map(Name::as_str), is_name.then_some(text));
    assert_eq!(key.ok().as_ref().map(Key::as_str), is_key.then_some(text));
}

/// A duration is the sum of what its numbers and units say, a size what its number and unit say, or they are refused.
pub(super) fn units(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    assert_eq!(text.parse::<Span>().ok().map(Span::millis), sum_of_spans(text));
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = (text[..digits].parse::<u64>().ok(), text[digits..].trim_start());
    let scaled = |scale: Option<u64>| number?.checked_mul(scale?);
    let bytes = scaled(match unit {
        "" | "B" => Some(1),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        "GiB" => Some(1 << 30),
        _ => None,
    });
    assert_eq!(text.parse::<Size>().ok().map(|size| size.0 as u64), bytes);
}

/// Read from the end: the last unit, the blanks and the number before it, and then the same of what is left.
fn sum_of_spans(mut text: &str) -> Option<u64> {
    let mut sum = 0_u64;
    loop {
        let before_unit = text.trim_end_matches(|c: char| c.is_ascii_lowercase());
        let scale = match &text[before_unit.len()..] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        let before_blanks = before_unit.trim_end();
        text = before_blanks.trim_end_matches(|c: char| c.is_ascii_digit());
        let number: u64 = before_blanks[text.len()..].parse().ok()?;
        sum = number.checked_mul(scale)?.checked_add(sum)?;
        if text.is_empty() {
            return Some(sum);
        }
    }
}
