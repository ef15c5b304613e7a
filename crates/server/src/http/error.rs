//! The one place that knows which HTTP status a problem has.

use http::StatusCode;
use orchestrix_core::Refusal;
use orchestrix_core::wire::{ItemProblem, Problem};
use orchestrix_node::Error;

use crate::http::routes::Methods;

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The node refused.
    Node(Error),
    /// The request is malformed, or asks for something impossible.
    Invalid(String),
    /// No token, or not one of ours.
    Unauthorized(String),
    /// A known caller who may not do this.
    Forbidden(String),
    NoRoute,
    /// The route allows only these methods.
    OtherMethod(Methods),
    /// The body did not arrive in time.
    Timeout,
    BodyTooLarge {
        max: usize,
    },
    UrlTooLong {
        max: usize,
    },
    HeadersTooLarge {
        max: usize,
    },
    /// The content type is not JSON.
    MediaType(String),
    /// This caller has reached a limit of its own.
    RateLimited(String),
    /// A limit of all callers together is reached.
    Overloaded(String),
    /// The cluster has no leader now.
    NoLeader(String),
    /// The caller has seen more than this node.
    Behind {
        asked: u64,
        at: u64,
    },
    /// This route switches the connection to another protocol.
    UpgradeRequired(String),
    /// Leadership was not transferred.
    NotPassed(String),
    /// A bug.
    Internal,
}

/// The problem document of a fault.
#[derive(Debug)]
pub(crate) struct ProblemReply {
    pub(crate) status: StatusCode,
    pub(crate) problem: Problem,
    /// Whether a repeat may succeed soon.
    pub(crate) again: bool,
    pub(crate) allow: Option<Methods>,
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Node(error)
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        Self::Node(Error::Refused(refusal))
    }
}

impl Fault {
    pub(crate) fn problem(self, request_id: &str) -> ProblemReply {
        let (status, code, title) = self.meaning();
        let allow = match &self {
            Self::OtherMethod(allow) => Some(*allow),
            Self::Node(_)
            | Self::Invalid(_)
            | Self::Unauthorized(_)
            | Self::Forbidden(_)
            | Self::NoRoute
            | Self::Timeout
            | Self::BodyTooLarge { .. }
            | Self::UrlTooLong { .. }
            | Self::HeadersTooLarge { .. }
            | Self::MediaType(_)
            | Self::RateLimited(_)
            | Self::Overloaded(_)
            | Self::NoLeader(_)
            | Self::Behind { .. }
            | Self::NotPassed(_)
            | Self::UpgradeRequired(_)
            | Self::Internal => None,
        };
        let problem = Problem {
            code: code.to_owned(),
            detail: self.detail(),
            status: status.as_u16(),
            title: title.to_owned(),
            request_id: Some(request_id.to_owned()),
        };
        let again = status == StatusCode::SERVICE_UNAVAILABLE || status == StatusCode::TOO_MANY_REQUESTS;
        ProblemReply { status, problem, again, allow }
    }

    pub(crate) fn status_and_code(&self) -> (StatusCode, &'static str) {
        let (status, code, _) = self.meaning();
        (status, code)
    }

