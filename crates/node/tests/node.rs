//! A whole node on a real folder: what was acknowledged is there after a restart.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use orchestrix_core::wire::{Complete, LeaseQueues, LogAppend, LogStream, LogText, Submit};
use orchestrix_core::{Filter, Json, Name, Refusal, TaskId, TaskState};
use orchestrix_node::{
    Ask, Caller, Error, Happening, Node, OnTaken, Options, Recovered, Seen, Storage, open,
};
use tempfile::TempDir;

fn start(folder: &Path) -> (Node, Recovered) {
    start_with(folder, Options::default())
}

fn start_with(folder: &Path, options: Options) -> (Node, Recovered) {
    open(&Storage::File(folder.join("data")), options).unwrap()
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn task(payload: &str) -> Submit {
    Submit::new(name("mail"), Json::parse(payload).unwrap())
}

fn request(wait_ms: u64) -> LeaseQueues {
    LeaseQueues {
        queues: vec![name("mail")],
        worker: name("w"),
        max: 1,
        lease_ms: 60_000,
        wait_ms,
        request_id: None,
        capacity: None,
    }
}

/// Whether a future that is looked at now waits.
fn is_pending(future: Pin<&mut impl Future>) -> bool {
    future.poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// Waits for a state instead of a time.
async fn eventually<F: Future<Output = bool>>(what: &str, mut check: impl FnMut() -> F) {
    let waiting = async {
        while !check().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting)
        .await
        .unwrap_or_else(|_| panic!("{what} did not happen"));
}

#[tokio::test]
async fn everything_is_there_after_a_restart() {
    let folder = TempDir::new().unwrap();
    let (node, recovered) = start(folder.path());
    assert_eq!(recovered.position.0, 0);
    let (first, seen) = node.submit(task(r#"{"n":1}"#)).await.unwrap();
    assert_eq!(seen, Seen::First);
    let (second, _) = node.submit(task("2")).await.unwrap();
    let leased = node.lease(request(0)).await.unwrap().leases.remove(0);
    assert_eq!(leased.task_id, first.id);
    let lines = vec![LogText { text: "working".to_owned(), stream: LogStream::Stdout }];
    node.append_logs(first.id, LogAppend { lease_id: leased.lease_id, lines, offset: None, skipped: 0 })
        .await
        .unwrap();
    node.stop().await.unwrap();
    assert_eq!(node.task(first.id).await, Err(Error::Stopping));

    let (node, recovered) = start(folder.path());
    assert_eq!(recovered.position.0, 5);
    assert!(recovered.journal.cut.is_none());
    assert_eq!(node.task(second.id).await.unwrap().summary.state, TaskState::Waiting);
    let done = Complete {
        lease_id: leased.lease_id,
        worker: Some(name("w")),
        result: Some(Json::parse("[1]").unwrap()),
    };
    let outcome = node.complete(first.id, done.clone()).await.unwrap();
    assert_eq!(outcome.state, TaskState::Completed, "a lease goes on over a restart");
    let view = node.task(first.id).await.unwrap();
    assert_eq!(view.payload.as_str(), r#"{"n":1}"#);
    assert_eq!(view.result.unwrap().as_str(), "[1]");
    assert_eq!(node.logs(first.id, 0, 10, None).await.unwrap().lines[0].text, "working");
    assert_eq!(node.complete(first.id, done).await.unwrap(), outcome, "a repeat gets the recorded outcome");
    node.stop().await.unwrap();
}

#[tokio::test]
async fn a_folder_has_one_node() {
    let folder = TempDir::new().unwrap();
    let (node, _) = start(folder.path());
    let second = open(&Storage::File(folder.path().join("data")), Options::default());
    let message = second.map(drop).unwrap_err().to_string();
    assert!(message.contains("another process is using") && message.contains("data"), "{message}");
    node.stop().await.unwrap();
    let (node, _) = start(folder.path());
    node.stop().await.unwrap();
}

#[tokio::test]
async fn snapshots_are_taken_under_load_and_shorten_the_restart() {
    let folder = TempDir::new().unwrap();
    let options = Options { snapshot_bytes: 20_000, ..Options::default() };
    let (node, _) = start_with(folder.path(), options.clone());
    let mut submitted = 0_u64;
    while node.stats().snapshots.get() < 3 {
        let tasks = (0..100).map(|n| task(&format!("{{\"n\":{n}}}"))).collect();
        let outcomes = node.submit_batch(tasks).await.unwrap();
        submitted += outcomes.iter().filter(|outcome| outcome.is_ok()).count() as u64;
        let leases = node.lease(LeaseQueues { max: 30, ..request(0) }).await.unwrap().leases;
        for leased in leases {
            let done = Complete { lease_id: leased.lease_id, worker: None, result: None };
            node.complete(leased.task_id, done).await.unwrap();
        }
    }
    let counts = |queues: orchestrix_core::wire::QueueList| {
        let queue = &queues.queues[0];
        (queue.ready, queue.delayed, queue.leased, queue.completed)
    };
    let before = counts(node.queues().await.unwrap());
    assert_eq!(before.0 + before.3, submitted);
    node.stop().await.unwrap();
    let (node, recovered) = start_with(folder.path(), options);
    assert!(recovered.snapshot.is_some_and(|at| at.0 > 0), "{recovered:?}");
    assert_eq!(counts(node.queues().await.unwrap()), before);
    node.stop().await.unwrap();
}

#[tokio::test]
async fn a_caller_who_gives_up_takes_nothing() {
    let folder = TempDir::new().unwrap();
    let (node, _) = start(folder.path());
    let poll = tokio::spawn({
        let node = node.clone();
        async move { node.lease(request(60_000)).await }
    });
    eventually("the poll", || async { node.stats().polls.get() == 1 }).await;
    poll.abort();
    assert!(poll.await.unwrap_err().is_cancelled());
    let (submitted, _) = node.submit(task("1")).await.unwrap();
    let leased = node.lease(request(0)).await.unwrap().leases.remove(0);
    assert_eq!((leased.task_id, leased.attempt), (submitted.id, 1));
    node.stop().await.unwrap();
}

#[tokio::test]
async fn an_answer_that_met_its_cancel_is_given_back() {
    let folder = TempDir::new().unwrap();
    let (node, _) = start(folder.path());
    let mut waits = Box::pin(node.lease(request(60_000)));
    assert!(is_pending(waits.as_mut()));
    // The answer is sent, and nobody has looked at it.
    let (sent, _) = node.submit(task("1")).await.unwrap();
    eventually("the task is leased", || async {
        node.task(sent.id).await.unwrap().summary.state == TaskState::Leased
    })
    .await;
    drop(waits);
    let next = node.lease(request(30_000)).await.unwrap();
    assert_eq!(next.leases[0].task_id, sent.id, "it is not lost until its lease ends");
    node.stop().await.unwrap();
}

#[tokio::test]
async fn a_call_that_waits_is_taken_before_it_is_answered() {
    let folder = TempDir::new().unwrap();
    let (node, _) = start(folder.path());
    let (told, taken) = tokio::sync::oneshot::channel();
    let on_taken: OnTaken = Box::new(move || told.send(()).unwrap());
    let caller = Caller::default();
    let mut waits = Box::pin(node.ask_telling(&caller, Ask::Lease(request(60_000)), Some(on_taken)));
    assert!(is_pending(waits.as_mut()));
    taken.await.unwrap();
    assert!(is_pending(waits.as_mut()));
    drop(waits);
    node.stop().await.unwrap();
}

#[tokio::test]
async fn a_waiting_poll_is_answered_when_the_node_stops() {
    let (node, _) = open(&Storage::Memory, Options::default()).unwrap();
    let poll = tokio::spawn({
        let node = node.clone();
        async move { node.lease(request(60_000)).await }
    });
    eventually("the poll", || async { node.stats().polls.get() == 1 }).await;
    node.stop().await.unwrap();
    assert!(poll.await.unwrap().unwrap().leases.is_empty());
    assert_eq!(node.submit(task("1")).await.unwrap_err(), Error::Stopping);
}

#[tokio::test]
async fn more_questions_than_may_wait_are_refused_not_queued() {
    let options = Options { queue_max: 4, ..Options::default() };
    let (node, _) = open(&Storage::Memory, options).unwrap();
    let asks = (0..2_000).map(|_| {
        let node = node.clone();
        tokio::spawn(async move { node.submit(task("1")).await })
    });
    let mut answers = Vec::new();
    for ask in asks.collect::<Vec<_>>() {
        answers.push(ask.await.unwrap());
    }
    let refused = answers.iter().filter(|answer| **answer == Err(Error::Overloaded)).count() as u64;
    let accepted = answers.iter().filter(|answer| answer.is_ok()).count() as u64;
    assert_eq!(refused + accepted, 2_000);
    assert_eq!(node.stats().submitted.get(), accepted, "what was refused left no trace");
    node.stop().await.unwrap();
}

#[tokio::test]
async fn every_question_of_a_long_line_is_answered() {
    let folder = TempDir::new().unwrap();
    let (node, _) = start(folder.path());
    let (first, _) = node.submit(task("1")).await.unwrap();
    let mut asked = tokio::task::JoinSet::new();
    // The loop is at work on the batches while the others stand in line.
    for _ in 0..8 {
        let node = node.clone();
        asked.spawn(async move { node.submit_batch(vec![task("2"); 1_000]).await.map(|_| ()) });
    }
    for _ in 0..8_000 {
        let node = node.clone();
        asked.spawn(async move { node.task(first.id).await.map(|_| ()) });
    }
    while let Some(answer) = asked.join_next().await {
        answer.unwrap().unwrap();
    }
    node.stop().await.unwrap();
}

#[tokio::test]
async fn a_batch_at_its_limits_is_taken_and_above_refused() {
    let folder = TempDir::new().unwrap();
    let (node, _) = start(folder.path());
    let batch = |count: usize, bytes: usize| vec![task(&format!("\"{}\"", "x".repeat(bytes - 2))); count];
    assert_eq!(node.submit_batch(batch(1_000, 3)).await.unwrap().len(), 1_000);
    assert!(matches!(node.submit_batch(batch(1_001, 3)).await, Err(Error::Refused(Refusal::Invalid { .. }))));
    let mut tasks = batch(128, 256 << 10);
    assert_eq!(node.submit_batch(tasks.clone()).await.unwrap().len(), 128);
    tasks.push(task("1"));
    assert!(matches!(node.submit_batch(tasks).await, Err(Error::Refused(Refusal::TooLarge { .. }))));
    assert_eq!(node.stats().submitted.get(), 1_128);
    node.stop().await.unwrap();
}

#[tokio::test]
async fn watchers_see_durable_events_and_resume() {
    let (node, _) = open(&Storage::Memory, Options::default()).unwrap();
    let (first, _) = node.submit(task("1")).await.unwrap();
    let mut events = node.events(Some(orchestrix_core::Position(first.id.0 - 1)));
    let Happening::Event { position, event, .. } = events.next().await else { panic!("a gap") };
    assert_eq!((position.0, event.name()), (first.id.0, "TaskCreated"));
    node.cancel(first.id, None).await.unwrap();
    let Happening::Event { event, .. } = events.next().await else { panic!("a gap") };
    assert_eq!(event.name(), "TaskCancelled");
    node.stop().await.unwrap();
}

#[tokio::test]
async fn lists_are_paged_and_filtered() {
    let (node, _) = open(&Storage::Memory, Options::default()).unwrap();
    node.submit_batch((0..25).map(|_| task("1")).collect()).await.unwrap();
    let (page, next) = node.tasks(Filter::default(), None, 10).await.unwrap();
    assert_eq!(page.len(), 10);
    let (page, next) = node.tasks(Filter::default(), next, 10).await.unwrap();
    assert_eq!(page[0].id, TaskId(13));
    let (page, next) = node.tasks(Filter::default(), next, 10).await.unwrap();
    assert_eq!((page.len(), next), (5, None));
    let filter = Filter { queue: Some(name("other")), state: None };
    assert_eq!(node.tasks(filter, None, 10).await.unwrap(), (vec![], None));
    node.stop().await.unwrap();
}

#[tokio::test]
async fn output_is_numbered_capped_and_kept_apart_by_attempt() {
    let options = Options { log_task_bytes: 40, log_line_bytes: 10, ..Options::default() };
    let (node, _) = open(&Storage::Memory, options).unwrap();
    let (submitted, _) = node.submit(task("1")).await.unwrap();
    let id = submitted.id;
    let first = node.lease(request(0)).await.unwrap().leases.remove(0);
    let lines = |texts: &[&str]| {
        texts
            .iter()
            .map(|text| LogText { text: (*text).to_owned(), stream: LogStream::Stderr })
            .collect::<Vec<_>>()
    };
    let append =
        |lease_id, texts: &[&str], offset| LogAppend { lease_id, lines: lines(texts), offset, skipped: 0 };
    let added = node.append_logs(id, append(first.lease_id, &["one", "two"], Some(0))).await.unwrap();
    assert_eq!((added.next, added.dropped), (2, 0));
    let again = node.append_logs(id, append(first.lease_id, &["one", "two"], Some(0))).await.unwrap();
    assert_eq!((again.next, again.dropped), (2, 0), "a repeat adds nothing");
    let hole = node.append_logs(id, append(first.lease_id, &["x"], Some(7))).await.unwrap_err();
    assert!(matches!(hole, Error::Refused(Refusal::Invalid { field: "offset", .. })), "{hole}");

    node.release(id, orchestrix_core::wire::Release { lease_id: first.lease_id, worker: None })
        .await
        .unwrap();
    let stale = node.append_logs(id, append(first.lease_id, &["late"], None)).await.unwrap_err();
    assert!(matches!(stale, Error::Refused(Refusal::StaleLease { .. })), "{stale}");
    let second = node.lease(request(0)).await.unwrap().leases.remove(0);
    node.append_logs(id, append(second.lease_id, &["0123456789", "01234567890"], None)).await.unwrap();
    let added = node.append_logs(id, append(second.lease_id, &["more", "and more"], None)).await.unwrap();
    assert_eq!(added.dropped, 2, "the task has reached its cap");

    let page = node.logs(id, 0, 100, None).await.unwrap();
    let texts: Vec<&str> = page.lines.iter().map(|line| line.text.as_str()).collect();
    let marker = "2 lines were dropped: the output of this task has reached 40 bytes";
    assert_eq!(texts, ["one", "two", "0123456789", "0123456789 [1 bytes cut]", marker]);
    assert_eq!(page.lines.iter().map(|line| line.n).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!((page.next_offset, page.dropped), (5, 2));
    let page = node.logs(id, 1, 2, None).await.unwrap();
    assert_eq!((page.lines[0].text.as_str(), page.lines.len(), page.next_offset), ("two", 2, 3));
    node.stop().await.unwrap();
}

#[tokio::test]
async fn leases_name_their_workers_after_a_restart() {
    let folder = TempDir::new().unwrap();
    let (node, _) = start(folder.path());
    node.submit(task("1")).await.unwrap();
    let leased = node.lease(LeaseQueues { capacity: Some(4), ..request(0) }).await.unwrap().leases.remove(0);
    let before = node.workers().await.unwrap().workers.remove(0);
    assert_eq!((before.leases, before.capacity), (1, Some(4)));
    assert!(before.seen_at.0 > 0);
    node.stop().await.unwrap();

    let (node, _) = start(folder.path());
    let silent = node.workers().await.unwrap().workers.remove(0);
    assert_eq!((silent.worker, silent.leases, silent.seen_at.0, silent.capacity), (name("w"), 1, 0, None));
    node.heartbeat_worker(name("w"), vec![leased.lease_id]).await.unwrap();
    assert!(node.workers().await.unwrap().workers[0].seen_at >= before.seen_at);
    node.stop().await.unwrap();
}

#[tokio::test]
async fn output_that_a_crash_left_behind_is_deleted_at_the_next_start() {
    let folder = TempDir::new().unwrap();
    start(folder.path()).0.stop().await.unwrap();
    let disk =
        || std::sync::Arc::new(orchestrix_engine::disk::RealDisk::open(folder.path().join("data")).unwrap());
    let logs = orchestrix_engine::file::FileLogs::open(disk()).unwrap();
    let unknown = orchestrix_engine::LogPlace::first(TaskId(77), orchestrix_core::LeaseId(78));
    orchestrix_engine::Logs::append(&logs, unknown, b"whose?").unwrap();
    drop(logs);
    start(folder.path()).0.stop().await.unwrap();
    let logs = orchestrix_engine::file::FileLogs::open(disk()).unwrap();
    assert!(orchestrix_engine::Logs::tasks(&logs).unwrap().is_empty());
}
