//! The client: one method per route.

use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::wire::{
    Cluster, Complete, CompleteBatch, CompleteItem, CompletedBatch, Explanation, Extended, Fail, Health,
    Heartbeat, Item, Lead, LeaseQueues, Leases, LogAppend, LogAppended, LogPage, Outcome, QueueList, Release,
    ServiceChange, ServiceList, ServiceView, Submit, SubmitBatch, Submitted, SubmittedBatch, TaskPage,
    TaskView, WorkerExtended, WorkerHeartbeat, WorkerList,
};
use orchestrix_core::{Json, LeaseId, Name, Position, TaskId};
use serde::Serialize;

use crate::addresses::{Addresses, split};
use crate::call::{Call, View, encode};
use crate::error::{Error, Repeat};
use crate::feed::{EventFeed, LogFeed, log_path};
use crate::random;
use crate::transport::{LeaderWait, Transport};
use crate::walk::{TaskQuery, TaskWalk};

/// A client of one coordinator, or of a cluster by the addresses of some of its nodes. Cheap to clone; clones share
/// their connections, the address that they ask, and what they have seen.
#[derive(Clone, Debug)]
pub struct Client {
    transport: Arc<Transport>,
}

/// The options of a [`Client`].
#[derive(Clone)]
pub struct ClientBuilder {
    addresses: Vec<String>,
    token: Option<String>,
    timeout: Duration,
    retries: u32,
    leader_wait: LeaderWait,
}

/// A task for a queue, with all defaults; its other fields can be set afterwards.
///
/// # Errors
/// When the name of the queue is not valid or the payload cannot be written as JSON.
pub fn new_task(queue: &str, payload: &impl Serialize) -> Result<Submit, Error> {
    let queue = Name::new(queue).map_err(|why| Error::invalid(format!("queue {queue:?}: {why}")))?;
    Ok(Submit::new(queue, to_json(payload)?))
}

pub(crate) fn to_json(value: &impl Serialize) -> Result<Json, Error> {
    let text = serde_json::to_string(value)
        .map_err(|error| Error::invalid(format!("cannot write JSON: {error}")))?;
    Json::parse(&text).map_err(Error::invalid)
}

impl Client {
    /// A client with the defaults: no token, 30 s for an answer, five retries, 45 s for a leader. The address may be several with
    /// commas between: `http://a:3000,http://b:3000`.
    ///
    /// # Errors
    /// When an address is not valid. Nothing is asked of the coordinator yet.
    pub fn new(url: &str) -> Result<Self, Error> {
        Self::builder(url).build()
    }

    /// A client of one address, or of several with commas between.
    #[must_use]
    pub fn builder(url: &str) -> ClientBuilder {
        Self::builder_of(split(url))
    }

    /// A client of several addresses, up to 16. The first is asked as long as it answers.
    #[must_use]
    pub fn builder_of<A: Into<String>>(addresses: impl IntoIterator<Item = A>) -> ClientBuilder {
        let addresses = addresses.into_iter().map(Into::into).collect();
        ClientBuilder {
            addresses,
            token: None,
            timeout: Duration::from_secs(30),
            retries: 5,
            leader_wait: LeaderWait::default(),
        }
    }

    /// The address; if there are several, all of them with commas between.
    #[must_use]
    pub fn url(&self) -> &str {
        self.transport.addresses().listed()
    }

    /// The addresses, in the order in which they are asked.
    #[must_use]
    pub fn addresses(&self) -> &[String] {
        self.transport.addresses().all()
    }

    /// Submits a task, or finds the one that was submitted with the same key. A task without a key is not
    /// sent again when its outcome is unknown: it could then be there twice.
    ///
    /// # Errors
    /// As for every method here: see [`Error`].
    pub async fn submit(&self, task: &Submit) -> Result<Submitted, Error> {
        let repeat = if task.key.is_some() { Repeat::Harmless } else { Repeat::Doubles };
        self.transport.ask(Call::post("/v1/tasks", task, repeat)?).await
    }

    /// Submits up to 1,000 tasks at once; each is decided by itself, in order.
    ///
    /// # Errors
    /// When the whole call failed; the tasks have their own.
    pub async fn submit_batch(&self, tasks: Vec<Submit>) -> Result<Vec<Result<Submitted, Error>>, Error> {
        let all_have_keys = tasks.iter().all(|task| task.key.is_some());
        let repeat = if all_have_keys { Repeat::Harmless } else { Repeat::Doubles };
        let call = Call::post("/v1/tasks/batch", &SubmitBatch { tasks }, repeat)?;
        let answer: SubmittedBatch = self.transport.ask(call).await?;
        Ok(answer.tasks.into_iter().map(item).collect())
    }