    fn meaning(&self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::Node(error) => of_node(error),
            Self::Invalid(_) => INVALID,
            Self::Unauthorized(_) => (StatusCode::UNAUTHORIZED, "unauthorized", "Unauthorized"),
            Self::Forbidden(_) => FORBIDDEN,
            Self::NoRoute => (StatusCode::NOT_FOUND, "not_found", "Route not found"),
            Self::OtherMethod(_) => {
                (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "Method not allowed")
            }
            Self::Timeout => (StatusCode::REQUEST_TIMEOUT, "timeout", "Request timeout"),
            Self::BodyTooLarge { .. } => TOO_LARGE,
            Self::UrlTooLong { .. } => (StatusCode::URI_TOO_LONG, "too_large", "URL too long"),
            Self::HeadersTooLarge { .. } => {
                (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "too_large", "Headers too large")
            }
            Self::MediaType(_) => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", "Unsupported media type")
            }
            Self::RateLimited(_) => (StatusCode::TOO_MANY_REQUESTS, "rate_limited", "Too many requests"),
            Self::Overloaded(_) => OVERLOADED,
            Self::UpgradeRequired(_) => {
                (StatusCode::UPGRADE_REQUIRED, "upgrade_required", "Upgrade required")
            }
            Self::NotPassed(_) => (StatusCode::CONFLICT, "not_passed", "Leadership was not transferred"),
            Self::NoLeader(_) => (StatusCode::SERVICE_UNAVAILABLE, "no_leader", "The cluster has no leader"),
            Self::Behind { .. } => (StatusCode::SERVICE_UNAVAILABLE, "behind", "This node is behind"),
            Self::Internal => INTERNAL,
        }
    }

    fn detail(self) -> String {
        match self {
            Self::Node(error) => error.to_string(),
            Self::Invalid(detail)
            | Self::Unauthorized(detail)
            | Self::Forbidden(detail)
            | Self::MediaType(detail)
            | Self::RateLimited(detail)
            | Self::Overloaded(detail)
            | Self::NotPassed(detail)
            | Self::UpgradeRequired(detail)
            | Self::NoLeader(detail) => detail,
            Self::Behind { asked, at } => {
                format!("the request names position {asked}, and this node is at {at}; try again in a moment")
            }
            Self::NoRoute => "there is no such route; GET /openapi.json lists all of them".to_owned(),
            Self::OtherMethod(allow) => format!("this route allows {allow}"),
            Self::Timeout => "the body of the request did not arrive in time".to_owned(),
            Self::BodyTooLarge { max } => format!("the body has more than {max} bytes, which is the limit"),
            Self::UrlTooLong { max } => {
                format!("path and query have more than {max} bytes, which is the limit")
            }
            Self::HeadersTooLarge { max } => {
                format!("the headers have more than {max} bytes, which is the limit")
            }
            Self::Internal => "internal server error; the outcome is unknown".to_owned(),
        }
    }
}

const INVALID: (StatusCode, &str, &str) = (StatusCode::BAD_REQUEST, "invalid", "Invalid request");
const FORBIDDEN: (StatusCode, &str, &str) = (StatusCode::FORBIDDEN, "forbidden", "Forbidden");
const TOO_LARGE: (StatusCode, &str, &str) = (StatusCode::PAYLOAD_TOO_LARGE, "too_large", "Request too large");
const OVERLOADED: (StatusCode, &str, &str) = (StatusCode::SERVICE_UNAVAILABLE, "overloaded", "Overloaded");
const INTERNAL: (StatusCode, &str, &str) =
    (StatusCode::INTERNAL_SERVER_ERROR, "internal", "Internal server error");

fn of_node(error: &Error) -> (StatusCode, &'static str, &'static str) {
    match error {
        Error::Refused(refusal) => of_refusal(refusal),
        Error::Overloaded => OVERLOADED,
        Error::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "overloaded", "The engine does not answer"),
        Error::StorageFull => (StatusCode::INSUFFICIENT_STORAGE, "storage_full", "Storage full"),
        Error::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping", "The coordinator is stopping"),
        Error::OutcomeUnknown => (StatusCode::SERVICE_UNAVAILABLE, "outcome_unknown", "Outcome unknown"),
    }
}

fn of_refusal(refusal: &Refusal) -> (StatusCode, &'static str, &'static str) {
    let conflict = |title| (StatusCode::CONFLICT, refusal.code(), title);
    match refusal {
        Refusal::Invalid { .. } => INVALID,
        Refusal::TooLarge { .. } => TOO_LARGE,
        Refusal::NotFound(_) => (StatusCode::NOT_FOUND, "not_found", "Task not found"),
        Refusal::NoService(_) => (StatusCode::NOT_FOUND, "not_found", "Service not found"),
        Refusal::StaleLease { .. } => conflict("Stale lease"),
        Refusal::NotOwner { .. } => conflict("Not the owner"),
        Refusal::Upgrading { .. } => {
            (StatusCode::SERVICE_UNAVAILABLE, "upgrading", "The cluster is being upgraded")
        }
        Refusal::KeyConflict { .. } => conflict("Key conflict"),
        Refusal::NotFailed { .. } => conflict("Only failed tasks can be retried"),
        Refusal::Finished { .. } => conflict("The task has ended"),
        Refusal::Forbidden(_) => FORBIDDEN,
        Refusal::Internal => INTERNAL,
    }
}

