//! A URL of a bucket, its credentials, and the part of both that may be shown.
//!
//! **Invariant:** no credential, neither as it was written nor decoded, is ever in a text that leaves this engine.

use std::fmt;

use percent_encoding::percent_decode_str;

const FORM: &str = "it must be s3://[key:secret@]bucket[/prefix][?endpoint=…&region=…]";

/// The region of a URL that names none, and the one that stores without regions expect.
const REGION: &str = "us-east-1";

/// Bounds the length of keys, which have 1,024 bytes at most.
const PREFIX_BYTES_MAX: usize = 256;

/// Where a bucket is.
pub(super) struct Address {
    pub(super) bucket: String,
    /// Without a slash at either end. Empty: everything is at the root of the bucket.
    pub(super) prefix: String,
    pub(super) region: String,
    /// The server, if it is not that of the region.
    pub(super) endpoint: Option<String>,
    pub(super) access_key: String,
    pub(super) secret_key: String,
    pub(super) session_token: Option<String>,
    secrets: Vec<String>,
    place: String,
}

/// What a URL may say besides the bucket.
#[derive(Default)]
struct Said {
    endpoint: Option<String>,
    region: Option<String>,
    access_key: Option<String>,
    secret_key: Option<String>,
    session_token: Option<String>,
}

impl Address {
    /// Credentials that the URL does not have come from the environment. Says why not without quoting the URL.
    pub(super) fn parse(url: &str, environment: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let rest = url.strip_prefix("s3://").ok_or(FORM)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, bucket) = authority.rsplit_once('@').unwrap_or(("", authority));
        let mut secrets = Vec::new();
        let mut said = Said::parse(query, &mut secrets)?;
        if !user.is_empty() {
            let (key, secret) = user.split_once(':').ok_or(FORM)?;
            said.access_key = Some(hide(&mut secrets, key));
            said.secret_key = Some(hide(&mut secrets, secret));
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if bucket.is_empty() || !bucket.bytes().all(plain) {
            return Err(format!("{FORM}; a `/` in a secret is written %2F"));
        }
        let prefix = prefix.trim_end_matches('/');
        let part = |part: &str| !part.is_empty() && part != "." && part != ".." && part.bytes().all(plain);
        if prefix.len() > PREFIX_BYTES_MAX || !prefix.is_empty() && !prefix.split('/').all(part) {
            return Err(format!(
                "a prefix is at most {PREFIX_BYTES_MAX} letters, digits, '-', '_' and '.', in parts with '/' between"
            ));
        }
        let from = |name: &str| environment(name).filter(|value| !value.is_empty());
        // A token belongs to the keys it came with.
        let token = match (&said.access_key, said.session_token) {
            (None, None) => from("AWS_SESSION_TOKEN"),
            (_, token) => token,
        };
        let access_key = said.access_key.or_else(|| from("AWS_ACCESS_KEY_ID"));
        let secret_key = said.secret_key.or_else(|| from("AWS_SECRET_ACCESS_KEY"));
        let (Some(access_key), Some(secret_key)) = (access_key, secret_key) else {
            return Err(
                "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY".to_owned()
            );
        };
        let region = said.region.or_else(|| from("AWS_REGION")).or_else(|| from("AWS_DEFAULT_REGION"));
        let region = region.unwrap_or_else(|| REGION.to_owned());
        for secret in [Some(&access_key), Some(&secret_key), token.as_ref()].into_iter().flatten() {
            hide(&mut secrets, secret);
        }
        let server = said.endpoint.clone().unwrap_or_else(|| format!("region {region}"));
        let slash = if prefix.is_empty() { "" } else { "/" };
        Ok(Self {
            place: format!("s3://{bucket}{slash}{prefix} at {server}"),
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
            region,
            endpoint: said.endpoint,
            access_key,
            secret_key,
            session_token: token,
            secrets,
        })
    }

    /// The bucket, the prefix and the server.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// A foreign message, without our secrets.
    pub(super) fn scrub(&self, text: &str) -> String {
        self.secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret, "***"))
    }

    /// Whether what is sent can be read on the way.
    pub(super) fn is_plain(&self) -> bool {
        self.endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"))
    }
}

