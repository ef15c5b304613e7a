//! Nodes go away and come back one after the other, under load: no call fails that the client repeats, nothing
//! happens twice, and no worker loses a lease.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use orchestrix_core::{Key, TaskState};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::client::{Client, new_task};
use crate::tests::fake::{Answer, Asked, Node, client_of, in_time, lease};
use crate::wire::Submit;
use crate::worker::{Job, JobError, Noticed, Worker};

const SUBMITTERS: usize = 6;
const ROUNDS: usize = 2;
/// Long enough for a busy machine: a heartbeat comes after a third of it, and gives a silent node another third.
const LEASE: Duration = Duration::from_millis(4_500);

/// How a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mode {
    Well,
    /// Breaks the connection before it has done what it was asked.
    DyingBefore,
    /// Breaks the connection after it has done what it was asked.
    DyingAfter,
    Stopping,
}

const AILING: [Mode; 3] = [Mode::DyingBefore, Mode::DyingAfter, Mode::Stopping];

/// What all nodes have in common.
struct Cluster {
    state: Mutex<State>,
    /// Something was done.
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    position: u64,
    /// The tasks from id 1 on.
    tasks: Vec<Task>,
    keys: BTreeMap<String, u64>,
    waiting: VecDeque<u64>,
    /// What each lease request got.
    leased: BTreeMap<String, Vec<u64>>,
    /// How far each node is in the journal.
    views: [u64; 3],
    modes: Option<[Mode; 3]>,
    /// How many requests met a node in this mode.
    met: BTreeMap<Mode, u64>,
}

struct Task {
    payload: Value,
    created: u64,
    completed: bool,
}

impl Cluster {
    fn answer(&self, node: usize, asked: &Asked) -> Answer {
        let mut state = self.state.lock().unwrap();
        let mode = state.mode(node);
        *state.met.entry(mode).or_default() += 1;
        let answer = match mode {
            Mode::Well => state.carry_out(node, asked),
            Mode::DyingBefore => Answer::HangUp,
            Mode::DyingAfter => {
                drop(state.carry_out(node, asked));
                Answer::HangUp
            }
            Mode::Stopping => Answer::problem(503, "stopping").header("retry-after", "3"),
        };
        let position = state.position;
        drop(state);
        self.changed.send_replace(());
        answer.header("orchestrix-position", position)
    }

    /// Waits until the nodes have come so far.
    async fn until(&self, so_far: impl Fn(&State) -> bool) {
        let mut changed = self.changed.subscribe();
        while !so_far(&self.state.lock().unwrap()) {
            changed.changed().await.unwrap();
        }
    }

    fn set(&self, node: usize, mode: Mode) {
        let mut state = self.state.lock().unwrap();
        let mut modes = state.modes.unwrap_or([Mode::Well; 3]);
        modes[node] = mode;
        state.modes = Some(modes);
    }
}

impl State {
    fn mode(&self, node: usize) -> Mode {
        self.modes.unwrap_or([Mode::Well; 3])[node]
    }

    fn met(&self, mode: Mode) -> u64 {
        self.met.get(&mode).copied().unwrap_or_default()
    }

    fn carry_out(&mut self, node: usize, asked: &Asked) -> Answer {
        let (path, body) = (asked.path.as_str(), &asked.body);
        let id = path.split('/').nth(3).and_then(|id| id.parse().ok());
        match (path, id, path.rsplit('/').next().unwrap()) {
            ("/v1/tasks", ..) => self.submit(body),
            ("/v1/lease", ..) => self.lease(body),
            ("/v1/workers/w/heartbeat", ..) => {
                Answer::ok(json!({"extended": body["leases"], "lost": [], "cancel": [], "lease_ms": 60_000}))
            }
            ("/v1/tasks/complete/batch", ..) => {
                let items = body["items"].as_array().unwrap().iter();
                let items: Vec<_> =
                    items.map(|item| self.complete(item["task_id"].as_u64().unwrap())).collect();
                Answer::ok(json!({"items": items}))
            }
            (_, Some(id), "complete") => Answer::ok(self.complete(id)),
            (_, Some(id), "release") => {
                self.position += 1;
                self.waiting.push_back(id);
                Answer::ok(json!({"id": id, "state": "WAITING"}))
            }
            (_, Some(id), _) => self.show(node, id, asked),
            (other, None, _) => panic!("nobody should ask for {other}"),
        }
    }

    fn submit(&mut self, body: &Value) -> Answer {
        let key = body["key"].as_str();
        if let Some(id) = key.and_then(|key| self.keys.get(key)) {
            return Answer::ok(json!({"id": id, "state": "WAITING"}));
        }
        self.position += 1;
        let task = Task { payload: body["payload"].clone(), created: self.position, completed: false };
        self.tasks.push(task);
        let id = self.tasks.len() as u64;
        self.waiting.push_back(id);
        self.keys.extend(key.map(|key| (key.to_owned(), id)));
        Answer::Say(201, json!({"id": id, "state": "WAITING"}))
    }