    /// # Errors
    /// `not_found` when there is none, or none any more.
    pub async fn task(&self, id: TaskId) -> Result<TaskView, Error> {
        self.transport.ask(Call::get(format!("/v1/tasks/{id}"))).await
    }

    /// One page of tasks.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn tasks(&self, query: &TaskQuery) -> Result<TaskPage, Error> {
        self.transport.ask(Call::get(query.path())).await
    }

    /// A walk over all tasks of a query, page after page.
    #[must_use]
    pub fn all_tasks(&self, query: TaskQuery) -> TaskWalk {
        TaskWalk::new(self.clone(), query)
    }

    /// Leases tasks, and waits for them when asked to. A request without `request_id` gets one, so that a
    /// repeat after a broken connection finds the same leases.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn lease(&self, request: &LeaseQueues) -> Result<Leases, Error> {
        self.transport.ask(lease_call(request)?).await
    }

    /// The same, but the caller decides about a repeat.
    pub(crate) async fn lease_once(&self, request: &LeaseQueues) -> Result<Leases, Error> {
        self.transport.ask_once(&lease_call(request)?).await
    }

    /// Extends one lease, and reports the progress of the attempt.
    ///
    /// # Errors
    /// `stale_lease` when the lease is no longer valid: stop.
    pub async fn heartbeat(&self, task: TaskId, heartbeat: &Heartbeat) -> Result<Extended, Error> {
        self.post(format!("/v1/tasks/{task}/heartbeat"), heartbeat).await
    }

    /// Extends leases of a worker with one request.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn heartbeat_worker(
        &self,
        worker: &Name,
        leases: Vec<LeaseId>,
    ) -> Result<WorkerExtended, Error> {
        self.post(format!("/v1/workers/{worker}/heartbeat"), &WorkerHeartbeat { leases }).await
    }

    /// The same, one time: the caller needs to know when the request was sent.
    pub(crate) async fn heartbeat_worker_once(
        &self,
        worker: &Name,
        leases: Vec<LeaseId>,
        limit: Duration,
    ) -> Result<WorkerExtended, Error> {
        let path = format!("/v1/workers/{worker}/heartbeat");
        let call = Call::post(path, &WorkerHeartbeat { leases }, Repeat::Harmless)?;
        self.transport.ask_once(&Call { limit, ..call }).await
    }

    /// Completes a task.
    ///
    /// # Errors
    /// `stale_lease` when another worker may have the task.
    pub async fn complete(&self, task: TaskId, complete: &Complete) -> Result<Outcome, Error> {
        self.post(format!("/v1/tasks/{task}/complete"), complete).await
    }

    /// Completes up to 1,000 tasks; each is decided by itself, in order.
    ///
    /// # Errors
    /// When the whole call failed; the tasks have their own.
    pub async fn complete_batch(
        &self,
        items: Vec<CompleteItem>,
    ) -> Result<Vec<Result<Outcome, Error>>, Error> {
        let answer: CompletedBatch = self.post("/v1/tasks/complete/batch", &CompleteBatch { items }).await?;
        Ok(answer.items.into_iter().map(item).collect())
    }

    /// Fails an attempt; the task waits for its next one, or becomes a dead letter.
    ///
    /// # Errors
    /// `stale_lease` when another worker may have the task.
    pub async fn fail(&self, task: TaskId, fail: &Fail) -> Result<Outcome, Error> {
        self.post(format!("/v1/tasks/{task}/fail"), fail).await
    }

    /// Gives a task back, for another worker, without counting an attempt.
    ///
    /// # Errors
    /// `stale_lease` when another worker may have the task.
    pub async fn release(&self, task: TaskId, release: &Release) -> Result<Outcome, Error> {
        self.post(format!("/v1/tasks/{task}/release"), release).await
    }

    /// Cancels a task: at once when it waits, through its worker when it is leased.
    ///
    /// # Errors
    /// `finished` when it has ended.
    pub async fn cancel(&self, task: TaskId) -> Result<Outcome, Error> {
        self.transport.ask(Call::post_empty(format!("/v1/tasks/{task}/cancel"), Repeat::Harmless)).await
    }

    /// Starts a new retry round for a failed task.
    ///
    /// # Errors
    /// `not_failed` when it is not a dead letter.
    pub async fn retry(&self, task: TaskId) -> Result<Outcome, Error> {
        // A repeat could meet the task when it has failed once more, and would give it a third round.
        self.transport.ask(Call::post_empty(format!("/v1/tasks/{task}/retry"), Repeat::Doubles)).await
    }

    /// Explains the state of a task.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn explain(&self, task: TaskId) -> Result<Explanation, Error> {
        self.transport.ask(Call::get(format!("/v1/tasks/{task}/explain"))).await
    }

    /// Lines that a task wrote, from the `offset`-th on, of one attempt or of all.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn logs(
        &self,
        task: TaskId,
        attempt: Option<u32>,
        offset: u64,
        limit: Option<usize>,
    ) -> Result<LogPage, Error> {
        let limit = limit.map(|limit| format!("limit={limit}"));
        self.transport.ask(Call::get(log_path(task, attempt, offset, limit.as_deref()))).await
    }

    /// Adds lines to the log of a running task. With an `offset` a repeat is harmless.
    ///
    /// # Errors
    /// `stale_lease` when another worker may have the task.
    pub async fn append_logs(&self, task: TaskId, lines: &LogAppend) -> Result<LogAppended, Error> {
        self.transport.ask(append_call(task, lines)?).await
    }

    /// The same, but the caller decides about a repeat.
    pub(crate) async fn append_logs_once(
        &self,
        task: TaskId,
        lines: &LogAppend,
        limit: Duration,
    ) -> Result<LogAppended, Error> {
        self.transport.ask_once(&Call { limit, ..append_call(task, lines)? }).await
    }

    /// The lines of a task from the `offset`-th on and those to come, until it ends.
    #[must_use]
    pub fn follow_logs(&self, task: TaskId, attempt: Option<u32>, offset: u64) -> LogFeed {
        LogFeed::new(self.clone(), task, attempt, offset)
    }

    /// The events of the journal after a position, or from now on.
    ///
    /// ```no_run
    /// # async fn example(client: orchestrix_client::Client) -> Result<(), orchestrix_client::Error> {
    /// use orchestrix_client::{Event, FeedEvent};
    ///
    /// let mut events = client.events(None);
    /// loop {
    ///     if let FeedEvent::Event { event: Event::TaskFailed(failed), .. } = events.next().await? {
    ///         println!("task {} of {} failed: {}", failed.task, failed.queue, failed.error);
    ///     }
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn events(&self, after: Option<Position>) -> EventFeed {
        EventFeed::new(Arc::clone(&self.transport), after)
    }

    /// # Errors
    /// See [`Error`].
    pub async fn queues(&self) -> Result<QueueList, Error> {
        self.transport.ask(Call::get("/v1/queues")).await
    }

    /// All services that divide shards, or those of a group.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn services(&self, group: Option<&Name>) -> Result<ServiceList, Error> {
        let query = group.map(|group| format!("?group={}", encode(group.as_str()))).unwrap_or_default();
        self.transport.ask(Call::get(format!("/v1/services{query}"))).await
    }

    /// One service, with its workers and all of its shards. Those come in pages, each as it is at that moment.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn service(&self, service: &Name) -> Result<ServiceView, Error> {
        let path = format!("/v1/services/{}", encode(service.as_str()));
        let mut view: ServiceView = self.transport.ask(Call::get(path.clone())).await?;
        while let Some(cursor) = view.next_cursor.take() {
            let page = Call::get(format!("{path}?cursor={}", encode(&cursor)));
            let page: ServiceView = self.transport.ask(page).await?;
            for worker in page.workers {
                match view.workers.iter_mut().find(|known| known.worker == worker.worker) {
                    Some(known) => known.shards.extend(worker.shards),
                    None => view.workers.push(worker),
                }
            }
            view.shards.extend(page.shards);
            view.next_cursor = page.next_cursor;
        }
        Ok(view)
    }

    /// Sets how many shards a service has, or what they weigh; for administrators.
    ///
    /// # Errors
    /// `invalid` when a number is out of its range; then nothing is changed.
    pub async fn change_service(&self, service: &Name, change: &ServiceChange) -> Result<ServiceView, Error> {
        let path = format!("/v1/services/{}", encode(service.as_str()));
        self.transport.ask(Call::put(path, change)?).await
    }

    /// # Errors
    /// See [`Error`].
    pub async fn workers(&self) -> Result<WorkerList, Error> {
        self.transport.ask(Call::get("/v1/workers")).await
    }

    /// # Errors
    /// See [`Error`].
    pub async fn cluster(&self) -> Result<Cluster, Error> {
        // Also a node that is behind can say how the others are.
        self.transport.ask(Call { view: View::Any, ..Call::get("/v1/cluster") }).await
    }

    /// Transfers leadership.
    ///
    /// # Errors
    /// `not_passed` when leadership was not transferred.
    pub async fn lead(&self, lead: &Lead) -> Result<Cluster, Error> {
        // A repeat could depose the one who leads by then.
        self.transport.ask(Call::post("/v1/cluster/leader", lead, Repeat::Doubles)?).await
    }

    /// The health of the node. An unhealthy node answers as well.
    ///
    /// # Errors
    /// When there is no answer, or not one about health.
    pub async fn health(&self) -> Result<Health, Error> {
        // A node that is behind has to say so, instead of waiting until it is not.
        let call = Call { view: View::Any, ..Call::get("/health") };
        self.transport.ask_for_any_status(&call).await
    }

    pub(crate) fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Every report under a lease can be repeated: the coordinator knows what it accepted.
    async fn post<A: serde::de::DeserializeOwned>(
        &self,
        path: impl Into<String>,
        body: &impl Serialize,
    ) -> Result<A, Error> {
        self.transport.ask(Call::post(path, body, Repeat::Harmless)?).await
    }
}