impl Said {
    fn parse(query: &str, secrets: &mut Vec<String>) -> Result<Self, String> {
        let mut said = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match key {
                "endpoint" => said.endpoint = Some(endpoint(&decode(value))?),
                "region" => said.region = Some(region(&decode(value))?),
                "access_key" => said.access_key = Some(hide(secrets, value)),
                "secret_key" => said.secret_key = Some(hide(secrets, value)),
                "session_token" => said.session_token = Some(hide(secrets, value)),
                _ => {
                    return Err(
                        "it has a parameter that is none of endpoint, region, access_key, secret_key and \
                                session_token"
                            .to_owned(),
                    );
                }
            }
        }
        Ok(said)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Address").field(&self.place).finish()
    }
}

fn endpoint(text: &str) -> Result<String, String> {
    let text = text.trim_end_matches('/');
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:[]".contains(&byte);
    match host {
        Some(host) if !host.is_empty() && host.bytes().all(plain) => Ok(text.to_owned()),
        Some(_) | None => Err("its endpoint must be http://host[:port] or https://host[:port]".to_owned()),
    }
}

fn region(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if text.is_empty() || !text.bytes().all(plain) {
        return Err("its region must be letters, digits and '-'".to_owned());
    }
    Ok(text.to_owned())
}

/// Remembers a secret, and answers it decoded.
fn hide(secrets: &mut Vec<String>, written: &str) -> String {
    let decoded = decode(written);
    for secret in [written.to_owned(), decoded.clone()] {
        if !secret.is_empty() && !secrets.contains(&secret) {
            secrets.push(secret);
        }
    }
    decoded
}

fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: &str) -> Option<String> {
        None
    }

    fn environment(name: &str) -> Option<String> {
        let value = match name {
            "AWS_ACCESS_KEY_ID" => "outer-key",
            "AWS_SECRET_ACCESS_KEY" => "outer-secret",
            "AWS_SESSION_TOKEN" => "outer-token",
            "AWS_REGION" => "eu-central-1",
            _ => return None,
        };
        Some(value.to_owned())
    }

    #[test]
    fn a_place_has_no_secret() {
        let url = "s3://inner:s%2Fcret@bucket/a/b/?endpoint=http://127.0.0.1:8333/&region=r-1";
        let address = Address::parse(url, environment).unwrap();
        assert_eq!(address.place(), "s3://bucket/a/b at http://127.0.0.1:8333");
        assert_eq!((address.access_key.as_str(), address.secret_key.as_str()), ("inner", "s/cret"));
        assert_eq!(address.session_token, None, "that of the environment belongs to other keys");
        assert_eq!(address.scrub("inner s%2Fcret s/cret"), "*** *** ***");
        assert!(!format!("{address:?}").contains("cret"));
        assert!(address.is_plain());
    }

    #[test]
    fn missing_parts_of_a_url_come_from_the_environment() {
        let address = Address::parse("s3://bucket", environment).unwrap();
        assert_eq!(address.place(), "s3://bucket at region eu-central-1");
        assert_eq!(address.secret_key, "outer-secret");
        assert_eq!(address.session_token.as_deref(), Some("outer-token"));
        assert_eq!(address.scrub("outer-key outer-secret outer-token"), "*** *** ***");
        assert!(!address.is_plain());
        let error = Address::parse("s3://bucket", nothing).unwrap_err();
        assert!(error.contains("set AWS_ACCESS_KEY_ID"), "{error}");
    }

    #[test]
    fn a_url_that_is_none_is_refused_without_being_quoted() {
        for url in [
            "canary",
            "http://key:canary@bucket",
            "s3://",
            "s3://key:can/ary@bucket/prefix",
            "s3://canary@bucket",
            "s3://key:canary@bucket/a//b",
            "s3://key:canary@bucket/a/../b",
            "s3://key:canary@bucket/pre fix",
            "s3://key:canary@bucket?secret=canary",
            "s3://key:canary@bucket?endpoint=ftp://host",
            "s3://key:canary@bucket?endpoint=http://canary@host",
            "s3://key:canary@bucket?region=",
        ] {
            let why = Address::parse(url, environment).unwrap_err();
            assert!(!why.contains("canary") && !why.contains("can/"), "{url}: {why}");
        }
    }
}
