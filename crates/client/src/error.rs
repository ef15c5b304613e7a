//! Why a call did not do what it was asked: opaque, with a stable code for programs and a sentence for
//! people that names the thing and says what to do next.

use std::fmt;
use std::time::Duration;

use http::StatusCode;
use orchestrix_core::wire::{ItemProblem, Problem};

use crate::tried::Tried;

/// The code of the answer that there is no leader.
pub(crate) const NO_LEADER: &str = "no_leader";

/// An error of the client. Programs look at [`Error::code`], people read it.
#[derive(Clone)]
pub struct Error {
    kind: Box<Kind>,
    repeat: Repeat,
    /// The tries that led to it, its own included.
    tried: Tried,
}

/// What a second try of the same call could do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Finds what the first one did: keyed, or without effect.
    Harmless,
    /// Does it once more.
    Doubles,
}

/// The kinds of failure. The outcome of a call is known, except for `Interrupted` and `TimedOut`.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// Refused before anything was sent.
    Invalid { what: String },
    /// No connection, so nothing was sent.
    Unreachable { url: String, why: String },
    /// The connection broke between request and answer.
    Interrupted { call: String, url: String, why: String },
    /// No answer in time.
    TimedOut { call: String, url: String, after: Duration },
    /// The coordinator refused.
    Answered { problem: Problem, retry_after: Option<Duration> },
    /// The answer is not one of a coordinator.
    Foreign { call: String, url: String, status: StatusCode, why: String },
}

impl Error {
    pub(crate) fn new(kind: Kind, repeat: Repeat) -> Self {
        Self { kind: Box::new(kind), repeat, tried: Tried::default() }
    }

    /// What one try at one address came to.
    pub(crate) fn of_a_try(kind: Kind, repeat: Repeat, url: &str) -> Self {
        let why = kind.reason();
        Self::new(kind, repeat).after(Tried::one(url, why))
    }

    /// The same for a call that changes something: tries that come later do not make its outcome known.
    pub(crate) fn perhaps_done(mut self) -> Self {
        self.tried.perhaps_done |= self.is_outcome_unknown();
        self
    }

    /// The tries that led to it, its own included.
    pub(crate) fn tried(&self) -> &Tried {
        &self.tried
    }

    /// The same, as the end of all these tries.
    pub(crate) fn after(self, tried: Tried) -> Self {
        Self { tried, ..self }
    }

