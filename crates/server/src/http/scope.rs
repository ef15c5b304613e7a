//! The one place that keeps callers who are limited to some queues within these, as the table of routes says.
//!
//! **Invariant:** who is limited learns nothing of another queue that the request did not name: a task of one is answered as
//! a task that is not there.

use futures_util::future::try_join_all;
use orchestrix_core::{Name, Refusal, TaskId};
use orchestrix_node::{Error, Node};

use crate::http::error::Fault;
use crate::http::handle::{Call, Caller};
use crate::http::query::task_id;
use crate::http::routes::Scope;

/// What can be said before the body is read.
pub(crate) fn admit(caller: &Caller, scope: Scope) -> Result<(), Fault> {
    match scope {
        Scope::All if caller.queues().is_some() => Err(Fault::Forbidden(
            "this token is limited to some queues, and this concerns all of them".to_owned(),
        )),
        Scope::All | Scope::Nothing | Scope::Named | Scope::Task | Scope::Own => Ok(()),
    }
}

/// What the node that decides has to know before a handler begins.
pub(crate) async fn enter(call: &Call<'_>, scope: Scope, node: &Node) -> Result<(), Fault> {
    match scope {
        Scope::Task => {
            let id = task_id(call.part)?;
            if call.is_hidden(node, id).await? { Err(Refusal::NotFound(id).into()) } else { Ok(()) }
        }
        Scope::All | Scope::Nothing | Scope::Named | Scope::Own => Ok(()),
    }
}

impl Caller {
    /// Refuses a queue that the request names and that is not one of the caller's.
    pub(crate) fn check_queue(&self, queue: &Name) -> Result<(), Fault> {
        if self.has_queue(queue) {
            return Ok(());
        }
        Err(Fault::Forbidden(format!("this token is not for queue {queue}")))
    }

    /// Refuses to take all queues when none is named.
    pub(crate) fn check_any_queue(&self) -> Result<(), Fault> {
        match self.queues() {
            Some(_) => Err(Fault::Forbidden(
                "this token is limited to some queues: name one of them with the parameter queue".to_owned(),
            )),
            None => Ok(()),
        }
    }

    pub(crate) fn has_queue(&self, queue: &Name) -> bool {
        self.queues().is_none_or(|own| own.contains(queue))
    }
}

impl Call<'_> {
    /// Whether a caller who is limited finds no such task: it is in another queue, or not there. Both are answered before
    /// anything else of the request is looked at, so that nothing tells them apart.
    async fn is_hidden(&self, node: &Node, id: TaskId) -> Result<bool, Fault> {
        if self.caller.queues().is_none() {
            return Ok(false);
        }
        match node.task(id).await {
            Ok(view) => Ok(!self.caller.has_queue(&view.summary.queue)),
            Err(Error::Refused(Refusal::NotFound(_))) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Which of these tasks the caller does not find, each in its place.
    pub(crate) async fn hidden(
        &self,
        node: &Node,
        ids: impl Iterator<Item = TaskId>,
    ) -> Result<Vec<bool>, Fault> {
        try_join_all(ids.map(|id| self.is_hidden(node, id))).await
    }
}