/// What is wrong with one item of a batch.
pub(crate) fn item_problem(refusal: &Refusal) -> ItemProblem {
    ItemProblem { code: refusal.code().to_owned(), detail: refusal.to_string() }
}

#[cfg(test)]
mod tests {
    use orchestrix_core::{Key, LeaseId, TaskId, TaskState};

    use super::*;

    #[test]
    fn every_meaning_has_its_status_and_its_code() {
        let (task, lease) = (TaskId(7), LeaseId(8));
        let refused = |refusal| Fault::Node(Error::Refused(refusal));
        let text = || "why".to_owned();
        for (fault, status, code, again) in [
            (refused(Refusal::Invalid { field: "queue", problem: text() }), 400, "invalid", false),
            (refused(Refusal::TooLarge { field: "payload", bytes: 2, max: 1 }), 413, "too_large", false),
            (refused(Refusal::NotFound(task)), 404, "not_found", false),
            (refused(Refusal::StaleLease { task, lease, why: "late" }), 409, "stale_lease", false),
            (refused(Refusal::KeyConflict { key: Key::new("k").unwrap(), task }), 409, "key_conflict", false),
            (refused(Refusal::NotFailed { task, state: TaskState::Waiting }), 409, "not_failed", false),
            (refused(Refusal::Finished { task, state: TaskState::Completed }), 409, "finished", false),
            (refused(Refusal::NotOwner { lease, why: "late" }), 409, "not_owner", false),
            (refused(Refusal::Upgrading { format: 2 }), 503, "upgrading", true),
            (refused(Refusal::Internal), 500, "internal", false),
            (Fault::Node(Error::Overloaded), 503, "overloaded", true),
            (Fault::Node(Error::Unavailable), 503, "overloaded", true),
            (Fault::Node(Error::StorageFull), 507, "storage_full", false),
            (Fault::Node(Error::Stopping), 503, "stopping", true),
            (Fault::Node(Error::OutcomeUnknown), 503, "outcome_unknown", true),
            (Fault::Invalid(text()), 400, "invalid", false),
            (Fault::Unauthorized(text()), 401, "unauthorized", false),
            (Fault::Forbidden(text()), 403, "forbidden", false),
            (Fault::NoRoute, 404, "not_found", false),
            (Fault::OtherMethod(Methods::default()), 405, "method_not_allowed", false),
            (Fault::Timeout, 408, "timeout", false),
            (Fault::BodyTooLarge { max: 1 }, 413, "too_large", false),
            (Fault::UrlTooLong { max: 1 }, 414, "too_large", false),
            (Fault::HeadersTooLarge { max: 1 }, 431, "too_large", false),
            (Fault::MediaType(text()), 415, "unsupported_media_type", false),
            (Fault::RateLimited(text()), 429, "rate_limited", true),
            (Fault::Overloaded(text()), 503, "overloaded", true),
            (Fault::NotPassed(text()), 409, "not_passed", false),
            (Fault::UpgradeRequired(text()), 426, "upgrade_required", false),
            (Fault::NoLeader(text()), 503, "no_leader", true),
            (Fault::Behind { asked: 2, at: 1 }, 503, "behind", true),
            (Fault::Internal, 500, "internal", false),
        ] {
            let reply = fault.problem("id");
            assert_eq!(
                (reply.status.as_u16(), reply.problem.code.as_str(), reply.again),
                (status, code, again)
            );
            assert_eq!(reply.problem.status, status);
            assert!(!reply.problem.detail.is_empty() && !reply.problem.title.is_empty());
        }
    }
}
