//! Random numbers for jitter and for unique names. They are not secret.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A random number: the standard library keys its hashers from the operating system.
pub(crate) fn number() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A fraction from 0 to just below 1.
pub(crate) fn fraction() -> f64 {
    let bits = u32::try_from(number() >> 32).expect("the upper half of a u64 fits a u32");
    f64::from(bits) / (f64::from(u32::MAX) + 1.0)
}

/// Thirty-two hexadecimal digits.
pub(crate) fn id() -> String {
    format!("{:016x}{:016x}", number(), number())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_do_not_repeat_and_have_one_length() {
        let ids: BTreeSet<String> = (0..1_000).map(|_| id()).collect();
        assert_eq!(ids.len(), 1_000);
        assert!(ids.iter().all(|id| id.len() == 32));
    }

    #[test]
    fn fractions_spread_over_the_whole_range() {
        let drawn: Vec<f64> = (0..1_000).map(|_| fraction()).collect();
        assert!(drawn.iter().all(|f| (0.0..1.0).contains(f)));
        assert!(drawn.iter().any(|f| *f < 0.1) && drawn.iter().any(|f| *f > 0.9));
    }
}
