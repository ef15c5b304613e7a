//! The one place that knows the driver: objects in a bucket, timeouts, and whether a failed request may have
//! been done.
//!
//! **Invariant:** what depends on a condition is sent once. Only what is the same however often it is done (reading,
//! listing, deleting, and writing an object with a unique name) is tried again.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::try_join;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::client::{HttpError, HttpErrorKind};
use object_store::path::Path;
use object_store::{
    GetOptions, ObjectStore as _, PutMode, PutOptions, PutPayload, RetryConfig, UpdateVersion,
};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout_at;

use super::address::Address;
use super::wire::{Connector, No, Tls, innermost, within};
use crate::batch_frame::BATCH_FRAME_OVERHEAD_BYTES;
use crate::{BATCH_BYTES_MAX, Cause, Clock as _, Error, LogThrottle, SystemClock};

/// The largest object that is read. Bounds memory.
const OBJECT_BYTES_MAX: u64 = (BATCH_BYTES_MAX + BATCH_FRAME_OVERHEAD_BYTES) as u64;
/// Objects read or folders listed at once by one caller.
const AT_ONCE: usize = 16;
/// How often something that may be repeated is tried, within the time that one request has.
const TRIES: u32 = 3;
/// The pause before the second try; doubled before the next.
const PAUSE: Duration = Duration::from_millis(50);
/// Zero would be no time at all.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);

/// Why there is no success.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nothing was sent.
    Unsent(String),
    /// The condition does not hold (412), or there is nothing that it could hold for (404). Nothing was written.
    Unmet,
    /// Others were writing at the same time (409). Nothing was written, and nothing is known about them.
    Contested,
    /// The store said no. Nothing was written.
    Refused(String),
    /// It was sent, and its outcome is unknown.
    Lost(String),
}

/// An object as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) etag: String,
    pub(super) bytes: Vec<u8>,
}

/// An object as it was listed.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) size: usize,
    pub(super) modified: SystemTime,
}

/// A bucket. Every call blocks; callers do not wait for each other.
pub(super) struct Store {
    driver: AmazonS3,
    address: Address,
    timeout: Duration,
    /// Writes whose outcome is not known.
    outcomes: LogThrottle,
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
}

