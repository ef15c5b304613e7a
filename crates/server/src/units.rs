//! Durations and sizes as people write them, in settings and on the command line: `30s`, `1h30m`, `16KiB`.

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

const DURATION_UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
const SIZE_UNITS: [(&str, u64); 4] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("B", 1)];

/// A duration: a whole number and `ms`, `s`, `m`, `h` or `d`, or a sum of these.
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
        let how = || format!("{text:?} is not a duration; write it like 100ms, 30s, 5m, 2h, 7d or 1h30m");
        let (mut millis, mut rest) = (0_u64, text);
        loop {
            let (number, after) = split(rest).ok_or_else(how)?;
            let unit_end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
            let (unit, next) = after.split_at(unit_end);
            let (_, scale) = DURATION_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(how)?;
            let sum = number.checked_mul(*scale).and_then(|part| millis.checked_add(part));
            millis = sum.ok_or_else(|| format!("{text:?} is too long; a duration is 30s, 2h or 7d"))?;
            if next.is_empty() {
                return Ok(Self(Duration::from_millis(millis)));
            }
            rest = next;
        }
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
    fn durations_are_read_with_their_unit() {
        let millis = |text: &str| text.parse::<Span>().map(Span::millis);
        assert_eq!(millis("0ms"), Ok(0));
        assert_eq!(millis("1500ms"), Ok(1_500));
        assert_eq!(millis("30s"), Ok(30_000));
        assert_eq!(millis("5 m"), Ok(300_000));
        assert_eq!(millis("24h"), Ok(86_400_000));
        assert_eq!(millis("7d"), Ok(604_800_000));
        assert_eq!(millis("1h30m"), Ok(5_400_000));
        assert_eq!(millis("18446744073709551614ms1ms"), Ok(u64::MAX));
        assert!(millis("18446744073709551615ms1ms").is_err());
    }

    #[test]
    fn a_duration_without_a_unit_or_with_a_sign_is_refused() {
        for bad in [
            "",
            "5",
            "s",
            "-1s",
            "1.5h",
            "5 weeks",
            "1h30",
            "1h 30m",
            "99999999999999999999s",
            "18446744073709551615d",
        ] {
            let error = bad.parse::<Span>().unwrap_err();
            assert!(error.contains("30s"), "{error}");
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
