//! What a node does on the bus, and a worker to look at.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use orchestrix_client::{BusWorker, Error, Job, JobError};
use orchestrix_core::wire::bus::{
    Assigned, CancelCause, Dispatch, JobCancel, JobLogs, JobStatus, Status, WorkerHeartbeat, read, write,
};
use orchestrix_core::{Json, LeaseId, Name, TaskId, Term};
use orchestrix_engine::JournalId;
use orchestrix_engine::bus::{
    Budget, Bus, Channel, Claimed, Closed, Content, Ended, EntryId, Figures, JobChannel, Message, Offer,
    Publisher, Queue, Topic,
};
use orchestrix_engine::redis::RedisBus;
use orchestrix_testbed::{SYNCED, Server, eventually, redis};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// Longer than any answer takes on a busy machine.
const PATIENT: Duration = Duration::from_secs(30);
const PLENTY: Budget = Budget { entries: 10_000, bytes: 8 << 20 };

pub(crate) struct Node {
    pub(crate) server: Server,
    bus: RedisBus,
    publisher: Box<dyn Publisher>,
    pub(crate) lease_ms: u64,
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

impl Node {
    /// On a server that forgets nothing, with leases of a minute.
    pub(crate) fn start() -> Self {
        let server = Server::start(redis(&SYNCED)).unwrap();
        let (bus, publisher) = claimed(&server);
        Self { server, bus, publisher, lease_ms: 60_000 }
    }

    pub(crate) fn url(&self) -> String {
        url(&self.server)
    }

    /// For a user with the rights that the page gives to workers.
    pub(crate) fn url_of_a_worker(&self) -> String {
        let page = include_str!("../../../../docs/bus.md");
        let user = page.lines().find(|line| line.starts_with("ACL SETUSER worker ")).unwrap();
        self.raw(&user.replace("PASSWORD", "secret").split(' ').collect::<Vec<_>>());
        format!("redis://worker:secret@127.0.0.1:{}", self.server.port())
    }

    /// A command past the bus.
    pub(crate) fn raw(&self, words: &[&str]) {
        let mut connection = ::redis::Client::open(self.url()).unwrap().get_connection().unwrap();
        let mut command = ::redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        let _: ::redis::Value = command.query(&mut connection).unwrap();
    }

    /// Comes back on a server that was killed.
    pub(crate) fn launch(&mut self) {
        self.server.launch().unwrap();
        (self.bus, self.publisher) = claimed(&self.server);
    }

    pub(crate) fn offer(&mut self, task: u64, lease: u64, payload: &str) {
        self.offer_in("mail", task, lease, payload);
    }

    pub(crate) fn offer_in(&mut self, queue: &str, task: u64, lease: u64, payload: &str) {
        let (job_id, history_id) = (TaskId(task), LeaseId(lease));
        let dispatch = Dispatch {
            job_id,
            history_id,
            queue: name(queue),
            payload: Json::parse(payload).unwrap(),
            attempt: 1,
            lease_ms: self.lease_ms,
        };
        let offer = Offer {
            task: job_id,
            lease: history_id,
            queue: name(queue),
            dispatch: write(&dispatch),
            assigned: write(&Assigned { job_id, history_id }),
            previous: None,
        };
        let progress = self.publisher.publish(&[offer]).unwrap();
        assert!(progress.stop.is_none(), "{progress:?}");
    }

    pub(crate) fn said(&self, task: u64, lease: u64) -> Vec<JobStatus> {
        self.messages(JobChannel::Status(TaskId(task)).into(), LeaseId(lease).into())
    }

    pub(crate) fn logs(&self, task: u64, lease: u64) -> Vec<JobLogs> {
        self.messages(JobChannel::Logs(TaskId(task)).into(), LeaseId(lease).into())
    }

    pub(crate) fn heartbeats(&self) -> Vec<WorkerHeartbeat> {
        self.messages(Topic::WorkerHeartbeat.into(), EntryId::ZERO)
    }

