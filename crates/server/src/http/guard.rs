//! What a browser could be tricked into: requests of foreign pages are refused before anything is done.

use http::header::{HOST, HeaderMap, HeaderName, ORIGIN};
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
    let named = uri.authority().map(http::uri::Authority::as_str);
    let named = named.or_else(|| headers.get(HOST)?.to_str().ok());
    // Browsers always name a host; without one this is a simple tool.
    let Some(host) = named else { return Ok(()) };
    if is_this_machine(host) {
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

fn is_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(address, _)| address),
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    let loopback = name.parse::<std::net::IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback());
    loopback || name.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_this_machine() {
        for ours in ["localhost", "LOCALHOST:3000", "127.0.0.1", "127.9.9.9:80", "[::1]", "[::1]:3000"] {
            assert!(is_this_machine(ours), "{ours}");
        }
        for foreign in
            ["", "example.com", "localhost.example.com", "127.0.0.1.nip.io", "10.0.0.1", "[::2]", "0.0.0.0"]
        {
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