impl ClientBuilder {
    /// The bearer token.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// How long to wait for one answer; a lease call waits longer by what it asked to wait.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How many times a call is repeated before its error is returned, all addresses together. The waits between the
    /// tries grow from 0.1 s to 5 s, unless the coordinator asks for another one of up to 30 s.
    #[must_use]
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// How long a call is repeated while nodes answer that there is no leader, whatever the number of retries; 45 s by default, for
    /// leaders of the default time. Without retries nothing is repeated. Lines of a task are followed for as long as it takes.
    #[must_use]
    pub fn wait_for_leader(mut self, patience: Duration) -> Self {
        self.leader_wait.patience = patience;
        self
    }

    /// Called each time that a call waits for a leader. Must not block.
    #[must_use]
    pub fn observe_leader_waits(mut self, observer: impl Fn() + Send + Sync + 'static) -> Self {
        self.leader_wait.observer = Arc::new(observer);
        self
    }

    /// # Errors
    /// When an address or the token is not valid, or an address is listed twice, or there are more than 16.
    pub fn build(self) -> Result<Client, Error> {
        let addresses = Addresses::new(&self.addresses)?;
        let Self { token, timeout, retries, leader_wait, .. } = self;
        let transport = Transport::new(addresses, token.as_deref(), timeout, retries, leader_wait)?;
        Ok(Client { transport: Arc::new(transport) })
    }
}