    /// Something that the caller passed is not valid.
    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Self::new(Kind::Invalid { what: what.into() }, Repeat::Doubles)
    }

    /// What is wrong with one item of a batch.
    pub(crate) fn item(problem: ItemProblem) -> Self {
        Self::refused(problem, Repeat::Doubles)
    }

    /// A refusal with only a code and a sentence.
    pub(crate) fn refused(problem: ItemProblem, repeat: Repeat) -> Self {
        let ItemProblem { code, detail } = problem;
        let problem = Problem { title: code.clone(), code, detail, status: 0, request_id: None };
        Self::new(Kind::Answered { problem, retry_after: None }, repeat)
    }

    /// The word that programs match on: a code of the HTTP interface (`not_found`, `stale_lease`, …), or
    /// `invalid`, `unreachable`, `interrupted`, `timed_out` or `foreign`.
    #[must_use]
    pub fn code(&self) -> &str {
        match &*self.kind {
            Kind::Invalid { .. } => "invalid",
            Kind::Unreachable { .. } => "unreachable",
            Kind::Interrupted { .. } => "interrupted",
            Kind::TimedOut { .. } => "timed_out",
            Kind::Answered { problem, .. } => &problem.code,
            Kind::Foreign { .. } => "foreign",
        }
    }

    /// Whether the same call may succeed later and cannot do harm: either nothing happened, or a repeat
    /// finds what did.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self.effect() {
            Effect::Refused => false,
            Effect::Nothing => true,
            Effect::Unknown => self.repeat == Repeat::Harmless,
        }
    }

    /// Whether the call may have been carried out although its answer did not arrive.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        self.effect() == Effect::Unknown
    }

    /// How long the coordinator asked to wait before the next try.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match &*self.kind {
            Kind::Answered { retry_after, .. } => *retry_after,
            Kind::Invalid { .. }
            | Kind::Unreachable { .. }
            | Kind::Interrupted { .. }
            | Kind::TimedOut { .. }
            | Kind::Foreign { .. } => None,
        }
    }

    /// Whether another address may do better.
    pub(crate) fn is_better_elsewhere(&self) -> bool {
        // Going elsewhere would only be a way round the limit, or send the same slow body once more.
        let about_the_caller = matches!(self.code(), "rate_limited" | "timeout");
        self.effect() != Effect::Refused && !about_the_caller
    }

    /// Whether there is no leader: nothing was changed, and another node will become leader soon.
    pub(crate) fn is_leaderless(&self) -> bool {
        self.code() == NO_LEADER
    }

    /// Whether the answer holds only for the node that gave it.
    pub(crate) fn is_about_one_node(&self) -> bool {
        matches!(self.code(), "stopping" | "behind")
    }

    /// The same, without a wait before the next try.
    pub(crate) fn without_retry_after(mut self) -> Self {
        if let Kind::Answered { retry_after, .. } = &mut *self.kind {
            *retry_after = None;
        }
        self
    }

    fn effect(&self) -> Effect {
        match self.effect_of_the_last_try() {
            Effect::Nothing if self.tried.perhaps_done => Effect::Unknown,
            effect @ (Effect::Refused | Effect::Nothing | Effect::Unknown) => effect,
        }
    }

    fn effect_of_the_last_try(&self) -> Effect {
        match &*self.kind {
            Kind::Invalid { .. } => Effect::Refused,
            Kind::Unreachable { .. } => Effect::Nothing,
            Kind::Interrupted { .. } | Kind::TimedOut { .. } => Effect::Unknown,
            Kind::Answered { problem, .. } => match problem.code.as_str() {
                "overloaded" | "no_leader" | "stopping" | "behind" | "rate_limited" | "timeout" => {
                    Effect::Nothing
                }
                "outcome_unknown" | "internal" => Effect::Unknown,
                // A coordinator that is newer than this client: it will be well again, but what it did is not known.
                _ if problem.status == StatusCode::SERVICE_UNAVAILABLE.as_u16() => Effect::Unknown,
                _ => Effect::Refused,
            },
            // A proxy that lost its way to the coordinator does not know what became of the request.
            Kind::Foreign { status, .. } if status.is_server_error() => Effect::Unknown,
            Kind::Foreign { .. } => Effect::Refused,
        }
    }
}

/// What a failed call changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// Nothing, and it will not next time.
    Refused,
    /// Nothing, but it may next time.
    Nothing,
    Unknown,
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        let last = self.effect_of_the_last_try();
        // A refusal is final, even after other tries.
        if last != Effect::Refused {
            write!(f, "{}", self.tried)?;
        }
        if last == Effect::Nothing && self.tried.perhaps_done {
            write!(f, "; an earlier try may have been carried out, and a repeat finds it")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error").field("code", &self.code()).field("message", &self.to_string()).finish()
    }
}

impl Kind {
    /// A few words about it, for a list of all tries.
    fn reason(&self) -> String {
        match self {
            Self::Invalid { what } => what.clone(),
            Self::Unreachable { why, .. } | Self::Interrupted { why, .. } => why.clone(),
            Self::TimedOut { after, .. } => format!("no answer within {after:?}"),
            Self::Answered { problem, .. } => problem.code.clone(),
            Self::Foreign { status, .. } => format!("status {}", status.as_u16()),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid { what } => f.write_str(what),
            Self::Unreachable { url, why } => write!(
                f,
                "cannot reach {url}: {why}; is the coordinator running? start it with `orchestrix serve`"
            ),
            Self::Interrupted { call, url, why } => {
                write!(
                    f,
                    "{url} did not answer {call}: {why}; it may have been carried out, so look before you repeat it"
                )
            }
            Self::TimedOut { call, url, after } => write!(
                f,
                "{url} did not answer {call} within {after:?}; it may have been carried out, so look before you repeat it"
            ),
            Self::Answered { problem, .. } => match next_step(&problem.code) {
                Some(next) => write!(f, "{}; {next}", problem.detail),
                None => f.write_str(&problem.detail),
            },
            Self::Foreign { call, url, status, why } => {
                write!(f, "{url} answered {call} with {status}: {why}; is this the address of a coordinator?")
            }
        }
    }
}

