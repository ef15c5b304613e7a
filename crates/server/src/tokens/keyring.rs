//! The current tokens. A reload of their file replaces all of them at once.
//!
//! **Invariant:** what goes on under a token that is not known any more, or whose time is over, ends: the token is out of
//! the ring before its end is announced, so nothing new begins under it.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use super::{Secret, Token, Tokens, wall_seconds};

/// How far the wall clock may be set forward before an end is noticed.
const LOOK_EVERY: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Keyring {
    tokens: RwLock<Arc<Tokens>>,
    replaced: Notify,
}

/// What became of tokens when others came.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Replaced {
    /// Those that are new, or not as they were.
    pub(crate) added: Vec<String>,
    /// Those that are gone, or not as they were.
    pub(crate) ended: Vec<String>,
}

impl Keyring {
    pub(crate) fn new(tokens: Tokens) -> Self {
        Self { tokens: RwLock::new(Arc::new(tokens)), replaced: Notify::new() }
    }

    fn now(&self) -> Arc<Tokens> {
        Arc::clone(&self.tokens.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Distinguishes two token files, regardless of their order and spelling.
    pub(crate) fn hash(&self) -> [u8; 32] {
        let mut tokens: Vec<String> = self.now().tokens.iter().map(|token| token.canonical()).collect();
        tokens.sort();
        Sha256::digest(tokens.join("\n")).into()
    }

    pub(crate) fn find(&self, secret: &Secret) -> Option<Arc<Token>> {
        self.now().find(secret).cloned()
    }

    /// Only these are known from now on. A token that is the same as before goes on.
    pub(crate) fn replace(&self, mut tokens: Tokens) -> Replaced {
        let mut ring = self.tokens.write().unwrap_or_else(PoisonError::into_inner);
        let mut replaced = Replaced::default();
        for token in &mut tokens.tokens {
            match ring.tokens.iter().find(|old| old.is_same(token)) {
                Some(old) => *token = Arc::clone(old),
                None => replaced.added.push(token.name.as_str().to_owned()),
            }
        }
        let is_kept = |old: &Arc<Token>| tokens.tokens.iter().any(|token| Arc::ptr_eq(token, old));
        let gone: Vec<_> = ring.tokens.iter().filter(|old| !is_kept(old)).cloned().collect();
        *ring = Arc::new(tokens);
        drop(ring);
        for token in gone {
            token.ended.cancel();
            replaced.ended.push(token.name.as_str().to_owned());
        }
        self.replaced.notify_one();
        replaced
    }

    /// Ends tokens as their time comes, for ever.
    pub(crate) async fn expire(&self) {
        loop {
            let now = wall_seconds();
            let tokens = self.now();
            let mut next = LOOK_EVERY;
            for token in &tokens.tokens {
                match token.expires {
                    Some(at) if at <= now => token.ended.cancel(),
                    Some(at) => next = next.min(Duration::from_secs(at - now)),
                    None => {}
                }
            }
            let changes = tokens.tokens.iter().any(|token| token.expires.is_some_and(|at| at > now));
            tokio::select! {
                () = tokio::time::sleep(next), if changes => {}
                () = self.replaced.notified() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, more: &str) -> String {
        let digest = format!("{:02x}", name.as_bytes()[0]).repeat(32);
        format!("[[token]]\nname = \"{name}\"\nroles = [\"read\"]\nsha256 = \"{digest}\"\n{more}\n")
    }

    fn tokens(entries: &[String]) -> Tokens {
        Tokens::parse(&entries.concat()).unwrap()
    }

    #[test]
    fn only_tokens_that_change_end() {
        let ring = Keyring::new(tokens(&[entry("a", ""), entry("b", ""), entry("c", "")]));
        let before = ring.now();
        let replaced =
            ring.replace(tokens(&[entry("d", ""), entry("c", "queues = [\"q\"]"), entry("a", "")]));
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(replaced, Replaced { added: names(&["d", "c"]), ended: names(&["b", "c"]) });
        let ended = |tokens: &Tokens| -> Vec<bool> {
            tokens.tokens.iter().map(|token| token.ended.is_cancelled()).collect()
        };
        assert_eq!(ended(&before), [false, true, true]);
        assert_eq!(ended(&ring.now()), [false, false, false]);
    }

    #[tokio::test]
    async fn a_token_ends_at_its_time_and_not_before() {
        let ring = Keyring::new(tokens(&[entry("a", "expires = 2020-01-01T00:00:00Z"), entry("b", "")]));
        let (over, lasts) = (Arc::clone(&ring.now().tokens[0]), Arc::clone(&ring.now().tokens[1]));
        tokio::select! {
            () = ring.expire() => unreachable!("it goes on for ever"),
            ended = tokio::time::timeout(4 * LOOK_EVERY, over.ended().cancelled()) => {
                ended.expect("it is over by now");
            }
        }
        assert!(!lasts.ended().is_cancelled());
    }
}
