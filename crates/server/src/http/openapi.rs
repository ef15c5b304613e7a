//! The OpenAPI document.
use crate::http::answer::{JSON, Reply};
use http::StatusCode;
pub fn document() -> String {
    "{}".to_owned()
}
pub(crate) fn reply() -> Reply {
    Reply::new(StatusCode::OK, JSON, document())
}
