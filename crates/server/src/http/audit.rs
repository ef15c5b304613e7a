//! Audit lines in the log: changes and refusals, with their callers.
//!
//! Work itself is not logged: submits, leases, heartbeats, reports and output are in the journal. Everything else that a caller
//! changes is a line. Refusals are lines, too, but a flood of them cannot fill the log.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use orchestrix_core::Name;
use orchestrix_core::wire::Lead;

use crate::http::App;
use crate::http::error::Fault;
use crate::http::routes::{Audit, Endpoint, Route};

/// Lines about refusals of one caller in one period; more are counted, and the next line has the number.
const REFUSALS_MAX: u32 = 10;
const PERIOD: Duration = Duration::from_secs(60);

/// What is known of a request while it is answered.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// The row of the table of routes, and its place.
    pub(crate) route: Option<(usize, &'static Route)>,
    /// The token, as soon as it is known; also one that may not do this.
    pub(crate) token: Option<Name>,
    /// Whether that token is valid.
    pub(crate) is_known: bool,
    /// What is to be changed, where the path does not say so.
    pub(crate) target: Option<String>,
}

impl Seen {
    pub(crate) fn place(&self) -> Option<usize> {
        self.route.map(|(place, _)| place)
    }

    /// Notes the target of a request whose path does not name it.
    pub(crate) fn note_target(&mut self, route: &Route, body: &[u8]) {
        if route.endpoint == Endpoint::Lead {
            let lead = serde_json::from_slice::<Lead>(body).ok();
            self.target = lead.map(|lead| lead.desired.unwrap_or_else(|| "an election".to_owned()));
        }
    }

    /// Writes the line about a request, if it is worth one.
    pub(crate) fn tell<P: AsRef<str>>(
        &self,
        app: &App,
        peer: IpAddr,
        (method, path): (&Method, impl FnOnce() -> P),
        result: Result<StatusCode, &Fault>,
    ) {
        let (status, code) = match result {
            Ok(status) => (status, "done"),
            Err(fault) => fault.status_and_code(),
        };
        let token = self.token.as_ref().map(Name::as_str);
        if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
            if let Some(suppressed) = app.refusals.admit(token, Instant::now()) {
                let path = path();
                let path = path.as_ref();
                tracing::warn!(token, %peer, %method, ?path, code, suppressed, "a caller was refused");
            }
            return;
        }
        let Some((_, route)) = self.route.filter(|(_, route)| route.audit == Audit::Written) else { return };
        let path = path();
        let target = self.target.as_deref().unwrap_or(path.as_ref());
        let (verb, route, status) = (route.verb.as_str(), route.path, status.as_u16());
        tracing::info!(token, %peer, route = %format_args!("{verb} {route}"), ?target, status, result = code, "audit");
    }
}

/// How many lines about refusals were written: of each token, and of all callers without one together.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    by_token: Mutex<HashMap<Option<String>, Period>>,
}

#[derive(Debug)]
struct Period {
    began: Instant,
    refusals: u32,
    suppressed: u64,
}

impl Refusals {
    /// How many lines were left out before this one; none when it is to be left out itself.
    fn admit(&self, token: Option<&str>, now: Instant) -> Option<u64> {
        let mut by_token = self.by_token.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = || Period { began: now, refusals: 0, suppressed: 0 };
        let period = by_token.entry(token.map(str::to_owned)).or_insert_with(begin);
        if now.duration_since(period.began) >= PERIOD {
            (period.began, period.refusals) = (now, 0);
        }
        if period.refusals == REFUSALS_MAX {
            period.suppressed += 1;
            return None;
        }
        period.refusals += 1;
        Some(std::mem::take(&mut period.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_is_a_few_lines_and_a_count() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        let lines = |token, now: Instant| (0..1_000).filter_map(|_| refusals.admit(token, now)).collect();
        let first: Vec<u64> = lines(None, start);
        assert_eq!(first, vec![0; REFUSALS_MAX as usize]);
        assert_eq!(refusals.admit(Some("ci"), start), Some(0), "another is told all the same");
        assert_eq!(refusals.admit(None, start + PERIOD - Duration::from_millis(1)), None);
        let later: Vec<u64> = lines(None, start + PERIOD);
        assert_eq!((later.len(), later[0], later[1]), (REFUSALS_MAX as usize, 991, 0));
    }
}
