//! Protection against browsers: requests of foreign pages are refused before anything is done.

use std::net::IpAddr;

use http::header::{HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, TRANSFER_ENCODING};
use http::{Method, Uri, Version};

use crate::http::error::Fault;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// A request names its host once, so that everything on its way understands it alike. Simple tools that speak HTTP/1.0 may
/// leave it out.
pub(crate) fn check_one_host(version: Version, headers: &HeaderMap) -> Result<(), Fault> {
    match headers.get_all(HOST).iter().count() {
        0 if version >= Version::HTTP_11 => {
            Err(Fault::Invalid("the header Host is missing, which every request of HTTP/1.1 has".to_owned()))
        }
        0 | 1 => Ok(()),
        _ => Err(Fault::Invalid("the header Host is there more than once".to_owned())),
    }
}

/// A page that resolves its own name to this machine still says its own name here.
pub(crate) fn check_host(headers: &HeaderMap, uri: &Uri) -> Result<(), Fault> {
    let named = uri.authority().map(|authority| authority.as_str().as_bytes());
    let named = named.or_else(|| headers.get(HOST).map(HeaderValue::as_bytes));
    // Browsers always name a host; without one this is a simple tool.
    let Some(host) = named.map(String::from_utf8_lossy) else { return Ok(()) };
    if is_this_machine(&host) {
        return Ok(());
    }
    Err(Fault::Forbidden(format!(
        "the request is for host {host:?}, but without tokens only this machine is served: \
         use http://127.0.0.1 or http://localhost"
    )))
}

/// A foreign page may send simple requests, but it says that it is one.
pub(crate) fn check_origin(method: &Method, headers: &HeaderMap) -> Result<(), Fault> {
    if method == Method::GET || method == Method::HEAD {
        return Ok(());
    }
    let foreign = || Fault::Forbidden("requests of pages of other sites are refused".to_owned());
    if let Some(site) = headers.get(FETCH_SITE)
        && site != "same-origin"
        && site != "none"
    {
        return Err(foreign());
    }
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let origin = origin.to_str().ok().and_then(|origin| Some(origin.split_once("://")?.1));
    if origin.is_some() && origin == host { Ok(()) } else { Err(foreign()) }
}

/// Whether a host, with or without a port, is this machine by its own names.
fn is_this_machine(host: &str) -> bool {
    let (name, rest) = match host.strip_prefix('[') {
        Some(inner) => inner.split_once(']').unwrap_or_default(),
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    if !rest.is_empty() && !rest.strip_prefix(':').is_some_and(is_port) {
        return false;
    }
    let address = name.parse::<IpAddr>();
    // Brackets are for addresses of version 6, and those have brackets.
    if host.starts_with('[') != matches!(address, Ok(IpAddr::V6(_))) {
        return false;
    }
    address.map_or(name.eq_ignore_ascii_case("localhost"), |address| address.to_canonical().is_loopback())
}

/// A body comes as it is, or in chunks: other codings would be taken for the body itself.
pub(crate) fn check_transfer(headers: &HeaderMap) -> Result<(), Fault> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_known = |coding: &HeaderValue| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    if codings.next().is_none_or(is_known) && codings.next().is_none() {
        return Ok(());
    }
    Err(Fault::Invalid(
        "the header Transfer-Encoding is chunked or missing; nothing else is understood".to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_this_machine() {
        for ours in [
            "localhost",
            "LOCALHOST:3000",
            "127.0.0.1",
            "127.9.9.9:80",
            "[::1]",
            "[::1]:3000",
            "localhost:65535",
        ] {
            assert!(is_this_machine(ours), "{ours}");
        }
        for foreign in [
            "",
            "example.com",
            "localhost.example.com",
            "127.0.0.1.nip.io",
            "10.0.0.1",
            "[::2]",
            "0.0.0.0",
            "::1",
            "[localhost]",
            "[::1]x",
            "localhost:x",
            "localhost:65536",
        ] {
            assert!(!is_this_machine(foreign), "{foreign}");
        }
    }

    fn origin(method: &Method, pairs: &[(&'static str, &'static str)]) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(*name, http::HeaderValue::from_static(value));
        }
        check_origin(method, &headers).is_ok()
    }

    #[test]
    fn a_foreign_page_cannot_change_anything() {
        let post = Method::POST;
        assert!(origin(&post, &[("host", "127.0.0.1:3000")]));
        assert!(origin(&post, &[("host", "127.0.0.1:3000"), ("origin", "http://127.0.0.1:3000")]));
        assert!(origin(&post, &[("sec-fetch-site", "same-origin")]));
        assert!(!origin(&post, &[("host", "127.0.0.1:3000"), ("origin", "http://127.0.0.1:8000")]));
        assert!(!origin(&post, &[("host", "127.0.0.1:3000"), ("origin", "null")]));
        assert!(!origin(&post, &[("sec-fetch-site", "cross-site")]));
        assert!(!origin(&post, &[("sec-fetch-site", "same-site")]));
        assert!(origin(&Method::GET, &[("sec-fetch-site", "cross-site")]));
    }
}
