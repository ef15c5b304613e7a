//! Lists of tasks: filters, and an iterator over all pages.

use std::collections::VecDeque;
use std::fmt::Write as _;

use orchestrix_core::wire::TaskSummary;
use orchestrix_core::{Name, TaskState};

use crate::call::encode;
use crate::client::Client;
use crate::error::Error;

/// Which tasks to list; by default all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskQuery {
    pub queue: Option<Name>,
    pub state: Option<TaskState>,
    /// Tasks of one page; the coordinator has a default and a limit.
    pub limit: Option<usize>,
    /// Where the page begins: the `next_cursor` of the page before.
    pub cursor: Option<String>,
}

impl TaskQuery {
    /// Path and query of the request.
    pub(crate) fn path(&self) -> String {
        let mut path = "/v1/tasks".to_owned();
        let mut mark = '?';
        let mut add = |name: &str, value: &str| {
            write!(path, "{mark}{name}={}", encode(value)).expect("a string takes everything");
            mark = '&';
        };
        if let Some(queue) = &self.queue {
            add("queue", queue.as_str());
        }
        if let Some(state) = self.state {
            add("state", state.as_str());
        }
        if let Some(limit) = self.limit {
            add("limit", &limit.to_string());
        }
        if let Some(cursor) = &self.cursor {
            add("cursor", cursor);
        }
        path
    }
}

/// A walk over all tasks of a query, lowest id first, one page at a time.
#[derive(Debug)]
pub struct TaskWalk {
    client: Client,
    query: TaskQuery,
    page: VecDeque<TaskSummary>,
    ended: bool,
}

impl TaskWalk {
    pub(crate) fn new(client: Client, query: TaskQuery) -> Self {
        Self { client, query, page: VecDeque::new(), ended: false }
    }

    /// The next task; none after the last.
    ///
    /// # Errors
    /// Those of [`Client::tasks`]; the walk can go on afterwards.
    pub async fn next(&mut self) -> Result<Option<TaskSummary>, Error> {
        loop {
            if let Some(task) = self.page.pop_front() {
                return Ok(Some(task));
            }
            if self.ended {
                return Ok(None);
            }
            let page = self.client.tasks(&self.query).await?;
            self.page = page.tasks.into();
            self.ended = page.next_cursor.is_none();
            self.query.cursor = page.next_cursor;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_only_what_was_asked_for() {
        assert_eq!(TaskQuery::default().path(), "/v1/tasks");
        let query = TaskQuery {
            queue: Some(Name::new("mail:eu").unwrap()),
            state: Some(TaskState::Failed),
            limit: Some(10),
            cursor: Some("a/b=".to_owned()),
        };
        assert_eq!(query.path(), "/v1/tasks?queue=mail%3Aeu&state=FAILED&limit=10&cursor=a%2Fb%3D");
    }
}
