//! How requests go out: one HTTP client with settings of ours, and answers as they were given.
//!
//! The driver turns statuses into kinds of errors, and two of them (409 and 412) into one. Here every answer but a
//! success becomes a [`No`] before the driver sees it, and is found again in the driver's error.

use std::error::Error as StdError;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use rustls::{ClientConfig, RootCertStore};

/// The longest explanation that is read, in bytes. They are meant for people.
const WORDS_BYTES_MAX: u64 = 64 << 10;

/// Connections kept for later. Bounds what an idle node costs the store.
const IDLE_MAX: usize = 8;
/// Stores close connections that are idle for longer; a request on such a connection loses its answer.
const IDLE_FOR: Duration = Duration::from_secs(10);

/// The store said no.
#[derive(Debug, thiserror::Error)]
#[error("{status} {code} {words}")]
pub(super) struct No {
    pub(super) status: u16,
    /// What the store calls it: `NoSuchKey`.
    pub(super) code: String,
    pub(super) words: String,
}

/// Makes clients for the driver.
#[derive(Debug)]
pub(super) struct Connector {
    client: reqwest::Client,
}

impl Connector {
    pub(super) fn new(timeout: Duration, tls: Tls) -> Result<Self, String> {
        let client = reqwest::Client::builder()
            .http1_only()
            // A redirect may lead to another store; a proxy may answer from its cache.
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .retry(reqwest::retry::never())
            .pool_max_idle_per_host(IDLE_MAX)
            .pool_idle_timeout(IDLE_FOR)
            .connect_timeout(timeout)
            .tls_backend_preconfigured(config(tls)?)
            .build()
            .map_err(|error| innermost(&error))?;
        Ok(Self { client })
    }
}

/// Whether requests are encrypted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tls {
    On,
    Off,
}

fn config(tls: Tls) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    if let Tls::On = tls {
        let found = rustls_native_certs::load_native_certs();
        let (added, _) = roots.add_parsable_certificates(found.certs);
        if added == 0 {
            return Err(
                "this machine has no certificates of authorities: install ca-certificates, or name a \
                        file of them in SSL_CERT_FILE"
                    .to_owned(),
            );
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Wire { client: self.client.clone() }))
    }
}

#[derive(Debug)]
struct Wire {
    client: reqwest::Client,
}

type Answer<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

impl HttpService for Wire {
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> Answer<'b>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let answer = HttpService::call(&self.client, request).await?;
            if answer.status().is_success() {
                return Ok(answer);
            }
            // Of an unknown kind, so that it is not retried.
            Err(HttpError::new(HttpErrorKind::Unknown, no(answer).await))
        })
    }
}

async fn no(answer: HttpResponse) -> No {
    let status = answer.status().as_u16();
    let length = answer.headers().get("content-length").and_then(|length| length.to_str().ok()?.parse().ok());
    let short = length.is_some_and(|length: u64| length <= WORDS_BYTES_MAX);
    // An explanation that does not come changes nothing about the answer.
    let body = if short { answer.into_body().bytes().await.unwrap_or_default() } else { bytes::Bytes::new() };
    let text = String::from_utf8_lossy(&body);
    No { status, code: element(&text, "Code"), words: element(&text, "Message") }
}

/// The text of an element of the XML that stores explain themselves with. Nothing else of it is used: it may repeat
/// parts of the request.
fn element(xml: &str, name: &str) -> String {
    let inside =
        xml.split_once(&format!("<{name}>")).and_then(|(_, rest)| rest.split_once(&format!("</{name}>")));
    inside.map_or(String::new(), |(text, _)| text.to_owned())
}

/// What is at the bottom of an error; what is above it only says that there is one.
pub(super) fn innermost(error: &(dyn StdError + 'static)) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

/// The first error of a kind below an error.
pub(super) fn within<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explanation_is_its_code_and_its_message() {
        let xml = "<Error><Code>NoSuchKey</Code><Message>not there</Message><Key>secret</Key></Error>";
        assert_eq!(
            (element(xml, "Code").as_str(), element(xml, "Message").as_str()),
            ("NoSuchKey", "not there")
        );
        assert_eq!(element("<Code>", "Code"), "");
    }
}