    /// What a worker says of a task with this status, as often as it has said so.
    pub(crate) fn hears(&self, task: u64, lease: u64, status: Status, times: usize) -> JobStatus {
        eventually(&format!("{status:?} of {task}, {times} times"), || {
            let said = self.said(task, lease);
            let mut such = said.into_iter().filter(|said| said.status == status);
            such.nth(times - 1)
        })
    }

    /// Ends a lease whose worker has said its last words.
    pub(crate) fn close(&self, task: u64, lease: u64) {
        let ended = Ended { task: TaskId(task), lease: LeaseId(lease), offered_in: None };
        assert_eq!(self.bus.close(&[ended]).unwrap(), [Closed::Done]);
    }

    pub(crate) fn cancel(&self, worker: &str, task: u64, lease: u64, reason: CancelCause) {
        let (job_id, history_id) = (TaskId(task), LeaseId(lease));
        let cancel = JobCancel { job_id, history_id, worker_id: name(worker), reason };
        let message = Message { channel: Topic::Cancel.into(), data: write(&cancel) };
        self.bus.send(&[message]).unwrap();
    }

    pub(crate) fn figures(&self, queue: &str) -> Figures {
        self.bus.figures(&[Queue::Dispatch(name(queue))]).unwrap()[0]
    }

    /// Waits until nothing is offered and nothing is taken and not settled.
    pub(crate) fn all_are_settled(&self, queue: &str) {
        eventually("all offers are settled", || {
            let Figures { waiting, taken, .. } = self.figures(queue);
            (waiting + taken == 0).then_some(())
        });
    }

    fn messages<T: serde::de::DeserializeOwned>(&self, channel: Channel, after: EntryId) -> Vec<T> {
        let found = self.bus.read(&[(channel, after)], PLENTY).unwrap();
        let message = |(_, entry): (usize, orchestrix_engine::bus::Entry)| match entry.content {
            Content::Data(data) => read(&data).unwrap(),
            Content::Malformed { bytes } => panic!("{bytes} bytes"),
        };
        found.entries.into_iter().map(message).collect()
    }
}

fn url(server: &Server) -> String {
    format!("redis://127.0.0.1:{}", server.port())
}

fn claimed(server: &Server) -> (RedisBus, Box<dyn Publisher>) {
    let bus = RedisBus::connect(&url(server), PATIENT).unwrap();
    bus.open(JournalId([7; 16]), &name("a")).unwrap();
    let Claimed::Done(publisher) = bus.claim(Term(1)).unwrap() else { panic!("it is claimed") };
    (bus, publisher)
}

/// A worker that runs until it is stopped or dropped.
pub(crate) struct Running {
    pub(crate) stop: CancellationToken,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl Running {
    pub(crate) fn of<F>(worker: BusWorker, handler: impl Fn(Job) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Json, JobError>> + Send + 'static,
    {
        let stop = CancellationToken::new();
        let running = worker.run(stop.clone(), handler);
        let thread = thread::spawn(move || Runtime::new().unwrap().block_on(running));
        Self { stop, thread: Some(thread) }
    }

    pub(crate) fn has_ended(&mut self) -> Result<(), Error> {
        let thread = self.thread.take().unwrap();
        eventually("the worker has ended", || thread.is_finished().then_some(()));
        thread.join().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Hears of every job that is begun.
pub(crate) type Hearing = Arc<dyn Fn(&Job) + Send + Sync>;

/// A handler that does what the payload says.
pub(crate) async fn obey(job: Job, heard: Hearing) -> Result<Json, JobError> {
    heard(&job);
    let order: String = job.parse()?;
    match order.as_str() {
        "complete" => Ok(Json::parse("\"done\"").unwrap()),
        "talk" => {
            (1..=3).for_each(|n| job.log(&format!("line {n}")));
            job.progress(50, "half");
            Ok(Json::null())
        }
        "fail" => Err(JobError::new("no")),
        "give up" => Err(JobError::permanent("never")),
        "wait" => {
            job.cancellation().cancelled().await;
            Err(JobError::new(format!("{:?}", job.stop())))
        }
        other => panic!("nobody knows how to {other}"),
    }
}
