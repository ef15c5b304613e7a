//! The Rust client against a real coordinator: submitting, working, following, and what restarts cost.

#[path = "../../../client/examples/hello.rs"]
#[expect(dead_code, reason = "an example has a main of its own")]
mod hello;
#[path = "../../../client/examples/quickstart.rs"]
#[expect(dead_code, reason = "an example has a main of its own")]
mod quickstart;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use orchestrix_client::wire::{LogAppend, LogStream, LogText, Submit};
use orchestrix_client::{
    Client, Event, FeedEvent, Job, JobError, Key, Noticed, Position, Stop, TaskId, TaskQuery, TaskState,
    Worker, new_task,
};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::support::Coordinator;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it happens in time")
}

async fn submit(client: &Client, count: usize) -> Vec<TaskId> {
    let tasks: Vec<Submit> = (0..count).map(|n| new_task("q", &n).unwrap()).collect();
    let submitted = client.submit_batch(tasks).await.unwrap();
    submitted.into_iter().map(|task| task.unwrap().id).collect()
}

async fn state(client: &Client, id: TaskId) -> TaskState {
    client.task(id).await.unwrap().summary.state
}

async fn wait_for_state(client: &Client, id: TaskId, wanted: TaskState) {
    in_time(async {
        while state(client, id).await != wanted {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// A worker that tells of all that happens to its tasks.
fn worker(client: &Client) -> (Worker, mpsc::UnboundedReceiver<Noticed>) {
    let (sender, notices) = mpsc::unbounded_channel();
    let worker = Worker::new(client.clone(), ["q"]).observe(move |notice| drop(sender.send(notice.what)));
    (worker, notices)
}

#[tokio::test]
async fn the_example_of_the_client_does_what_it_says() {
    let coordinator = Coordinator::start();
    assert_eq!(in_time(hello::greet(&coordinator.url())).await.unwrap(), "\"hello Ada\"");
}

#[tokio::test]
async fn the_quickstart_sends_one_mail() {
    let coordinator = Coordinator::start();
    in_time(quickstart::run(&coordinator.url(), CancellationToken::new())).await.unwrap();
    let client = Client::new(&coordinator.url()).unwrap();
    let queues = client.queues().await.unwrap().queues;
    assert_eq!((queues[0].queue.as_str(), queues[0].completed), ("mail", 1));
}

#[tokio::test]
async fn many_tasks_are_completed_with_their_results() {
    let coordinator = Coordinator::start();
    let client = Client::new(&coordinator.url()).unwrap();
    let ids = submit(&client, 300).await;
    let stop = CancellationToken::new();
    let (worker, mut notices) = worker(&client);
    let handler = async |job: Job| Ok::<_, JobError>(job.parse::<u64>()? * 2);
    let running = tokio::spawn(worker.concurrency(50).run(stop.clone(), move |job| Box::pin(handler(job))));
    let mut completed = 0;
    while completed < 300 {
        match in_time(notices.recv()).await.unwrap() {
            Noticed::Began => {}
            Noticed::Completed { state } => {
                assert_eq!(state, TaskState::Completed);
                completed += 1;
            }
            other @ (Noticed::Failed { .. }
            | Noticed::Released { .. }
            | Noticed::Lost
            | Noticed::TimedOut
            | Noticed::Untold { .. }) => {
                panic!("{other:?}")
            }
        }
    }
    stop.cancel();
    in_time(running).await.unwrap().unwrap();
    for (n, id) in ids.iter().enumerate().step_by(37) {
        let task = client.task(*id).await.unwrap();
        assert_eq!(task.result.unwrap().as_str(), (n * 2).to_string());
    }
}

#[tokio::test]
async fn a_handler_that_panics_fails_its_task_with_the_text() {
    let coordinator = Coordinator::start();
    let client = Client::new(&coordinator.url()).unwrap();
    let mut task = new_task("q", &1).unwrap();
    task.max_attempts = 1;
    let id = client.submit(&task).await.unwrap().id;
    let stop = CancellationToken::new();
    let (worker, _notices) = worker(&client);
    let running = tokio::spawn(worker.run(stop.clone(), |job: Job| async move {
        assert!(job.attempt() > 1, "the tape is torn");
        Ok::<_, JobError>(())
    }));
    wait_for_state(&client, id, TaskState::Failed).await;
    let error = client.task(id).await.unwrap().summary.error.unwrap();
    assert!(error.contains("the tape is torn"), "{error}");
    stop.cancel();
    in_time(running).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_payload_that_does_not_fit_fails_without_another_attempt() {
    let coordinator = Coordinator::start();
    let client = Client::new(&coordinator.url()).unwrap();
    let id = client.submit(&new_task("q", &"text").unwrap()).await.unwrap().id;
    let stop = CancellationToken::new();
    let (worker, _notices) = worker(&client);
    let running = tokio::spawn(worker.run(stop.clone(), |job: Job| async move { job.parse::<u32>() }));
    wait_for_state(&client, id, TaskState::Failed).await;
    assert_eq!(client.task(id).await.unwrap().summary.attempt, 1);
    stop.cancel();
    in_time(running).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_result_that_is_too_large_fails_the_task_and_says_so() {
    let coordinator = Coordinator::start();
    let client = Client::new(&coordinator.url()).unwrap();
    let id = submit(&client, 1).await[0];
    let stop = CancellationToken::new();
    let (worker, _notices) = worker(&client);
    let running =
        tokio::spawn(worker.run(stop.clone(), |_| async { Ok::<_, JobError>("x".repeat((256 << 10) + 1)) }));
    wait_for_state(&client, id, TaskState::Failed).await;
    let error = client.task(id).await.unwrap().summary.error.unwrap();
    assert!(error.contains("the result was refused"), "{error}");
    stop.cancel();
    in_time(running).await.unwrap().unwrap();
}

#[tokio::test]
async fn heartbeats_keep_a_lease_for_as_long_as_the_handler_runs() {
    let coordinator = Coordinator::start();
    let client = Client::new(&coordinator.url()).unwrap();
    let id = submit(&client, 1).await[0];
    let stop = CancellationToken::new();
    let (worker, _notices) = worker(&client);
    let running =
        tokio::spawn(worker.lease(Duration::from_millis(600)).run(stop.clone(), |job: Job| async move {
            job.progress(50, "half");
            let stopped =
                tokio::time::timeout(Duration::from_secs(2), job.cancellation().cancelled_owned()).await;
            Ok::<_, JobError>(stopped.is_ok())
        }));
    in_time(async {
        while client.task(id).await.unwrap().summary.lease.and_then(|lease| lease.progress) != Some(50) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    wait_for_state(&client, id, TaskState::Completed).await;
    let task = client.task(id).await.unwrap();
    assert_eq!((task.result.unwrap().as_str(), task.summary.attempt), ("false", 1));
    stop.cancel();
    in_time(running).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_cancelled_handler_gets_a_signal_and_may_still_complete() {
    let coordinator = Coordinator::start();
    let client = Client::new(&coordinator.url()).unwrap();
    let ids = submit(&client, 2).await;
    let stop = CancellationToken::new();
    let (worker, mut notices) = worker(&client);
    let worker = worker.lease(Duration::from_millis(600)).concurrency(2);
    let running = tokio::spawn(worker.run(stop.clone(), |job: Job| async move {
        job.cancellation().cancelled().await;
        assert_eq!(job.stop(), Some(Stop::CancelRequested));
        if job.parse::<u64>()? == 0 { Ok("done anyway") } else { Err(JobError::new("gave up")) }
    }));
    for _ in 0..2 {
        assert!(matches!(in_time(notices.recv()).await.unwrap(), Noticed::Began));
    }
    for id in &ids {
        assert!(client.cancel(*id).await.unwrap().cancel_requested);
    }
    wait_for_state(&client, ids[0], TaskState::Completed).await;
    wait_for_state(&client, ids[1], TaskState::Cancelled).await;
    stop.cancel();
    in_time(running).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_worker_that_stops_lets_its_handlers_end_within_the_grace() {
    let coordinator = Coordinator::start();
    let client = Client::new(&coordinator.url()).unwrap();
    let ids = submit(&client, 2).await;
    let (stop, go) = (CancellationToken::new(), Arc::new(Notify::new()));
    let (worker, mut notices) = worker(&client);
    let running = tokio::spawn(worker.run(stop.clone(), {
        let go = Arc::clone(&go);
        move |_| {
            let go = Arc::clone(&go);
            async move {
                go.notified().await;
                Ok::<_, JobError>(())
            }
        }
    }));
    in_time(notices.recv()).await.unwrap();
    stop.cancel();
    go.notify_one();
    in_time(running).await.unwrap().unwrap();
    assert_eq!(state(&client, ids[0]).await, TaskState::Completed);
    assert_eq!(state(&client, ids[1]).await, TaskState::Waiting);
}

#[tokio::test]
async fn a_handler_that_does_not_stop_is_dropped_and_released() {
    let coordinator = Coordinator::start();
    let client = Client::new(&coordinator.url()).unwrap();
    let id = submit(&client, 1).await[0];
    let stop = CancellationToken::new();
    let (worker, mut notices) = worker(&client);
    let worker = worker.grace(Duration::ZERO).wind_up(Duration::from_millis(50));
    let running = tokio::spawn(
        worker.run(stop.clone(), |_| async { std::future::pending::<Result<(), JobError>>().await }),
    );
    in_time(notices.recv()).await.unwrap();
    stop.cancel();
    in_time(running).await.unwrap().unwrap();
    let task = client.task(id).await.unwrap();
    assert_eq!((task.summary.state, task.summary.attempt), (TaskState::Waiting, 0));
}

#[tokio::test]
async fn a_worker_that_hears_nothing_stops_its_handler_by_itself() {
    let mut coordinator = Coordinator::start();
    let client = Client::new(&coordinator.url()).unwrap();
    submit(&client, 1).await;
    let (stop, why) = (CancellationToken::new(), Arc::new(std::sync::Mutex::new(None)));
    let (worker, mut notices) = worker(&client);
    let running = tokio::spawn(worker.lease(Duration::from_secs(1)).run(stop.clone(), {
        let why = Arc::clone(&why);
        move |job: Job| {
            let why = Arc::clone(&why);
            async move {
                job.cancellation().cancelled().await;
                *why.lock().unwrap() = job.stop();
                Err::<(), _>(JobError::new("stopped"))
            }
        }
    }));
    in_time(notices.recv()).await.unwrap();
    coordinator.kill();
    assert!(matches!(in_time(notices.recv()).await.unwrap(), Noticed::Lost));
    assert_eq!(*why.lock().unwrap(), Some(Stop::Deadline));
    stop.cancel();
    in_time(running).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_result_survives_a_killed_coordinator() {
    let mut coordinator = Coordinator::start();
    let client = Client::new(&coordinator.url()).unwrap();
    let id = submit(&client, 1).await[0];
    let (stop, go, runs) = (CancellationToken::new(), Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let (worker, mut notices) = worker(&client);
    let running = tokio::spawn(worker.run(stop.clone(), {
        let (go, runs) = (Arc::clone(&go), Arc::clone(&runs));
        move |_| {
            let (go, runs) = (Arc::clone(&go), Arc::clone(&runs));
            async move {
                runs.fetch_add(1, Ordering::Relaxed);
                go.notified().await;
                Ok::<_, JobError>("kept")
            }
        }
    }));
    in_time(notices.recv()).await.unwrap();
    coordinator.kill();
    go.notify_one();
    coordinator.launch();
    wait_for_state(&client, id, TaskState::Completed).await;
    assert_eq!(client.task(id).await.unwrap().result.unwrap().as_str(), "\"kept\"");
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    stop.cancel();
    in_time(running).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_keyless_submit_waits_for_a_coordinator_to_start() {
    let mut coordinator = Coordinator::prepared();
    let client = Client::builder(&coordinator.url()).retries(30).build().unwrap();
    let submitting = tokio::spawn({
        let client = client.clone();
        async move { client.submit(&new_task("q", &1).unwrap()).await }
    });
    let coordinator = tokio::task::spawn_blocking(move || {
        coordinator.launch();
        coordinator
    });
    let _coordinator = coordinator.await.unwrap();
    let id = in_time(submitting).await.unwrap().unwrap().id;
    assert_eq!(state(&client, id).await, TaskState::Waiting);
    assert_eq!(client.tasks(&TaskQuery::default()).await.unwrap().tasks.len(), 1);
}

#[tokio::test]
async fn a_batch_answers_for_each_task_by_itself() {
    let coordinator = Coordinator::start();
    let client = Client::new(&coordinator.url()).unwrap();
    let keyed =
        |payload: u32| Submit { key: Some(Key::new("k").unwrap()), ..new_task("q", &payload).unwrap() };
    let answers = client.submit_batch(vec![keyed(1), keyed(1), keyed(2)]).await.unwrap();
    let first = answers[0].as_ref().unwrap().id;
    assert_eq!(answers[1].as_ref().unwrap().id, first);
    assert_eq!(answers[2].as_ref().unwrap_err().code(), "key_conflict");
}

#[tokio::test]
async fn a_walk_meets_every_task_once_in_order() {
    let coordinator = Coordinator::start();
    let client = Client::new(&coordinator.url()).unwrap();
    let ids = submit(&client, 25).await;
    let mut walk = client.all_tasks(TaskQuery { limit: Some(10), ..TaskQuery::default() });
    let mut met = Vec::new();
    while let Some(task) = walk.next().await.unwrap() {
        met.push(task.id);
    }
    assert_eq!(met, ids);
}

#[tokio::test]
async fn events_are_followed_and_taken_up_again_after_a_position() {
    let coordinator = Coordinator::start();
    let client = Client::new(&coordinator.url()).unwrap();
    let ids = submit(&client, 3).await;
    let mut feed = client.events(Some(Position(ids[0].0)));
    for id in &ids[1..] {
        match in_time(feed.next()).await.unwrap() {
            FeedEvent::Event { position, event: Event::TaskCreated(created), .. } => {
                assert_eq!((position.0, created.task), (id.0, *id));
                assert_eq!(created.queue.as_str(), "q");
            }
            event @ FeedEvent::Event { .. } => panic!("{event:?}"),
            gap @ FeedEvent::Gap { .. } => panic!("{gap:?}"),
        }
    }
    let later = submit(&client, 1).await[0];
    let FeedEvent::Event { position, .. } = in_time(feed.next()).await.unwrap() else { panic!("a gap") };
    assert_eq!(position.0, later.0);
}

#[tokio::test]
async fn the_lines_of_a_job_are_followed_to_the_end_of_the_task() {
    let coordinator = Coordinator::start();
    let client = Client::new(&coordinator.url()).unwrap();
    let id = submit(&client, 1).await[0];
    let stop = CancellationToken::new();
    let (worker, _notices) = worker(&client);
    let running = tokio::spawn(worker.run(stop.clone(), |job: Job| async move {
        (0..1_200).for_each(|n| job.log(&format!("line {n}")));
        Ok::<_, JobError>(())
    }));
    let mut feed = client.follow_logs(id, None, 0);
    let mut lines = Vec::new();
    while let Some(line) = in_time(feed.next()).await.unwrap() {
        lines.push(line.text);
    }
    let expected: Vec<String> = (0..1_200).map(|n| format!("line {n}")).collect();
    assert_eq!(lines, expected);
    stop.cancel();
    in_time(running).await.unwrap().unwrap();
}

#[tokio::test]
async fn an_append_without_lines_tells_how_many_have_arrived() {
    let coordinator = Coordinator::start();
    let client = Client::new(&coordinator.url()).unwrap();
    let id = submit(&client, 1).await[0];
    let stop = CancellationToken::new();
    let (worker, _notices) = worker(&client);
    let running = tokio::spawn(worker.run(stop.clone(), {
        let client = client.clone();
        move |job: Job| {
            let client = client.clone();
            async move {
                let line = |text: &str| LogText { text: text.to_owned(), stream: LogStream::Stdout };
                let append = |lines| LogAppend { lease_id: job.lease_id(), lines, offset: None, skipped: 0 };
                client.append_logs(job.task_id(), &append(vec![line("one"), line("two")])).await?;
                Ok::<_, JobError>(client.append_logs(job.task_id(), &append(vec![])).await?.next)
            }
        }
    }));
    wait_for_state(&client, id, TaskState::Completed).await;
    assert_eq!(client.task(id).await.unwrap().result.unwrap().as_str(), "2");
    assert_eq!(client.logs(id, None, 0, None).await.unwrap().lines.len(), 2);
    stop.cancel();
    in_time(running).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_client_reads_health_and_leader() {
    let coordinator = Coordinator::start();
    let client = Client::new(&coordinator.url()).unwrap();
    assert_eq!(client.health().await.unwrap().status, "healthy");
    let cluster = client.cluster().await.unwrap();
    assert_eq!(cluster.leader, Some(cluster.nodes[0].name.clone()));
}
