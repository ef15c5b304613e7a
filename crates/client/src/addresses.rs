//! The addresses that a client may ask. All of them lead to the same tasks; one is the current one, and it is left
//! when it fails.
//!
//! **Invariant:** however many calls fail at one address together, the client moves on by one address, not by as
//! many as there are calls.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::Uri;

use crate::error::Error;

/// Addresses of one client. Bounds how long a sentence about all of them is; every node passes requests on, so that
/// a few of a large cluster are enough.
pub(crate) const ADDRESSES_MAX: usize = 16;

/// What an address looks like, for people.
const EXAMPLE: &str = "write it like http://127.0.0.1:3000";

/// One to [`ADDRESSES_MAX`] addresses, each of them once.
#[derive(Debug)]
pub(crate) struct Addresses {
    /// Without a slash at the end.
    urls: Vec<String>,
    /// As they were listed, with commas between.
    listed: String,
    current: AtomicUsize,
}

/// The place of an address in its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At(usize);

/// Takes a list apart that is written with commas between.
pub(crate) fn split(list: &str) -> Vec<String> {
    list.split(',').map(str::to_owned).collect()
}

impl Addresses {
    pub(crate) fn new(listed: &[String]) -> Result<Self, Error> {
        if listed.iter().all(|url| url.trim().is_empty()) {
            return Err(Error::invalid(format!("there is no address of a coordinator: {EXAMPLE}")));
        }
        if listed.len() > ADDRESSES_MAX {
            return Err(Error::invalid(format!(
                "a client takes up to {ADDRESSES_MAX} addresses, not {}; a few are enough, because every node passes \
                 requests on",
                listed.len()
            )));
        }
        let mut urls: Vec<String> = Vec::new();
        for (n, url) in listed.iter().map(|url| url.trim()).enumerate() {
            if url.is_empty() {
                let (n, of) = (n + 1, listed.len());
                return Err(Error::invalid(format!(
                    "address {n} of {of} is empty; is there a comma too many?"
                )));
            }
            let checked = check(url)?;
            if let Some(same) = urls.iter().find(|known| target(known) == target(&checked)) {
                return Err(Error::invalid(format!(
                    "{url:?} is in the list twice, the first time as {same:?}; name every coordinator once"
                )));
            }
            urls.push(checked);
        }
        Ok(Self { listed: urls.join(","), urls, current: AtomicUsize::new(0) })
    }

    /// As they were listed, with commas between.
    pub(crate) fn listed(&self) -> &str {
        &self.listed
    }

    pub(crate) fn all(&self) -> &[String] {
        &self.urls
    }

    /// The one to ask next.
    pub(crate) fn current(&self) -> At {
        At(self.current.load(Ordering::Relaxed))
    }

    pub(crate) fn url(&self, at: At) -> &str {
        &self.urls[at.0]
    }

    /// Whether there is another one to go to.
    pub(crate) fn has_others(&self) -> bool {
        self.urls.len() > 1
    }

    /// Moves on to the next address, unless another call already has.
    pub(crate) fn leave(&self, at: At) {
        let next = (at.0 + 1) % self.urls.len();
        let moved = self.current.compare_exchange(at.0, next, Ordering::Relaxed, Ordering::Relaxed);
        if moved.is_ok() && self.has_others() {
            tracing::info!(
                from = self.urls[at.0],
                to = self.urls[next],
                "asking another address from now on"
            );
        }
    }
}

fn check(url: &str) -> Result<String, Error> {
    let wrong = |why: &str| Error::invalid(format!("{url:?} is not the address of a coordinator: {why}"));
    let uri: Uri = url.parse().map_err(|_| wrong(EXAMPLE))?;
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => return Err(wrong("https is not supported; use http to a proxy on this machine")),
        _ => return Err(wrong(EXAMPLE)),
    }
    let authority = uri.authority().ok_or_else(|| wrong(EXAMPLE))?;
    if authority.as_str().contains('@') {
        return Err(wrong("pass the token by itself, not in the address"));
    }
    if authority.host().is_empty() {
        return Err(wrong("it names no host"));
    }
    // A port that is no number would silently become port 80.
    if authority.as_str() != authority.host() && authority.port_u16().is_none_or(|port| port == 0) {
        return Err(wrong("a port is a number from 1 to 65535"));
    }
    if uri.query().is_some() || url.contains('#') {
        return Err(wrong("it has no place for a query or a fragment"));
    }
    Ok(url.trim_end_matches('/').to_owned())
}