    fn lease(&mut self, body: &Value) -> Answer {
        let name = body["request_id"].as_str().unwrap();
        if !self.leased.contains_key(name) {
            let max = (body["max"].as_u64().unwrap() as usize).min(self.waiting.len());
            self.leased.insert(name.to_owned(), self.waiting.drain(..max).collect());
            self.position += 1;
        }
        let leases: Vec<Value> = self.leased[name].iter().map(|task| lease(*task)).collect();
        Answer::ok(json!({"leases": leases, "waited_ms": 0}))
    }

    fn complete(&mut self, id: u64) -> Value {
        self.position += 1;
        self.tasks[id as usize - 1].completed = true;
        json!({"id": id, "state": "COMPLETED"})
    }

    /// A node knows what it has applied, and waits for what the caller has seen.
    fn show(&mut self, node: usize, id: u64, asked: &Asked) -> Answer {
        let seen = asked.position().map_or(0, |position| position.parse().unwrap());
        self.views[node] = self.views[node].max(seen);
        let Task { payload, created, completed } = &self.tasks[id as usize - 1];
        if *created > self.views[node] {
            return Answer::problem(404, "not_found");
        }
        let state = if *completed { "COMPLETED" } else { "WAITING" };
        Answer::ok(json!({
            "id": id, "queue": "q", "state": state, "attempt": 1, "round": 1, "payload": payload, "priority": 0,
            "attempts": [], "max_attempts": 3, "created_at": 1,
            "backoff": {"base_ms": 1, "factor": 2, "max_ms": 1},
        }))
    }
}

/// Three nodes of one cluster.
fn start() -> (Arc<Cluster>, [Node; 3]) {
    let cluster = Arc::new(Cluster { state: Mutex::default(), changed: watch::Sender::new(()) });
    let nodes = [0, 1, 2].map(|n| {
        let cluster = Arc::clone(&cluster);
        Node::start(move |asked| cluster.answer(n, asked))
    });
    (cluster, nodes)
}

/// How many tasks each submitter has seen to their end.
type Progress = Arc<watch::Sender<[u64; SUBMITTERS]>>;

/// Submits one task after the other, sees each to its end, and reads it, until it is asked to stop.
async fn submit_and_read(
    client: Client,
    cluster: Arc<Cluster>,
    me: usize,
    progress: Progress,
    stop: CancellationToken,
) {
    let mut n = 0;
    while !stop.is_cancelled() {
        n += 1;
        let task = new_task("q", &format!("{me}-{n}")).unwrap();
        // Every third submitter has no keys: what it does not know about, it leaves alone.
        if me % 3 == 2 {
            match client.submit(&task).await {
                Ok(_) => {}
                Err(error) => assert!(error.is_outcome_unknown(), "{error}"),
            }
        } else {
            let task = Submit { key: Some(Key::new(&format!("{me}-{n}")).unwrap()), ..task };
            let id = client.submit(&task).await.unwrap().id;
            client.task(id).await.unwrap();
            cluster.until(|state| state.tasks[id.0 as usize - 1].completed).await;
            assert_eq!(client.task(id).await.unwrap().summary.state, TaskState::Completed);
        }
        progress.send_modify(|progress| progress[me] += 1);
        tokio::task::yield_now().await;
    }
}

/// Waits until every submitter has come on by two tasks: the first may have begun before.
async fn everyone_is_served(progress: &Progress) {
    let before = *progress.borrow();
    let mut progress = progress.subscribe();
    let came_on = |now: &[u64; SUBMITTERS]| now.iter().zip(before).all(|(now, before)| *now >= before + 2);
    in_time(progress.wait_for(came_on)).await.unwrap();
}

/// Takes a node away in all the ways there are, and back.
async fn restart(cluster: &Cluster, n: usize, node: &Node, progress: &Progress) {
    for mode in AILING {
        let before = cluster.state.lock().unwrap().met(mode);
        cluster.set(n, mode);
        // Until a caller has met it, or there are no callers any more.
        tokio::select! {
            () = cluster.until(|state| state.met(mode) > before) => {}
            () = everyone_is_served(progress) => {}
        }
    }
    node.stop().await;
    everyone_is_served(progress).await;
    cluster.set(n, Mode::Well);
    node.restart();
    everyone_is_served(progress).await;
}

