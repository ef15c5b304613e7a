//! The output of tasks: lines in, pages out, or a stream that follows the task to its end.

use std::pin::pin;
use std::time::Duration;

use orchestrix_core::limits::PAGE_MAX;
use orchestrix_core::wire::LogAppend;
use orchestrix_core::{Refusal, TaskId, TaskState};
use orchestrix_node::{Ask, Error, Node};
use serde_json::json;
use tokio::time::Instant;

use crate::http::answer::Reply;
use crate::http::body::parse;
use crate::http::defaults::PAGE_DEFAULT;
use crate::http::endings::Following;
use crate::http::error::Fault;
use crate::http::handle::Call;
use crate::http::limits::Limits;
use crate::http::query::task_id;
use crate::http::sse::{self, Piece};
use crate::http::streams::{Gone, Sink};

/// Lines read at once for a stream.
const STREAM_LINES: usize = 200;

pub(crate) async fn append(call: &Call<'_>, node: &Node) -> Result<Reply, Fault> {
    call.no_query()?;
    let body: LogAppend = parse(&call.body)?;
    Reply::ok(&node.append_logs_as(&call.client.caller, task_id(call.part)?, body).await?)
}

pub(crate) async fn read(call: &Call<'_>, node: &Node) -> Result<Reply, Fault> {
    let query = call.query(&["offset", "limit", "attempt", "follow"])?;
    let offset = query.number("offset")?.unwrap_or(0);
    let limit = query.bounded("limit", 1, PAGE_MAX, PAGE_DEFAULT)?;
    let attempt = query.number("attempt")?;
    let id = task_id(call.part)?;
    if query.switch("follow")? {
        let offset = sse::last_event_id(&call.head.headers)?.unwrap_or(offset);
        let following = call.app.endings.follow(id);
        node.ask(&call.client.caller, Ask::Task(id)).await?;
        let reader = Reader { node: node.clone(), task: id, offset, attempt };
        let limits = call.app.limits.clone();
        return sse::reply(call, |sink| fill(sink, reader, following, limits));
    }
    node.ask(&call.client.caller, Ask::Task(id)).await?;
    Reply::ok(&node.logs(id, offset, limit, attempt).await?)
}

/// How often it is looked for output that other nodes have stored.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A place in the output of a task.
struct Reader {
    node: Node,
    task: TaskId,
    offset: u64,
    attempt: Option<u32>,
}

async fn fill(sink: Sink, mut reader: Reader, following: Following, limits: Limits) -> Result<(), Gone> {
    let mut changes = reader.node.log_changes(reader.task);
    sink.send(Piece::comment()).await?;
    let mut comment_at = Instant::now() + limits.keep_alive;
    loop {
        // Both are asked for before looking, so that nothing between looking and waiting is missed.
        changes.borrow_and_update();
        let mut ended = pin!(following.woken());
        ended.as_mut().enable();
        let state = reader.state().await;
        reader.send_lines(&sink).await?;
        match seen(&state) {
            Seen::Running => {}
            Seen::Ended(end) => {
                let mut piece = Piece::default();
                piece.frame(Some("end"), None, &end);
                return sink.send(piece).await;
            }
            Seen::Unknown => return Err(Gone),
        }
        tokio::select! {
            changed = changes.changed() => {
                // The output was forgotten with its task; the next look says so.
                if changed.is_err() {
                    changes = reader.node.log_changes(reader.task);
                }
                comment_at = Instant::now() + limits.keep_alive;
            }
            () = &mut ended => {}
            // Who owns a lease of the bus stores its output without a word to this node.
            () = tokio::time::sleep(LOOK_EVERY), if reader.node.shares_output() => {}
            () = tokio::time::sleep_until(comment_at) => {
                sink.send(Piece::comment()).await?;
                comment_at = Instant::now() + limits.keep_alive;
            }
            () = sink.gone() => return Err(Gone),
        }
    }
}

impl Reader {
    async fn state(&self) -> Result<TaskState, Error> {
        self.node.task(self.task).await.map(|view| view.summary.state)
    }

    /// Sends all lines that there are.
    async fn send_lines(&mut self, sink: &Sink) -> Result<(), Gone> {
        loop {
            let page = self.node.logs(self.task, self.offset, STREAM_LINES, self.attempt).await;
            let page = page.map_err(|error| {
                tracing::warn!(task = %self.task, %error, "a stream of task output ends early");
                Gone
            })?;
            if page.next_offset == self.offset {
                return Ok(());
            }
            let mut piece = Piece::default();
            for line in &page.lines {
                piece.frame(Some("line"), Some(line.n + 1), line);
                if piece.is_full() {
                    sink.send(std::mem::take(&mut piece)).await?;
                }
            }
            self.offset = page.next_offset;
            sink.send(piece).await?;
        }
    }
}

/// What a look at a followed task shows.
enum Seen {
    Running,
    /// With the fields about the end.
    Ended(serde_json::Value),
    /// The node is on its way out; the reader comes back and asks another time.
    Unknown,
}

fn seen(state: &Result<TaskState, Error>) -> Seen {
    match state {
        Ok(state) if state.is_terminal() => Seen::Ended(json!({ "state": state })),
        Ok(_) | Err(Error::Overloaded | Error::StorageFull | Error::Unavailable) => Seen::Running,
        // It was purged while it was followed.
        Err(Error::Refused(Refusal::NotFound(_))) => Seen::Ended(json!({ "state": null })),
        Err(Error::Refused(_) | Error::Stopping | Error::OutcomeUnknown) => Seen::Unknown,
    }
}
