//! Kills the coordinator under load, again and again, and holds it to every word it gave.
//!
//! The oracle writes down each acknowledgement when it arrives. After every kill -9 and restart: what was
//! acknowledged is there, what was refused or unknown is there at most once, and no task has two outcomes.
//! `ROUNDS=1000 SEED=7 make crash` runs more of it.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use orchestrix_client::{Client, TaskQuery, new_task};
use orchestrix_core::wire::{Complete, LeaseQueues, Submit, TaskSummary};
use orchestrix_core::{Json, Key, LeaseId, Name, TaskId, TaskState};
use support::Coordinator;

/// Short, so that leases of killed rounds run out and are granted again within the campaign.
const LEASE_MS: u64 = 700;
const SUBMITTERS: u64 = 3;
const WORKERS: u64 = 3;

/// Everything that the coordinator said.
#[derive(Default)]
struct Oracle {
    submitted: BTreeMap<String, TaskId>,
    /// Submits whose answer never came.
    unknown: BTreeSet<String>,
    granted: BTreeSet<LeaseId>,
    completed: BTreeMap<TaskId, LeaseId>,
    /// Completions whose answer never came.
    unknown_completions: BTreeSet<(TaskId, LeaseId)>,
    stale: u64,
    resolved: u64,
}

impl Oracle {
    fn completed(&mut self, task: TaskId, lease: LeaseId) {
        let other = self.completed.insert(task, lease);
        assert!(
            other.is_none_or(|other| other == lease),
            "task {task} has two accepted outcomes: {other:?} and {lease}"
        );
    }
}

