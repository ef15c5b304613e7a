//! Probes whether a store keeps its conditions, and warns of properties that cannot be probed.

use super::keys::{Keys, Nonce};
use super::store::{Failure, Store};
use crate::{Cause, Error};

const DOING: &str = "try the conditions of the store";

/// Tries conditional writing on an object of its own, which is removed again. A store that writes where it should
/// refuse is refused itself.
pub(super) fn conditions(store: &Store, keys: &Keys) -> Result<(), Error> {
    let name = keys.probe(&Nonce::draw()?);
    let tried = try_all(store, &name);
    // What is left of it does no harm.
    let removed = store.delete(&[name]);
    tried?;
    removed.map_err(|failure| store.error(DOING, failure))
}

fn try_all(store: &Store, name: &str) -> Result<(), Error> {
    let failed = |failure: Failure| store.error(DOING, failure);
    let first = store.create(name, b"first").map_err(failed)?;
    if first.is_empty() {
        return Err(refused(store, "it gives objects no ETag"));
    }
    refuses(store, store.create(name, b"again"), "If-None-Match: *")?;
    let second = store.replace(name, &first, b"second").map_err(|failure| match failure {
        Failure::Unmet => refused(store, "it refuses If-Match with the ETag that it gave"),
        other @ (Failure::Unsent(_) | Failure::Contested | Failure::Refused(_) | Failure::Lost(_)) => {
            failed(other)
        }
    })?;
    refuses(store, store.replace(name, &first, b"stale"), "If-Match")?;
    let there = store.get(name).map_err(failed)?;
    if there.is_none_or(|there| there.bytes != b"second" || there.etag != second) {
        return Err(refused(
            store,
            "it does not give back what was written last, with the ETag of that writing",
        ));
    }
    Ok(())
}

/// What should have been refused.
fn refuses(store: &Store, answer: Result<String, Failure>, condition: &str) -> Result<(), Error> {
    match answer {
        Err(Failure::Unmet | Failure::Contested) => Ok(()),
        Ok(_) => Err(refused(store, &format!("it ignores the condition {condition}"))),
        Err(failure @ (Failure::Unsent(_) | Failure::Refused(_) | Failure::Lost(_))) => {
            Err(store.error(DOING, failure))
        }
    }
}

fn refused(store: &Store, why: &str) -> Error {
    let what = format!("this store cannot hold a journal: {why}. Two writers would overwrite each other");
    let source = Cause::Remote { place: store.address().place().to_owned(), what };
    Error { operation: DOING.to_owned(), retryable: false, source }
}

/// What no trying shows, as sentences.
pub(super) fn warnings(store: &Store) -> Vec<String> {
    let mut warnings = Vec::new();
    let address = store.address();
    if let Some(endpoint) = &address.endpoint {
        warnings.push(format!(
            "{endpoint} keeps conditions, but cannot be asked whether every read sees the last write, and whether \
             what it acknowledged is on disk: read what it promises"
        ));
    }
    let inside = ["http://127.", "http://localhost", "http://[::1]"];
    let outside = |endpoint: &String| !inside.iter().any(|start| endpoint.starts_with(start));
    if address.is_plain() && address.endpoint.as_ref().is_some_and(outside) {
        warnings.push("what is sent to the store is not encrypted: use https://".to_owned());
    }
    warnings
}