impl Store {
    pub(super) fn new(address: Address, timeout: Duration) -> Result<Self, Error> {
        let timeout = timeout.max(TIMEOUT_MIN);
        let wrong = |what: String| Error {
            operation: "connect to the bucket".to_owned(),
            retryable: false,
            source: Cause::Remote { place: address.place().to_owned(), what: address.scrub(&what) },
        };
        let tls = if address.is_plain() { Tls::Off } else { Tls::On };
        let retries = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&address.bucket)
            .with_region(&address.region)
            .with_access_key_id(&address.access_key)
            .with_secret_access_key(&address.secret_key)
            .with_allow_http(address.is_plain())
            .with_retry(retries)
            .with_http_connector(Connector::new(timeout, tls).map_err(wrong)?);
        if let Some(token) = &address.session_token {
            builder = builder.with_token(token);
        }
        if let Some(endpoint) = &address.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        let driver = builder.build().map_err(|error| wrong(innermost(&error)))?;
        // One thread moves the bytes of all callers, who wait on their own threads.
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("s3").enable_all().build();
        let runtime = runtime.map_err(|error| wrong(error.to_string()))?;
        Ok(Self { driver, address, timeout, outcomes: LogThrottle::for_outcomes(), runtime: Some(runtime) })
    }

    /// The outcome of a write is unknown.
    pub(super) fn unknown(&self, doing: &str, why: &str) {
        let reason = format!("{}: {}", self.address.place(), self.address.scrub(why));
        self.outcomes.failed(SystemClock.boot(), doing, &reason);
    }

    /// What became of a write is known.
    pub(super) fn settled(&self, doing: &str) {
        self.outcomes.succeeded(SystemClock.boot(), doing);
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// The object of a name; `None` if there is none.
    pub(super) fn get(&self, name: &str) -> Result<Option<Object>, Failure> {
        self.wait(async { self.repeated(async || self.fetch(name).await).await })
    }

    /// The objects of some names, in their order.
    pub(super) fn get_all(&self, names: &[String]) -> Result<Vec<Option<Object>>, Failure> {
        let fetching = names.iter().map(|name| self.repeated(async || self.fetch(name).await));
        self.wait(async { stream::iter(fetching).buffered(AT_ONCE).try_collect().await })
    }

    /// An object, and whether there is another; in the time of one request.
    pub(super) fn get_beside(&self, name: &str, other: &str) -> Result<(Option<Object>, bool), Failure> {
        let get = self.repeated(async || self.fetch(name).await);
        let look = self.repeated(async || self.look(other).await);
        self.wait(async { try_join(get, look).await })
    }

    /// Writes an object if there is none of this name, and answers its tag.
    pub(super) fn create(&self, name: &str, bytes: &[u8]) -> Result<String, Failure> {
        self.once(name, bytes, PutMode::Create)
    }

    /// Writes an object if the one that is there has this tag, and answers the new tag.
    pub(super) fn replace(&self, name: &str, etag: &str, bytes: &[u8]) -> Result<String, Failure> {
        let version = UpdateVersion { e_tag: Some(etag.to_owned()), version: None };
        self.once(name, bytes, PutMode::Update(version))
    }

    /// Writes an object with a single writer, unconditionally.
    pub(super) fn put(&self, name: &str, bytes: &[u8]) -> Result<String, Failure> {
        let bytes = bytes::Bytes::copy_from_slice(bytes);
        let put = async || self.send(name, bytes.clone(), PutMode::Overwrite).await;
        self.wait(async { self.repeated(put).await })
    }

    /// The objects in a folder in the order of their names, after a name, at most so many.
    pub(super) fn list(
        &self,
        folder: &str,
        after: Option<&str>,
        most: usize,
    ) -> Result<Vec<Listed>, Failure> {
        self.wait(async { self.repeated(async || self.listing(folder, after, most).await).await })
    }

    /// The last of the objects in a folder, after a name.
    pub(super) fn last(&self, folder: &str, after: &str) -> Result<Option<Listed>, Failure> {
        let mut last = None;
        self.each(folder, Some(after), |listed| last = Some(listed))?;
        Ok(last)
    }

    /// All objects in a folder and below it, after a name, in the order of their names. Each request has its time.
    pub(super) fn each(
        &self,
        folder: &str,
        after: Option<&str>,
        mut visit: impl FnMut(Listed),
    ) -> Result<(), Failure> {
        let mut after = after.map(str::to_owned);
        loop {
            let listed = self.list(folder, after.as_deref(), LIST_MAX)?;
            let all = listed.len() < LIST_MAX;
            after = listed.last().map(|last| last.name.clone());
            listed.into_iter().for_each(&mut visit);
            if all {
                return Ok(());
            }
        }
    }

    /// Deletes objects. One that is not there is deleted.
    pub(super) fn delete(&self, names: &[String]) -> Result<(), Failure> {
        for some in names.chunks(LIST_MAX) {
            let paths: Vec<Path> = some.iter().map(|name| path(name)).collect::<Result<_, _>>()?;
            let delete = async || {
                let paths = stream::iter(paths.clone()).map(Ok).boxed();
                let deleted = self.driver.delete_stream(paths).try_for_each(|_| async { Ok(()) }).await;
                deleted.or_else(|error| self.missing(&error))
            };
            self.wait(async { self.repeated(delete).await })?;
        }
        Ok(())
    }

    /// Deletes everything in some folders.
    pub(super) fn clear(&self, folders: &[String]) -> Result<(), Failure> {
        for some in folders.chunks(AT_ONCE) {
            let listing = some
                .iter()
                .map(|folder| self.repeated(async || self.listing(folder, None, usize::MAX).await));
            let found: Vec<Vec<Listed>> =
                self.wait(async { stream::iter(listing).buffered(AT_ONCE).try_collect().await })?;
            let names: Vec<String> = found.into_iter().flatten().map(|listed| listed.name).collect();
            self.delete(&names)?;
        }
        Ok(())
    }

    pub(super) fn error(&self, doing: &str, failure: Failure) -> Error {
        let (what, retryable) = match failure {
            Failure::Unsent(what) | Failure::Lost(what) => (what, true),
            Failure::Unmet => ("another node wrote first".to_owned(), true),
            Failure::Contested => ("others were writing at the same time".to_owned(), true),
            Failure::Refused(what) => (what, false),
        };
        let source =
            Cause::Remote { place: self.address.place().to_owned(), what: self.address.scrub(&what) };
        Error { operation: doing.to_owned(), retryable, source }
    }

    /// What an object holds is not what was written.
    pub(super) fn damaged(&self, doing: &str, name: &str, what: impl Into<String>) -> Error {
        let path = PathBuf::from(format!("s3://{}/{name}", self.address.bucket));
        let source = Cause::Damaged { path, offset: 0, what: what.into() };
        Error { operation: doing.to_owned(), retryable: false, source }
    }

    fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.as_ref().expect("it is there until it is dropped").block_on(work)
    }

    /// Sends a condition, once.
    fn once(&self, name: &str, bytes: &[u8], mode: PutMode) -> Result<String, Failure> {
        let bytes = bytes::Bytes::copy_from_slice(bytes);
        let until = tokio::time::Instant::now() + self.timeout;
        self.wait(async {
            match timeout_at(until, self.send(name, bytes, mode)).await {
                Ok(answer) => answer,
                Err(_) => Err(self.late()),
            }
        })
    }

    /// Tries until there is an answer, in the time of one request.
    async fn repeated<T>(&self, run: impl AsyncFn() -> Result<T, Failure>) -> Result<T, Failure> {
        let until = tokio::time::Instant::now() + self.timeout;
        let mut pause = PAUSE;
        for _ in 1..TRIES {
            match timeout_at(until, run()).await {
                Ok(Err(Failure::Unsent(_) | Failure::Lost(_) | Failure::Contested)) => {}
                Ok(answer) => return answer,
                Err(_) => return Err(self.late()),
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        timeout_at(until, run()).await.unwrap_or_else(|_| Err(self.late()))
    }

    fn late(&self) -> Failure {
        Failure::Lost(format!("no answer within {:?}", self.timeout))
    }

    async fn fetch(&self, name: &str) -> Result<Option<Object>, Failure> {
        let found = match self.driver.get_opts(&path(name)?, GetOptions::new()).await {
            Ok(found) => found,
            Err(error) => return self.missing(&error).map(|()| None),
        };
        if found.meta.size > OBJECT_BYTES_MAX {
            return Err(Failure::Refused(format!(
                "{name} has {} bytes, and is none of ours",
                found.meta.size
            )));
        }
        let etag = found.meta.e_tag.clone().unwrap_or_default();
        let bytes = found.bytes().await.map_err(|error| self.failure(&error))?;
        Ok(Some(Object { etag, bytes: bytes.into() }))
    }

    async fn look(&self, name: &str) -> Result<bool, Failure> {
        match self.driver.get_opts(&path(name)?, GetOptions::new().with_head(true)).await {
            Ok(_) => Ok(true),
            Err(error) => self.missing(&error).map(|()| false),
        }
    }

    async fn send(&self, name: &str, bytes: bytes::Bytes, mode: PutMode) -> Result<String, Failure> {
        let options = PutOptions { mode, ..PutOptions::default() };
        let written = self.driver.put_opts(&path(name)?, PutPayload::from(bytes), options).await;
        let written = written.map_err(|error| self.failure(&error))?;
        Ok(written.e_tag.unwrap_or_default())
    }

    async fn listing(&self, folder: &str, after: Option<&str>, most: usize) -> Result<Vec<Listed>, Failure> {
        let folder = path(folder)?;
        let found = match after {
            Some(after) => self.driver.list_with_offset(Some(&folder), &path(after)?),
            None => self.driver.list(Some(&folder)),
        };
        let listed = found.take(most).map_ok(|meta| Listed {
            name: String::from(meta.location),
            size: usize::try_from(meta.size).unwrap_or(usize::MAX),
            modified: meta.last_modified.into(),
        });
        listed.try_collect().await.map_err(|error| self.failure(&error))
    }

    /// An object that is not there is an answer.
    fn missing(&self, error: &object_store::Error) -> Result<(), Failure> {
        match self.failure(error) {
            Failure::Unmet => Ok(()),
            failure @ (Failure::Unsent(_) | Failure::Contested | Failure::Refused(_) | Failure::Lost(_)) => {
                Err(failure)
            }
        }
    }

    /// What an error of the driver proves.
    fn failure(&self, error: &(dyn StdError + 'static)) -> Failure {
        if let Some(no) = within::<No>(error) {
            return said(no);
        }
        match within::<HttpError>(error).map(HttpError::kind) {
            Some(HttpErrorKind::Connect) => Failure::Unsent(innermost(error)),
            Some(_) | None => Failure::Lost(innermost(error)),
        }
    }
}

/// Names in one listing or deletion.
pub(super) const LIST_MAX: usize = 1000;

fn said(no: &No) -> Failure {
    match (no.status, no.code.as_str()) {
        (404, "NoSuchBucket") => Failure::Refused("there is no such bucket".to_owned()),
        (404 | 412, _) => Failure::Unmet,
        (409, _) => Failure::Contested,
        (507, _) => Failure::Lost(format!("the store is full: {no}")),
        (_, "XMinioStorageFull" | "InsufficientCapacity" | "QuotaExceeded" | "StorageFull") => {
            Failure::Lost(format!("the store is full: {no}"))
        }
        (403, "RequestTimeTooSkewed") => {
            Failure::Refused(format!("{no}; the clock of this machine and that of the store differ"))
        }
        // What stands before the store, or the store itself, gave up: what it had begun may go on.
        (408 | 429 | 500.., _) => Failure::Lost(no.to_string()),
        (403, _) => Failure::Refused(format!("{no}; docs/engines/s3.md has the actions that the key needs")),
        _ => Failure::Refused(no.to_string()),
    }
}

fn path(name: &str) -> Result<Path, Failure> {
    Path::parse(name).map_err(|_| Failure::Refused(format!("{name} is no name of an object")))
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // It may be dropped where blocking is not allowed.
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(&self.address.place()).finish()
    }
}

/// A store that several handles use.
pub(super) type SharedStore = Arc<Store>;

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(status: u16, code: &str) -> String {
        let failure = said(&No { status, code: code.to_owned(), words: String::new() });
        format!("{failure:?}").chars().take_while(char::is_ascii_alphabetic).collect()
    }

    #[test]
    fn a_full_store_is_called_full_and_asked_again() {
        for (status, code) in [(507, ""), (507, "XMinioStorageFull"), (403, "QuotaExceeded")] {
            let failure = said(&No { status, code: code.to_owned(), words: String::new() });
            assert!(matches!(failure, Failure::Lost(ref what) if what.contains("the store is full")));
        }
    }

    #[test]
    fn only_what_proves_that_nothing_was_written_says_so() {
        assert_eq!(kind(404, "NoSuchKey"), "Unmet");
        assert_eq!(kind(404, ""), "Unmet");
        assert_eq!(kind(412, "PreconditionFailed"), "Unmet");
        assert_eq!(kind(409, "ConditionalRequestConflict"), "Contested");
        for status in [301, 400, 401, 403, 405, 411, 413] {
            assert_eq!(kind(status, ""), "Refused");
        }
        for status in [408, 429, 500, 501, 502, 503, 504, 507] {
            assert_eq!(kind(status, ""), "Lost");
        }
        assert_eq!(
            kind(404, "NoSuchBucket"),
            "Refused",
            "nothing is at its end in a bucket that is not there"
        );
    }
}