/// What to do about a refusal whose own sentence does not say so.
fn next_step(code: &str) -> Option<&'static str> {
    match code {
        "unauthorized" => Some("pass a token that the coordinator knows"),
        "forbidden" => Some("pass a token that may do this"),
        "stale_lease" => Some("stop this attempt: another worker may have the task"),
        "key_conflict" => Some("use another key, or send the same request again"),
        "too_large" => Some("keep the data elsewhere and send a reference to it"),
        "rate_limited" | "overloaded" | "no_leader" | "stopping" => Some("try again in a moment"),
        "storage_full" => Some("make room on the coordinator's disk"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(code: &str) -> Kind {
        answered_with(503, code)
    }

    fn answered_with(status: u16, code: &str) -> Kind {
        let problem = Problem {
            code: code.to_owned(),
            detail: "the thing".to_owned(),
            status,
            title: String::new(),
            request_id: None,
        };
        Kind::Answered { problem, retry_after: Some(Duration::from_secs(1)) }
    }

    #[test]
    fn an_unreachable_coordinator_is_named_with_what_to_do_next() {
        let kind = Kind::Unreachable {
            url: "http://127.0.0.1:3000".to_owned(),
            why: "connection refused".to_owned(),
        };
        assert_eq!(
            Error::new(kind, Repeat::Doubles).to_string(),
            "cannot reach http://127.0.0.1:3000: connection refused; is the coordinator running? start it with \
             `orchestrix serve`"
        );
    }

    #[test]
    fn requests_certainly_not_done_are_retryable() {
        for code in ["overloaded", "no_leader", "stopping", "behind", "rate_limited"] {
            assert!(Error::new(answered(code), Repeat::Doubles).is_retryable(), "{code}");
        }
    }

    #[test]
    fn only_harmless_repeats_retry_an_unknown_outcome() {
        let unknown = answered("outcome_unknown");
        assert!(Error::new(unknown.clone(), Repeat::Harmless).is_retryable());
        assert!(!Error::new(unknown.clone(), Repeat::Doubles).is_retryable());
        assert!(Error::new(unknown, Repeat::Doubles).is_outcome_unknown());
    }

    #[test]
    fn an_unknown_unavailable_kind_is_an_unknown_outcome() {
        let new = answered("moving_house");
        assert!(Error::new(new.clone(), Repeat::Harmless).is_retryable());
        assert!(!Error::new(new, Repeat::Doubles).is_retryable());
    }

    #[test]
    fn an_earlier_try_stays_unknown_if_the_last_is_unreachable() {
        let hung_up = Kind::Interrupted {
            call: "POST /v1/tasks".to_owned(),
            url: "http://a".to_owned(),
            why: "connection reset".to_owned(),
        };
        let refused = Kind::Unreachable { url: "http://b".to_owned(), why: "connection refused".to_owned() };
        let first = Error::of_a_try(hung_up, Repeat::Harmless, "http://a").perhaps_done();
        let last = Error::of_a_try(refused, Repeat::Harmless, "http://b");
        assert!(!last.is_outcome_unknown());
        let mut tried = first.tried().clone();
        tried.add(last.tried());
        let told = last.after(tried);
        assert!(told.is_outcome_unknown() && told.is_retryable());
        assert_eq!(
            told.to_string(),
            "cannot reach http://b: connection refused; is the coordinator running? start it with `orchestrix \
             serve`; tried http://a (connection reset), http://b (connection refused); an earlier try may have been \
             carried out, and a repeat finds it"
        );
    }

    #[test]
    fn only_what_others_may_do_better_is_taken_elsewhere() {
        for code in ["overloaded", "no_leader", "stopping", "behind", "outcome_unknown", "internal"] {
            assert!(Error::new(answered(code), Repeat::Doubles).is_better_elsewhere(), "{code}");
        }
        for code in ["rate_limited", "timeout", "stale_lease", "not_found", "unauthorized"] {
            assert!(!Error::new(answered_with(400, code), Repeat::Doubles).is_better_elsewhere(), "{code}");
        }
    }

    #[test]
    fn a_refusal_is_final() {
        for code in ["stale_lease", "not_found", "invalid", "key_conflict", "storage_full"] {
            let error = Error::new(answered_with(409, code), Repeat::Harmless);
            assert!(!error.is_retryable(), "{code}");
            assert_eq!(error.code(), code);
        }
    }
}