/// Where an address leads, however it is written.
fn target(checked: &str) -> Option<(String, u16, String)> {
    let uri: Uri = checked.parse().ok()?;
    let host = uri.host()?.to_ascii_lowercase();
    Some((host, uri.port_u16().unwrap_or(80), uri.path().trim_end_matches('/').to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Result<Addresses, Error> {
        Addresses::new(&split(text))
    }

    /// What is said about a list that is refused.
    fn refused(text: &str) -> String {
        let error = list(text).expect_err(text);
        assert_eq!(error.code(), "invalid");
        error.to_string()
    }

    #[test]
    fn an_address_keeps_its_path_and_loses_its_last_slash() {
        assert_eq!(check("http://127.0.0.1:3000/").unwrap(), "http://127.0.0.1:3000");
        assert_eq!(check("http://proxy/orchestrix/").unwrap(), "http://proxy/orchestrix");
        assert_eq!(check("http://[::1]:3000").unwrap(), "http://[::1]:3000");
        assert_eq!(check("http://[::1]").unwrap(), "http://[::1]");
    }

    #[test]
    fn a_wrong_address_is_refused_with_an_example() {
        for bad in
            ["127.0.0.1:3000", "nonsense", "ftp://x", "http://", "http://user:secret@host", "http://h/?a=b"]
        {
            assert!(check(bad).is_err(), "{bad:?}");
        }
        for bad in
            ["http://h:0", "http://h:65536", "http://h:", "http://:3000", "http://h/#there", "http://a b"]
        {
            assert!(check(bad).is_err(), "{bad:?}");
        }
        let error = check("127.0.0.1:3000").unwrap_err();
        assert!(error.to_string().contains("http://127.0.0.1:3000"), "{error}");
    }

    #[test]
    fn a_list_is_written_with_commas_and_perhaps_spaces_between() {
        let addresses = list("http://a:1, http://b:2/ ,http://c:3").unwrap();
        assert_eq!(addresses.all(), ["http://a:1", "http://b:2", "http://c:3"]);
        assert_eq!(addresses.listed(), "http://a:1,http://b:2,http://c:3");
    }

    #[test]
    fn an_empty_list_is_refused_and_so_is_a_comma_too_many() {
        for empty in ["", " ", ",", " , "] {
            assert!(refused(empty).contains("there is no address"), "{empty:?}");
        }
        assert!(Addresses::new(&[]).is_err());
        assert!(refused("http://a,,http://b").contains("address 2 of 3 is empty"));
        assert!(refused("http://a,").contains("address 2 of 2 is empty"));
    }

    #[test]
    fn a_list_with_a_wrong_address_is_refused_by_naming_that_one() {
        assert!(refused("http://a,nonsense,http://b").contains("\"nonsense\" is not the address"));
        assert!(
            refused("http://a,https://b")
                .contains("\"https://b\" is not the address of a coordinator: https")
        );
    }

    #[test]
    fn an_address_listed_twice_is_refused_in_any_spelling() {
        for twice in ["http://h:80,http://H/", "http://h/a/,http://h/a", "http://[::1],http://[::1]:80/"] {
            assert!(refused(twice).contains("is in the list twice"), "{twice}");
        }
        assert!(list("http://h/a,http://h/b,http://h:81/a").is_ok());
    }

    #[test]
    fn the_number_of_addresses_is_bounded() {
        let many = |n: usize| (0..n).map(|n| format!("http://node-{n}")).collect::<Vec<_>>().join(",");
        assert_eq!(list(&many(ADDRESSES_MAX)).unwrap().all().len(), 16);
        assert!(refused(&many(ADDRESSES_MAX + 1)).contains("up to 16 addresses, not 17"));
    }

    #[test]
    fn calls_that_fail_together_move_on_by_one_address() {
        let addresses = list("http://a,http://b").unwrap();
        let first = addresses.current();
        addresses.leave(first);
        addresses.leave(first);
        assert_eq!(addresses.url(addresses.current()), "http://b");
        addresses.leave(addresses.current());
        assert_eq!(addresses.url(addresses.current()), "http://a");
    }
}
