//! Durations and sizes as people write them: `30s`, `24h`, `16KiB`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

const DURATION_UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
const SIZE_UNITS: [(&str, u64); 4] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("B", 1)];

/// A duration: a whole number and `ms`, `s`, `m`, `h` or `d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// A number of bytes: a whole number, alone or with `B`, `KiB`, `MiB` or `GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub usize);

impl Span {
    /// Whole milliseconds.
    #[must_use]
    pub fn millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let how =
            || format!("{text:?} is not a duration; write a whole number and ms, s, m, h or d, as in 30s");
        let (number, unit) = split(text).ok_or_else(how)?;
        let (_, scale) = DURATION_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(how)?;
        let millis = number.checked_mul(*scale).ok_or_else(|| format!("{text:?} is too long"))?;
        Ok(Self(Duration::from_millis(millis)))
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let how = || {
            format!(
                "{text:?} is not a size; write a number of bytes, or one with KiB, MiB or GiB, as in 16KiB"
            )
        };
        let (number, unit) = split(text).ok_or_else(how)?;
        let unit = if unit.is_empty() { "B" } else { unit };
        let (_, scale) = SIZE_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(how)?;
        let bytes = number.checked_mul(*scale).and_then(|bytes| usize::try_from(bytes).ok());
        bytes.map(Self).ok_or_else(|| format!("{text:?} is too large"))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.millis();
        let fitting = DURATION_UNITS.iter().rev().find(|(_, scale)| millis >= *scale && millis % scale == 0);
        let (unit, scale) = fitting.copied().unwrap_or(("ms", 1));
        write!(f, "{}{unit}", millis / scale)
    }
}

fn split(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit.trim_start()))
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(usize),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(bytes) => Ok(Self(bytes)),
            Written::Text(text) => text.parse().map_err(de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_with_their_unit() {
        for text in ["0ms", "1ms", "30s", "5m", "24h", "7d", "1500ms"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        assert_eq!("60s".parse::<Span>().unwrap().to_string(), "1m");
    }

    #[test]
    fn a_duration_without_a_unit_or_with_a_sign_is_refused() {
        for bad in ["", "5", "s", "-1s", "1.5h", "5 weeks", "99999999999999999999s", "18446744073709551615d"]
        {
            assert!(bad.parse::<Span>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn sizes_are_bytes_unless_they_say_otherwise() {
        let bytes = |text: &str| text.parse::<Size>().map(|size| size.0);
        assert_eq!(bytes("16384"), Ok(16_384));
        assert_eq!(bytes("16KiB"), Ok(16_384));
        assert_eq!(bytes("1 MiB"), Ok(1 << 20));
        assert!(bytes("1MB").is_err());
        assert!(bytes("-1").is_err());
    }
}