impl std::fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { addresses, token: _, timeout, retries, leader_wait } = self;
        f.debug_struct("ClientBuilder")
            .field("addresses", addresses)
            .field("timeout", timeout)
            .field("retries", retries)
            .field("leader_wait", leader_wait)
            .finish_non_exhaustive()
    }
}

fn lease_call(request: &LeaseQueues) -> Result<Call, Error> {
    let mut request = request.clone();
    request.request_id.get_or_insert_with(request_id);
    let held = Duration::from_millis(request.wait_ms);
    Ok(Call { held, ..Call::post("/v1/lease", &request, Repeat::Harmless)? })
}

fn append_call(task: TaskId, append: &LogAppend) -> Result<Call, Error> {
    let harmless = append.offset.is_some() || append.lines.is_empty();
    let repeat = if harmless { Repeat::Harmless } else { Repeat::Doubles };
    Call::post(format!("/v1/tasks/{task}/logs"), append, repeat)
}

/// A name for one lease request.
pub(crate) fn request_id() -> Name {
    Name::new(&random::id()).expect("hexadecimal digits are a name")
}

fn item<T>(item: Item<T>) -> Result<T, Error> {
    match item {
        Item::Done(done) => Ok(done),
        Item::Refused(problem) => Err(Error::item(problem)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_queue_name_is_refused_before_it_is_sent() {
        let error = new_task("no spaces", &1).unwrap_err();
        assert_eq!(error.code(), "invalid");
        assert!(error.to_string().contains("no spaces"), "{error}");
    }

    #[test]
    fn every_lease_request_has_a_name_of_its_own() {
        assert_ne!(request_id(), request_id());
    }

    #[test]
    fn a_builder_does_not_show_its_token() {
        assert!(!format!("{:?}", Client::builder("http://h").token("s3cret")).contains("s3cret"));
    }
}
