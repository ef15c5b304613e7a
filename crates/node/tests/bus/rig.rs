//! A loop that decides, the services of one or several nodes on their threads, and workers that know only channels.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use orchestrix_core::wire::Submit;
use orchestrix_core::wire::bus::{
    Dispatch, JobCancel, JobLogs, JobStatus, Line, Status, WorkerHeartbeat, read, write,
};
use orchestrix_core::{Json, LeaseId, Name, TaskId, TaskState};
use orchestrix_engine::SystemClock;
use orchestrix_engine::bus::{
    Budget, Bus, Channel, Content, Entry, EntryId, JobChannel, Message, Queue, Sent, Taken, Topic,
};
use orchestrix_engine::memory::MemoryBus;
use orchestrix_node::{
    Answer, Ask, BusOptions, BusPlace, BusServices, Caller, Error, Node, Options, OutputOf, OwnerAsk, Stats,
    Storage, open,
};
use tokio::runtime::Handle;

/// No wait of a test is longer.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) struct World {
    pub(crate) node: Node,
    pub(crate) bus: MemoryBus,
    options: BusOptions,
    /// Nobody answers owners.
    pub(crate) no_leader: Arc<AtomicBool>,
    /// By the names of nodes; the first one decides.
    nodes: BTreeMap<String, (BusServices, Arc<Stats>)>,
}

/// A worker of the bus: what it knows, it knows from channels.
pub(crate) struct Worker {
    pub(crate) bus: MemoryBus,
    name: Name,
    capacity: u32,
    pub(crate) jobs: Vec<LeaseId>,
    cancels: EntryId,
}

impl World {
    pub(crate) fn start() -> Self {
        Self::start_with(BusOptions::default())
    }

    pub(crate) fn start_with(bus_options: BusOptions) -> Self {
        let options = Options { bus: Some(bus_options.clone()), ..Options::default() };
        let (node, _) = open(&Storage::Memory, options).unwrap();
        let bus = MemoryBus::new(Arc::new(SystemClock));
        let mut world =
            Self { node, bus, options: bus_options, no_leader: Arc::default(), nodes: BTreeMap::new() };
        world.join("node-1");
        world
    }

    /// Starts the services of a node. Only those of the first one act for the leader.
    pub(crate) fn join(&mut self, node: &str) {
        let is_first = self.nodes.is_empty();
        let (leads, asks, no_leader) = (self.node.clone(), self.node.clone(), Arc::clone(&self.no_leader));
        let stats = if is_first { self.node.shared_stats() } else { Arc::new(Stats::default()) };
        let services = BusServices::start(BusPlace {
            bus: Arc::new(self.bus.connect()),
            options: self.options.clone(),
            journal: self.node.journal_id(),
            node: name(node),
            incarnation: "1".to_owned(),
            address: String::new(),
            output: Arc::new(OutputOf { node: self.node.clone(), runtime: Handle::current() }),
            stats: Arc::clone(&stats),
            clock: Arc::new(SystemClock),
            leads: Arc::new(move || is_first.then(|| leads.clone())),
            ask: Box::new(move |ask: OwnerAsk| {
                let (node, no_leader) = (asks.clone(), no_leader.load(Ordering::Relaxed));
                Box::pin(async move {
                    if no_leader {
                        return Err(Error::Stopping);
                    }
                    let answer = node.ask(&Caller::default(), Ask::Owner(Box::new(ask))).await?;
                    let Answer::Bus(answer) = answer else { panic!("{answer:?}") };
                    Ok(*answer)
                })
            }),
            runtime: Handle::current(),
        })
        .unwrap();
        self.nodes.insert(node.to_owned(), (services, stats));
    }

    pub(crate) fn stats(&self, node: &str) -> &Stats {
        &self.nodes[node].1
    }

    /// Ends the services of a node as they should end.
    pub(crate) async fn drain(&self, node: &str) {
        self.nodes[node].0.stop().await;
    }

    /// Ends them as a power cut does.
    pub(crate) async fn kill(&self, node: &str) {
        self.nodes[node].0.abort().await;
    }

