//! Functions for the fuzzer: the decoders of requests, one part at a time, without a socket.
//!
//! These functions only call the code of the server.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use http::{HeaderMap, Method, Uri};
use orchestrix_core::{Name, TaskId};
use orchestrix_node::Node;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::http::error::Fault;
use crate::http::query::Query;
use crate::http::routes::{Found, Route, find};
use crate::http::{App, Options, connection, cursor, guard, query};

/// Serves one connection to its end, as from an address of this machine.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    node: Node,
    options: Options,
) {
    let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
    connection::serve(stream, here, Arc::new(App::new(node.into(), options, here))).await;
}

/// Understands the body of a request as its route does, and writes down what was understood: JSON that the
/// same route takes. `None` for routes without a body.
///
/// # Errors
/// What the caller would hear.
#[must_use]
pub fn body(route: &Route, given: &[u8]) -> Option<Result<Vec<u8>, String>> {
    route.request.map(|request| (request.again)(given).map_err(|fault| told(&fault)))
}

/// The route of a path, and the texts that stand for its parts in braces.
#[must_use]
pub fn route<'p>(method: &Method, path: &'p str) -> Option<(&'static Route, [&'p str; 2])> {
    match find(method, path) {
        Found::Route(_, route, parts) => Some((route, parts)),
        Found::OtherMethod(_) | Found::Nothing => None,
    }
}

/// A task id in a path.
///
/// # Errors
/// What the caller would hear.
pub fn task_id(part: &str) -> Result<TaskId, String> {
    query::task_id(part).map_err(|fault| told(&fault))
}

/// A name in a path.
///
/// # Errors
/// What the caller would hear.
pub fn path_name(part: &str) -> Result<Name, String> {
    query::path_name(part).map_err(|fault| told(&fault))
}

/// The text of each of these parameters of a query, after all ways of reading one were tried.
///
/// # Errors
/// What the caller would hear.
pub fn parameters(query: &str, known: &[&str]) -> Result<Vec<Option<String>>, String> {
    let query = Query::parse(Some(query), known).map_err(|fault| told(&fault))?;
    Ok(known
        .iter()
        .map(|name| {
            // Only that they answer counts here.
            let _ = (query.number::<u64>(name), query.bounded(name, 1, 1_000, 100));
            let _ = (query.switch(name), query.name(name));
            query.text(name).map(str::to_owned)
        })
        .collect())
}

/// The task after which a cursor of a list goes on.
#[must_use]
pub fn cursor(list: &str, text: &str) -> Option<TaskId> {
    cursor::read(list, text)
}

/// The cursor of a list after a task.
#[must_use]
pub fn write_cursor(list: &str, after: TaskId) -> String {
    cursor::write(list, after)
}

/// Whether the headers are those of a page of this machine, or of no page.
///
/// # Errors
/// What the caller would hear.
pub fn guard(method: &Method, headers: &HeaderMap, uri: &Uri) -> Result<(), String> {
    guard::check_host(headers, uri)
        .and_then(|()| guard::check_origin(method, headers))
        .map_err(|fault| told(&fault))
}

fn told(fault: &Fault) -> String {
    format!("{fault:?}")
}
