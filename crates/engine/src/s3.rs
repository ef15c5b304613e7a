//! The engine in a bucket of S3, or of a store that speaks like it, for several nodes.
//!
//! - `address`: a URL without its secrets. `wire`: the HTTP client. `store`: the one place that knows the driver.
//! - `probe`: whether a store keeps its conditions. `keys`: the names of all objects.
//! - `head`, `history`, `journal`, `poll`: the journal. `manifest`, `snapshots`; `cell`, `register`; `record`, `logs`:
//!   the other contracts, each with the form of its objects first.
//!
//! **Invariant:** every race is decided by one conditional write, which is sent once. An answer that did not come, or
//! does not say what became of it, is [`Unknown`](crate::Appended::Unknown).
//!
//! **Invariant:** no listing decides anything that a later read by name would decide otherwise.

mod address;
mod cell;
mod head;
mod history;
mod journal;
mod keys;
mod logs;
mod manifest;
mod poll;
mod probe;
mod record;
mod register;
mod snapshots;
mod store;
mod wire;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use self::address::Address;
use self::journal::S3Journal;
use self::keys::Keys;
use self::logs::S3Logs;
use self::register::S3Register;
use self::store::{SharedStore, Store};
use crate::{Cause, Error, Journal, JournalId, Logs, Register, Shared};

/// A prefix in a bucket as a place for one domain.
pub struct S3Place {
    store: SharedStore,
    keys: Arc<Keys>,
    register: Arc<S3Register>,
    logs: Arc<S3Logs>,
    /// The journal that was found first: another one in its place is not ours.
    journal: OnceLock<JournalId>,
    warnings: Vec<String>,
}

impl S3Place {
    /// Connects to `s3://[key:secret@]bucket[/prefix][?endpoint=…&region=…]` and tries whether the store keeps its
    /// conditions. Every later request waits at most `timeout` for its answer.
    ///
    /// Credentials that the URL does not have are those of `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and
    /// `AWS_SESSION_TOKEN`. The bucket must be there.
    ///
    /// # Errors
    /// When the URL is wrong, no store answers, the store does not let us in, or it ignores conditions.
    pub fn connect(url: &str, timeout: Duration) -> Result<Self, Error> {
        let address = Address::parse(url, |name| std::env::var(name).ok()).map_err(|what| Error {
            operation: "read the URL".to_owned(),
            retryable: false,
            source: Cause::Remote { place: "s3".to_owned(), what },
        })?;
        let keys = Arc::new(Keys::of(&address.prefix));
        let store = Arc::new(Store::new(address, timeout)?);
        probe::conditions(&store, &keys)?;
        let warnings = probe::warnings(&store);
        let register = Arc::new(S3Register::new(Arc::clone(&store), Arc::clone(&keys)));
        let logs = Arc::new(S3Logs::new(Arc::clone(&store), Arc::clone(&keys)));
        Ok(Self { store, keys, register, logs, journal: OnceLock::new(), warnings })
    }
}

impl Shared for S3Place {
    fn journal(&self) -> Result<Box<dyn Journal>, Error> {
        let known = self.journal.get().copied();
        let journal = S3Journal::open(Arc::clone(&self.store), Arc::clone(&self.keys), known)?;
        // Two that open at once find the same one.
        let _ = self.journal.set(journal.id());
        Ok(Box::new(journal))
    }

    fn register(&self) -> Arc<dyn Register> {
        Arc::<S3Register>::clone(&self.register)
    }

    fn logs(&self) -> Arc<dyn Logs> {
        Arc::<S3Logs>::clone(&self.logs)
    }

    fn place(&self) -> String {
        self.store.address().place().to_owned()
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }
}

impl fmt::Debug for S3Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("S3Place").field(&self.place()).finish()
    }
}