    /// Until it is so.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            assert!(began.elapsed() < LIMIT, "{what}");
            tokio::task::yield_now().await;
        }
    }

    pub(crate) fn worker(&self, worker: &str, capacity: u32) -> Worker {
        let bus = self.bus.connect();
        Worker { bus, name: name(worker), capacity, jobs: Vec::new(), cancels: EntryId::ZERO }
    }

    pub(crate) async fn submit(&self, queue: &str, payload: &str) -> TaskId {
        let task = Submit::new(name(queue), Json::parse(payload).unwrap());
        self.node.submit(task).await.unwrap().0.id
    }

    pub(crate) async fn state_of(&self, task: TaskId) -> TaskState {
        self.node.task(task).await.unwrap().summary.state
    }

    pub(crate) async fn until_state(&self, task: TaskId, state: TaskState) {
        let began = Instant::now();
        while self.state_of(task).await != state {
            assert!(began.elapsed() < LIMIT, "{:?}", self.node.task(task).await);
            tokio::task::yield_now().await;
        }
    }

    /// Until no job has a channel.
    pub(crate) async fn until_closed(&self) {
        let is_of_job = |name: &String| name.ends_with(".status") || name.ends_with(".logs");
        let began = Instant::now();
        while self.bus.names().iter().any(is_of_job) {
            assert!(began.elapsed() < LIMIT, "{:?}", self.bus.names());
            tokio::task::yield_now().await;
        }
    }

    pub(crate) async fn end(self) {
        for (services, _) in self.nodes.values().rev() {
            services.stop().await;
        }
        self.node.stop().await.unwrap();
    }
}

impl Worker {
    pub(crate) fn beat(&self, queues: &[&str]) {
        let heartbeat = WorkerHeartbeat {
            worker_id: self.name.clone(),
            queues: queues.iter().map(|queue| name(queue)).collect(),
            capacity: self.capacity,
            jobs: self.jobs.clone(),
            timestamp: None,
        };
        self.send(Topic::WorkerHeartbeat.into(), write(&heartbeat));
    }

    /// Whether the channel is there.
    pub(crate) fn send(&self, channel: Channel, data: String) -> bool {
        let began = Instant::now();
        loop {
            let sent = self.bus.send(&[Message { channel: channel.clone(), data: data.clone() }]).unwrap();
            match sent[0] {
                Sent::Done(_) => return true,
                // The nodes make the topics.
                Sent::Closed if matches!(channel, Channel::Topic(_)) && began.elapsed() < LIMIT => {}
                Sent::Closed => return false,
                Sent::Refused | Sent::Unknown => panic!("{sent:?}"),
            }
        }
    }

    /// Takes one offer, when there is one.
    pub(crate) async fn take(&mut self, queue: &str) -> Dispatch {
        let queue = Queue::Dispatch(name(queue));
        let began = Instant::now();
        loop {
            if let Ok(Taken::Entries(entries)) = self.bus.take(&queue, &self.name, 1)
                && let Some(Entry { id, content: Content::Data(data) }) = entries.into_iter().next()
            {
                self.bus.settle(&queue, &[id]).unwrap();
                let dispatch = read::<Dispatch>(&data).unwrap();
                self.jobs.push(dispatch.history_id);
                return dispatch;
            }
            assert!(began.elapsed() < LIMIT, "nothing was offered");
            tokio::task::yield_now().await;
        }
    }

    pub(crate) fn says(&self, job: &Dispatch, status: Status) -> bool {
        let status = JobStatus {
            job_id: job.job_id,
            history_id: job.history_id,
            worker_id: self.name.clone(),
            status,
            progress: None,
            note: None,
            result: (status == Status::Completed).then(|| Json::parse(r#"{"sum":7}"#).unwrap()),
            error: (status == Status::Failed).then(|| "no".to_owned()),
            retry: None,
        };
        self.send(JobChannel::Status(job.job_id).into(), write(&status))
    }

    pub(crate) fn logs(&self, job: &Dispatch, texts: &[&str]) {
        let lines = texts.iter().map(|text| Line { text: (*text).to_owned(), stream: None }).collect();
        let logs = JobLogs { job_id: job.job_id, history_id: job.history_id, lines, offset: None };
        assert!(self.send(JobChannel::Logs(job.job_id).into(), write(&logs)));
    }

    /// The next word that it should stop.
    pub(crate) async fn told_to_stop(&mut self) -> JobCancel {
        let began = Instant::now();
        loop {
            let budget = Budget { entries: 1, bytes: 1 << 20 };
            let found = self.bus.read(&[(Topic::Cancel.into(), self.cancels)], budget).unwrap();
            if let Some((_, Entry { id, content })) = found.entries.into_iter().next() {
                self.cancels = id;
                let Content::Data(data) = content else { panic!("{content:?}") };
                return read(&data).unwrap();
            }
            assert!(began.elapsed() < LIMIT, "nobody said so");
            tokio::task::yield_now().await;
        }
    }
}
