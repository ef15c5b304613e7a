//! What stands in the first line of a request and in its headers.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use orchestrix_client::fuzz_api::encode;
use orchestrix_core::TaskId;
use orchestrix_core::limits::ID_MAX;
use orchestrix_server::http::fuzz_api;

/// A path and a query.
pub(super) fn address(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let (path, query) = text.split_once('?').unwrap_or((text, ""));
    for method in [Method::GET, Method::POST, Method::DELETE] {
        if let Some((_, [part, second])) = fuzz_api::route(&method, path) {
            let _ = fuzz_api::path_name(second);
            assert!(!part.contains('/') && path.contains(part), "a part is a part of the path");
            if let Ok(id) = fuzz_api::task_id(part) {
                assert!((1..=ID_MAX).contains(&id.0));
            }
            if let Ok(name) = fuzz_api::path_name(part) {
                assert_eq!(
                    fuzz_api::path_name(&encode(name.as_str())),
                    Ok(name),
                    "a name is found as it is encoded"
                );
            }
        }
    }
    let known = ["queue", "state", "owner", "limit", "cursor"];
    if let Ok(values) = fuzz_api::parameters(query, &known) {
        let pairs = known
            .iter()
            .zip(&values)
            .filter_map(|(name, value)| Some(format!("{name}={}", encode(value.as_deref()?))));
        let written: Vec<_> = pairs.collect();
        assert_eq!(fuzz_api::parameters(&written.join("&"), &known), Ok(values), "what we write is read");
    }
    if let Some(after) = fuzz_api::cursor(path, query) {
        assert_eq!(fuzz_api::write_cursor(path, after), query, "there is one cursor for one place");
    }
    let after = TaskId(u64::try_from(text.len()).unwrap_or(0) << (text.len() % 60));
    assert_eq!(fuzz_api::cursor(path, &fuzz_api::write_cursor(path, after)), Some(after));
}

/// Lines of `name: value`; the first is the address.
pub(super) fn headers(input: &[u8]) {
    let mut lines = input.split(|byte| *byte == b'\n');
    let Ok(uri) = Uri::try_from(lines.next().unwrap_or_default()) else { return };
    let mut headers = HeaderMap::new();
    for line in lines.take(100) {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let (name, value) = line.split_at(colon);
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    let post = fuzz_api::guard(&Method::POST, &headers, &uri);
    let get = fuzz_api::guard(&Method::GET, &headers, &uri);
    assert!(post.is_err() || get.is_ok(), "who may change may look");
    let host = uri.authority().map(|authority| authority.as_str().to_owned());
    let host = host.or_else(|| Some(headers.get("host")?.to_str().ok()?.to_owned()));
    if let (Some(host), true) = (host, get.is_ok()) {
        let host = host.to_ascii_lowercase();
        let ours = host.starts_with("localhost") || host.starts_with("127.") || host.starts_with('[');
        assert!(ours, "{host:?} is taken for this machine");
    }
}
