//! The results of all tries of one call, for its final error.

use std::fmt;

use crate::error::NO_LEADER;

/// The tries so far: bounded by the number of addresses, because only the last one at each is kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tried {
    /// Address and reason, in the order in which the addresses were first asked.
    addresses: Vec<(String, String)>,
    /// One of the tries may have been carried out.
    pub(crate) perhaps_done: bool,
}

impl Tried {
    pub(crate) fn one(url: &str, why: String) -> Self {
        Self { addresses: vec![(url.to_owned(), why)], perhaps_done: false }
    }

    /// Whether the last answer of one of the addresses was that there is no leader.
    pub(crate) fn is_leaderless(&self) -> bool {
        self.addresses.iter().any(|(_, why)| why == NO_LEADER)
    }

    /// Adds tries that came later.
    pub(crate) fn add(&mut self, later: &Self) {
        self.perhaps_done |= later.perhaps_done;
        for (url, why) in &later.addresses {
            match self.addresses.iter_mut().find(|(known, _)| known == url) {
                Some((_, reason)) => reason.clone_from(why),
                None => self.addresses.push((url.clone(), why.clone())),
            }
        }
    }
}

/// All addresses with their reasons; nothing when there is one, because an error names its own.
impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.addresses.len() < 2 {
            return Ok(());
        }
        for (n, (url, why)) in self.addresses.iter().enumerate() {
            write!(f, "{}{url} ({why})", if n == 0 { "; tried " } else { ", " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_is_named_once_with_its_last_reason() {
        let mut tried = Tried::default();
        for (url, why) in [("http://a", "refused"), ("http://b", "no_leader"), ("http://a", "stopping")] {
            tried.add(&Tried::one(url, why.to_owned()));
        }
        assert_eq!(tried.to_string(), "; tried http://a (stopping), http://b (no_leader)");
    }

    #[test]
    fn a_single_address_is_left_to_the_error_itself() {
        assert_eq!(Tried::one("http://a", "refused".to_owned()).to_string(), "");
    }
}