#[test]
fn nothing_acknowledged_is_lost_and_no_task_has_two_outcomes() {
    let rounds: u64 = from_environment("ROUNDS", 50);
    let seed: u64 = from_environment("SEED", 1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut coordinator = Coordinator::prepared();
    let oracle = Arc::new(Mutex::new(Oracle::default()));
    for round in 0..rounds {
        coordinator.launch();
        let client =
            Client::builder(&coordinator.url()).retries(0).timeout(Duration::from_secs(10)).build().unwrap();
        runtime.block_on(check(&client, &oracle));
        let load = start_load(&runtime, &client, &oracle, round);
        std::thread::sleep(Duration::from_millis(20 + random.below(180)));
        coordinator.kill();
        runtime.block_on(async {
            for part in load {
                part.await.unwrap();
            }
        });
    }
    coordinator.launch();
    let client = Client::new(&coordinator.url()).unwrap();
    runtime.block_on(check(&client, &oracle));
    let oracle = oracle.lock().unwrap();
    println!(
        "seed {seed}: {rounds} kills, {} submits and {} completions acknowledged, {} grants, {} unknown outcomes resolved, \
         {} stale reports refused",
        oracle.submitted.len(),
        oracle.completed.len(),
        oracle.granted.len(),
        oracle.resolved,
        oracle.stale,
    );
    assert!(oracle.submitted.len() as u64 > 10 * rounds, "there was hardly any load");
    assert!(oracle.completed.len() as u64 > rounds, "there was hardly any work");
    assert!(rounds < 20 || oracle.resolved > 0, "no kill hit a request in flight");
}

type Load = Vec<tokio::task::JoinHandle<()>>;

fn start_load(
    runtime: &tokio::runtime::Runtime,
    client: &Client,
    oracle: &Arc<Mutex<Oracle>>,
    round: u64,
) -> Load {
    let submitters =
        (0..SUBMITTERS).map(|n| runtime.spawn(submit(client.clone(), Arc::clone(oracle), round, n)));
    let workers = (0..WORKERS).map(|n| runtime.spawn(work(client.clone(), Arc::clone(oracle), round, n)));
    submitters.collect::<Vec<_>>().into_iter().chain(workers).collect()
}

/// Submits until the coordinator is gone.
async fn submit(client: Client, oracle: Arc<Mutex<Oracle>>, round: u64, n: u64) {
    for count in 0.. {
        let key = format!("{round}-{n}-{count}");
        match client.submit(&task(&key)).await {
            Ok(submitted) => {
                let earlier = oracle.lock().unwrap().submitted.insert(key, submitted.id);
                assert_eq!(earlier, None);
            }
            Err(_) => {
                oracle.lock().unwrap().unknown.insert(key);
                return;
            }
        }
    }
}

/// Leases and completes until the coordinator is gone.
async fn work(client: Client, oracle: Arc<Mutex<Oracle>>, round: u64, n: u64) {
    for count in 0.. {
        let request = LeaseQueues {
            queues: vec![Name::new("crash").unwrap()],
            worker: Name::new(&format!("worker-{n}")).unwrap(),
            max: 3,
            lease_ms: LEASE_MS,
            wait_ms: 100,
            request_id: Some(Name::new(&format!("{round}-{n}-{count}")).unwrap()),
            capacity: None,
        };
        let Ok(leases) = client.lease(&request).await else { return };
        for leased in leases.leases {
            let new = oracle.lock().unwrap().granted.insert(leased.lease_id);
            assert!(new, "lease {} was granted twice", leased.lease_id);
            match client.complete(leased.task_id, &completion(leased.lease_id)).await {
                Ok(outcome) => {
                    assert_eq!(outcome.state, TaskState::Completed);
                    oracle.lock().unwrap().completed(leased.task_id, leased.lease_id);
                }
                Err(error) if error.code() == "stale_lease" => oracle.lock().unwrap().stale += 1,
                Err(_) => {
                    oracle.lock().unwrap().unknown_completions.insert((leased.task_id, leased.lease_id));
                    return;
                }
            }
        }
    }
}

/// Compares what there is with what was said, and finds out what is unknown.
async fn check(client: &Client, oracle: &Mutex<Oracle>) {
    let tasks = all_tasks(client).await;
    let mut by_key = BTreeMap::new();
    for task in tasks.values() {
        let key = task.key.as_ref().unwrap().to_string();
        assert!(by_key.insert(key.clone(), task.id).is_none(), "key {key} has two tasks");
    }
    let (unknown, unknown_completions) = {
        let mut oracle = oracle.lock().unwrap();
        for (key, id) in &oracle.submitted {
            assert_eq!(by_key.get(key), Some(id), "submit {key} was acknowledged as task {id}");
        }
        for (id, lease) in &oracle.completed {
            let state = tasks.get(id).map(|task| task.state);
            assert_eq!(
                state,
                Some(TaskState::Completed),
                "task {id} was acknowledged as completed under {lease}"
            );
        }
        (std::mem::take(&mut oracle.unknown), std::mem::take(&mut oracle.unknown_completions))
    };
    for key in unknown {
        let submitted = client.submit(&task(&key)).await.unwrap();
        assert!(
            by_key.get(&key).is_none_or(|id| *id == submitted.id),
            "a repeat of submit {key} made another task"
        );
        let mut oracle = oracle.lock().unwrap();
        oracle.submitted.insert(key, submitted.id);
        oracle.resolved += 1;
    }
    for (id, lease) in unknown_completions {
        let repeated = client.complete(id, &completion(lease)).await;
        let mut oracle = oracle.lock().unwrap();
        oracle.resolved += 1;
        match repeated {
            Ok(_) => oracle.completed(id, lease),
            Err(error) => assert_eq!(error.code(), "stale_lease", "{error}"),
        }
    }
}

async fn all_tasks(client: &Client) -> BTreeMap<TaskId, TaskSummary> {
    let mut tasks = BTreeMap::new();
    let mut walk = client.all_tasks(TaskQuery { limit: Some(1_000), ..TaskQuery::default() });
    while let Some(task) = walk.next().await.unwrap() {
        tasks.insert(task.id, task);
    }
    tasks
}

fn task(key: &str) -> Submit {
    let mut task = new_task("crash", &serde_json::json!({ "key": key })).unwrap();
    task.key = Some(Key::new(key).unwrap());
    task.max_attempts = 100;
    task
}

fn completion(lease: LeaseId) -> Complete {
    Complete { lease_id: lease, worker: None, result: Some(Json::parse(&lease.to_string()).unwrap()) }
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Numbers that look random and are the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