#[tokio::test]
async fn a_rolling_restart_fails_and_doubles_no_repeated_call() {
    let (cluster, nodes) = start();
    let client = |first: usize| client_of((0..3).map(|n| &nodes[(first + n) % 3]), 5);
    let (stop, progress) = (CancellationToken::new(), Progress::new(watch::Sender::new([0; SUBMITTERS])));
    let (untold, mut not_told) = mpsc::unbounded_channel();
    let worker = Worker::new(client(0), ["q"]).name("w").concurrency(4).lease(Duration::from_secs(60));
    let worker = worker.observe(move |notice| {
        if let Noticed::Untold { error } = notice.what {
            drop(untold.send(error));
        }
    });
    let working = tokio::spawn(worker.run(stop.clone(), |_: Job| async { Ok::<_, JobError>(()) }));
    let finish = CancellationToken::new();
    let submitters: Vec<_> = (0..SUBMITTERS)
        .map(|me| {
            let (cluster, progress) = (Arc::clone(&cluster), Arc::clone(&progress));
            tokio::spawn(submit_and_read(client(me % 3), cluster, me, progress, finish.clone()))
        })
        .collect();

    for _ in 0..ROUNDS {
        for (n, node) in nodes.iter().enumerate() {
            restart(&cluster, n, node, &progress).await;
        }
    }
    finish.cancel();
    for submitter in submitters {
        in_time(submitter).await.unwrap();
    }
    in_time(cluster.until(|state| state.tasks.iter().all(|task| task.completed))).await;
    stop.cancel();
    in_time(working).await.unwrap().unwrap();

    assert!(not_told.try_recv().is_err(), "the outcome of every attempt was told");
    let state = cluster.state.lock().unwrap();
    let mut payloads: Vec<String> = state.tasks.iter().map(|task| task.payload.to_string()).collect();
    payloads.sort();
    payloads.dedup();
    assert_eq!(payloads.len(), state.tasks.len(), "nothing was submitted twice");
    for mode in AILING {
        assert!(state.met(mode) > 0, "no node was met when it was {mode:?}");
    }
}

/// A worker whose first node has given it a lease and then becomes like this; answers when the lease was extended
/// and its outcome reported elsewhere.
async fn a_lease_outlives(first_node: impl AsyncFn(&Node), heartbeats: fn() -> Answer) {
    let mut short = lease(1);
    short["lease_ms"] = json!(LEASE.as_millis() as u64);
    let leases = Mutex::new(vec![short]);
    let first = Node::start(move |asked| match asked.path.as_str() {
        "/v1/lease" => match leases.lock().unwrap().pop() {
            Some(lease) => Answer::ok(json!({"leases": [lease], "waited_ms": 0})),
            None => Answer::Silence,
        },
        "/v1/workers/w/heartbeat" => heartbeats(),
        other => panic!("nobody should ask for {other}"),
    });
    let (extended, mut hears) = watch::channel(false);
    let second = Node::start(move |asked| match asked.path.as_str() {
        "/v1/lease" => Answer::Silence,
        "/v1/workers/w/heartbeat" => {
            extended.send_replace(asked.body["leases"] == json!([1_001]));
            Answer::ok(json!({"extended": [1_001], "lost": [], "cancel": [], "lease_ms": 60_000}))
        }
        "/v1/tasks/1/complete" => Answer::ok(json!({"id": 1, "state": "COMPLETED"})),
        other => panic!("nobody should ask for {other}"),
    });
    let (began, mut begins) = mpsc::unbounded_channel();
    let (notices, mut noticed) = mpsc::unbounded_channel();
    let hearing = hears.clone();
    let stop = CancellationToken::new();
    let worker = Worker::new(client_of([&first, &second], 0), ["q"]).name("w").lease(LEASE);
    let worker = worker.observe(move |notice| drop(notices.send(notice.what)));
    let running = tokio::spawn(worker.run(stop.clone(), move |_: Job| {
        began.send(()).unwrap();
        let mut hears = hearing.clone();
        async move {
            hears.wait_for(|extended| *extended).await.unwrap();
            Ok::<_, JobError>(())
        }
    }));
    in_time(begins.recv()).await.unwrap();
    first_node(&first).await;
    in_time(hears.wait_for(|extended| *extended)).await.unwrap();
    assert!(matches!(in_time(noticed.recv()).await, Some(Noticed::Began)));
    let end = in_time(noticed.recv()).await;
    assert!(matches!(end, Some(Noticed::Completed { .. })), "{end:?}");
    stop.cancel();
    in_time(running).await.unwrap().unwrap();
}

#[tokio::test]
async fn leases_outlive_the_stop_of_the_node_that_gave_them() {
    a_lease_outlives(async |node| node.stop().await, || Answer::HangUp).await;
}

#[tokio::test]
async fn leases_outlive_the_silence_of_the_node_that_gave_them() {
    a_lease_outlives(async |_| (), || Answer::Silence).await;
}
