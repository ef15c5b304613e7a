//! Two routes that only tests have: they show that the recipe of ARCHITECTURE.md, "To add a route", is whole, and that a row may
//! change and remove a thing below another. A note is in the path, and says nothing.

use http::StatusCode;
use orchestrix_core::wire::QueueList;
use orchestrix_node::Ask;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::answer::{JSON, Reply};
use crate::http::body::{parse, parse_nothing};
use crate::http::error::Fault;
use crate::http::examples::Example;
use crate::http::handle::Call;
use crate::http::openapi::asks;
use crate::http::query::path_name;
use crate::http::routes::{Endpoint, Route, Scope, delete, patch};
use crate::http::views;
use crate::tokens::Role;

/// The body of a change.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NoteChange {
    text: String,
}

/// The node that decides is asked, so a follower passes it on.
pub(crate) const CHANGE_NOTE: Route =
    patch("/v1/notes/{note}/lines/{line}", Endpoint::ChangeNote, Role::Work, Scope::Own)
        .doc(|| asks("Change a line of a note").and::<QueueList>("200", "All queues that have tasks."))
        .takes::<NoteChange>()
        .asks(change, views::queue_list)
        .example(Example {
            path: "/v1/notes/a/lines/7",
            body: r#"{"text":"new"}"#,
            answer: r#"{"queues":[]}"#,
        })
        .audited();

pub(crate) const DELETE_NOTE: Route =
    delete("/v1/notes/{note}", Endpoint::DeleteNote, Role::Admin, Scope::All)
        .doc(|| asks("Delete a note").plain(JSON, "The note is gone."))
        .takes_nothing()
        .now(remove)
        .example(Example { path: "/v1/notes/a", body: "", answer: r#"{"deleted":"a"}"# })
        .audited();

fn change(call: &Call<'_>) -> Result<Ask, Fault> {
    call.no_query()?;
    path_name(call.part)?;
    path_name(call.second)?;
    let NoteChange { text: _ } = parse(&call.body)?;
    Ok(Ask::Queues)
}

fn remove(call: &Call<'_>) -> Result<Reply, Fault> {
    call.no_query()?;
    parse_nothing(&call.body)?;
    let note = path_name(call.part)?;
    Reply::json(StatusCode::OK, &serde_json::json!({ "deleted": note.as_str() }))
}

mod tests;
