//! Tests of lines when the coordinator is slow, refuses them or does not answer.

use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use orchestrix_core::wire::LogStream;
use orchestrix_core::{Json, LeaseId, Name, TaskId};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};

use super::*;
use crate::clock::manual::ManualClock;
use crate::tests::fake::{Answer, Asked, coordinator, in_time};
use crate::worker::job_log::*;

/// The log of a task, as a coordinator keeps it.
#[derive(Default)]
struct Log(Mutex<(u64, Vec<String>)>);

impl Log {
    fn append(&self, body: &Value) -> Answer {
        let mut log = self.0.lock().unwrap();
        let (sent, stored) = &mut *log;
        let offset = body["offset"].as_u64().unwrap_or(*sent);
        let gap = offset.saturating_sub(*sent);
        if gap > body["skipped"].as_u64().unwrap_or(0) {
            return Answer::problem(400, "invalid");
        }
        if gap > 0 {
            stored.push(missing(gap));
        }
        let texts = body["lines"].as_array().unwrap().iter().map(|line| line["text"].as_str().unwrap());
        for (n, text) in (offset..).zip(texts) {
            if n >= *sent {
                stored.push(text.to_owned());
                *sent = n + 1;
            }
        }
        *sent = offset.max(*sent);
        Answer::ok(json!({"next": *sent, "dropped": 0}))
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().1.clone()
    }
}

fn missing(lines: u64) -> String {
    match lines {
        1 => "1 line is missing here: the coordinator did not take it in time".to_owned(),
        _ => format!("{lines} lines are missing here: the coordinator did not take them in time"),
    }
}

/// The log of a job whose coordinator answers like this, and its sender.
async fn talk(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> (JobLog, LogSender) {
    let leased = Leased {
        task_id: TaskId(1),
        lease_id: LeaseId(2),
        queue: Name::new("q").unwrap(),
        attempt: 1,
        payload: Json::null(),
        lease_ms: 60_000,
        timeout_ms: None,
    };
    let held = Arc::new(Held::new(Arc::new(ManualClock::default())));
    let signal = held.add(leased.lease_id, Duration::from_secs(60));
    let (job_log, items) = JobLog::open();
    let sender = LogSender::new(items, coordinator(answer).await, held, signal, Arc::new(leased));
    (job_log, LogSender { patience: Duration::from_secs(1), outage: Duration::from_secs(1), ..sender })
}

#[tokio::test]
async fn dropped_lines_are_counted_by_the_next_ones() {
    let log = Arc::new(Log::default());
    let (asked, mut refused) = mpsc::unbounded_channel();
    let (job_log, sender) = talk({
        let log = Arc::clone(&log);
        move |request| match asked.send(()) {
            // Room comes back when the test has seen the refusal.
            Ok(()) => Answer::problem(507, "storage_full"),
            Err(_) => log.append(&request.body),
        }
    })
    .await;
    let listening = tokio::spawn(sender.run());
    job_log.line(LogStream::Stdout, "one\ntwo");
    in_time(refused.recv()).await.unwrap();
    drop(refused);
    job_log.line(LogStream::Stdout, "three");
    job_log.last();
    in_time(listening).await.unwrap();
    assert_eq!(log.lines(), [missing(2).as_str(), "three"]);
}

#[tokio::test]
async fn missing_lines_at_the_end_are_reported_alone() {
    let log = Arc::new(Log::default());
    let (asked, mut refused) = mpsc::unbounded_channel();
    let (job_log, sender) = talk({
        let log = Arc::clone(&log);
        move |request| match asked.send(()) {
            Ok(()) => Answer::problem(507, "storage_full"),
            Err(_) => log.append(&request.body),
        }
    })
    .await;
    let listening = tokio::spawn(sender.run());
    job_log.line(LogStream::Stdout, "one");
    in_time(refused.recv()).await.unwrap();
    drop(refused);
    job_log.last();
    in_time(listening).await.unwrap();
    assert_eq!(log.lines(), [missing(1)]);
}

#[tokio::test]
async fn unconfirmed_lines_are_neither_missing_nor_sent_twice() {
    let log = Arc::new(Log::default());
    let (asked, mut stored) = mpsc::unbounded_channel();
    let (job_log, sender) = talk({
        let log = Arc::clone(&log);
        move |request| {
            let answer = log.append(&request.body);
            let first = request.body["offset"] == 0;
            if first { asked.send(()).map_or(answer, |()| Answer::problem(500, "internal")) } else { answer }
        }
    })
    .await;
    let listening = tokio::spawn(sender.run());
    job_log.line(LogStream::Stdout, "one\ntwo");
    in_time(stored.recv()).await.unwrap();
    job_log.line(LogStream::Stdout, "three");
    job_log.last();
    in_time(listening).await.unwrap();
    assert_eq!(log.lines(), ["one", "two", "three"]);
}

#[tokio::test]
async fn a_wait_for_room_ends_though_lines_are_not_taken() {
    let (job_log, sender) = talk(|_| Answer::problem(500, "internal")).await;
    let sender =
        LogSender { patience: Duration::from_millis(50), outage: Duration::from_millis(50), ..sender };
    let listening = tokio::spawn(sender.run());
    in_time(async {
        for _ in 0..2 * WAITING_BYTES_MAX / LINE_BYTES_MORE {
            job_log.line_when_there_is_room(LogStream::Stdout, "again").await;
        }
        job_log.last();
        listening.await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn nothing_more_is_sent_under_a_lease_that_is_over() {
    let (job_log, sender) = talk(|_| Answer::problem(409, "stale_lease")).await;
    job_log.line(LogStream::Stdout, "late");
    in_time(sender.run()).await;
}

#[test]
fn text_becomes_lines_cut_between_characters() {
    assert_eq!(pieces("a\r\nb"), ["a", "b"]);
    assert_eq!(pieces(""), [""]);
    let long = "ä".repeat(LINE_BYTES_MAX);
    let cut = pieces(&long);
    assert_eq!(cut.len(), 2);
    assert!(cut.iter().all(|piece| piece.len() <= LINE_BYTES_MAX));
    assert_eq!(cut.concat(), long);
}

#[test]
fn a_round_is_full_by_lines_by_bytes_or_at_the_end() {
    let room = Arc::new(Semaphore::new(WAITING_BYTES_MAX));
    let line = |bytes| {
        let text = "x".repeat(bytes);
        let room = Arc::clone(&room).try_acquire_many_owned(room_of(&text)).unwrap();
        LogItem::Line(LogText { text, stream: LogStream::Stdout }, room)
    };
    let mut by_lines = Round::default();
    (0..BATCH_LINES_MAX).for_each(|_| by_lines.take(line(1)));
    assert!(by_lines.is_full());
    let mut by_bytes = Round::default();
    (0..16).for_each(|_| by_bytes.take(line(LINE_BYTES_MAX)));
    assert!(by_bytes.is_full());
    let mut escaped = Round::default();
    let nuls = |n| LogText { text: "\0".repeat(n), stream: LogStream::Stdout };
    let few = Arc::new(Semaphore::new(3));
    let some = || Arc::clone(&few).try_acquire_owned().unwrap();
    (0..2).for_each(|_| escaped.take(LogItem::Line(nuls(LINE_BYTES_MAX), some())));
    assert!(!escaped.is_full());
    escaped.take(LogItem::Line(nuls(LINE_BYTES_MAX), some()));
    assert!(escaped.is_full(), "as JSON it is six times as long");
    let mut ended = Round::default();
    assert!(!ended.is_full());
    ended.take(LogItem::Last);
    assert!(ended.is_full());
}

#[tokio::test]
async fn only_the_latest_progress_of_a_moment_is_sent() {
    let (asked, mut told) = mpsc::unbounded_channel();
    let (job_log, sender) = talk(move |request| {
        drop(asked.send(request.body["progress"].clone()));
        Answer::ok(json!({"lease_ms": 60_000, "cancel_requested": false}))
    })
    .await;
    (0..=20).for_each(|percent| job_log.progress(percent, "on the way"));
    job_log.last();
    in_time(sender.run()).await;
    assert_eq!((told.try_recv().ok(), told.try_recv().ok()), (Some(json!(20)), None));
}

/// Waits a little before it answers, as a coordinator with slow syncs does.
fn slowly(answer: Answer) -> Answer {
    std::thread::sleep(Duration::from_millis(20));
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_coordinator_gets_all_lines_also_after_the_end() {
    let log = Arc::new(Log::default());
    let (job_log, sender) = talk({
        let log = Arc::clone(&log);
        move |request| slowly(log.append(&request.body))
    })
    .await;
    // Less than all of it takes: what counts is that lines go through.
    let sender =
        LogSender { patience: Duration::from_millis(500), outage: Duration::from_millis(500), ..sender };
    let listening = tokio::spawn(sender.run());
    let expected: Vec<String> = (0..30_000).map(|n| n.to_string()).collect();
    in_time(async {
        for line in &expected {
            job_log.line_when_there_is_room(LogStream::Stdout, line).await;
        }
        job_log.last();
        listening.await.unwrap();
    })
    .await;
    assert!(log.lines() == expected, "{} lines are there", log.lines().len());
}

#[tokio::test]
async fn waiting_lines_are_bounded_and_dropped_ones_counted() {
    let log = Arc::new(Log::default());
    let (job_log, sender) = talk({
        let log = Arc::clone(&log);
        move |request| log.append(&request.body)
    })
    .await;
    let fit = WAITING_BYTES_MAX / LINE_BYTES_MAX - 1;
    let text = "x".repeat(LINE_BYTES_MAX - LINE_BYTES_MORE);
    (0..=fit + 1).for_each(|_| job_log.line(LogStream::Stdout, &text));
    job_log.last();
    in_time(sender.run()).await;
    let lines = log.lines();
    assert_eq!(lines.len(), fit + 2, "{fit} + 1 lines, and a mark");
    assert_eq!(lines[fit + 1], "1 line was dropped here: it came faster than it could be sent");
}

#[tokio::test]
async fn a_line_that_finds_room_again_comes_after_the_mark() {
    let log = Arc::new(Log::default());
    let (job_log, sender) = talk({
        let log = Arc::clone(&log);
        move |request| log.append(&request.body)
    })
    .await;
    let all =
        Arc::clone(&job_log.shared.room).try_acquire_many_owned(u32::try_from(WAITING_BYTES_MAX).unwrap());
    job_log.line(LogStream::Stdout, "one\ntwo");
    drop(all);
    job_log.line(LogStream::Stdout, "three");
    job_log.last();
    in_time(sender.run()).await;
    assert_eq!(log.lines(), ["2 lines were dropped here: they came faster than they could be sent", "three"]);
}

#[tokio::test]
async fn the_end_waits_for_a_coordinator_that_says_nothing() {
    let log = Arc::new(Log::default());
    let (asked, mut silent) = mpsc::unbounded_channel();
    let (job_log, sender) = talk({
        let log = Arc::clone(&log);
        move |request| match asked.send(()) {
            Ok(()) => Answer::Silence,
            Err(_) => log.append(&request.body),
        }
    })
    .await;
    let sender =
        LogSender { patience: Duration::from_millis(100), outage: Duration::from_millis(100), ..sender };
    let listening = tokio::spawn(sender.run());
    job_log.line(LogStream::Stdout, "one\ntwo");
    job_log.last();
    // So often that each of the lines had its time.
    for _ in 0..6 {
        in_time(silent.recv()).await.unwrap();
    }
    assert!(!listening.is_finished(), "the outcome would not be heard either");
    drop(silent);
    in_time(listening).await.unwrap();
    assert_eq!(log.lines(), [missing(2)]);
}

/// A coordinator that stands still when the first batch comes, and stores it when the next one does.
fn late(log: &Arc<Log>, is_first: fn(&Value) -> bool) -> impl Fn(&Asked) -> Answer + Send + Sync + 'static {
    let (log, first) = (Arc::clone(log), Mutex::new(None));
    move |request| {
        let mut first = first.lock().unwrap();
        if is_first(&request.body) {
            first.get_or_insert_with(|| request.body.clone());
            return Answer::Silence;
        }
        if request.body["lines"] == json!([]) && request.body["skipped"].is_null() {
            return log.append(&request.body);
        }
        if let Some(body) = &*first {
            log.append(body);
        }
        log.append(&request.body)
    }
}

#[tokio::test]
async fn lines_that_arrive_after_they_were_given_up_hide_no_others() {
    for at_the_end in [false, true] {
        let log = Arc::new(Log::default());
        let (job_log, sender) = talk(late(&log, |body| body["lines"][0]["text"] == "a1")).await;
        let sender =
            LogSender { patience: Duration::from_millis(200), outage: Duration::from_millis(200), ..sender };
        let room = Arc::clone(&job_log.shared.room);
        let listening = tokio::spawn(sender.run());
        job_log.line(LogStream::Stdout, "a1\na2\na3");
        let mut expected = vec!["a1", "a2", "a3"];
        if !at_the_end {
            // There is room again when they are given up.
            in_time(room.acquire_many(u32::try_from(WAITING_BYTES_MAX).unwrap())).await.unwrap().forget();
            room.add_permits(WAITING_BYTES_MAX);
            job_log.line(LogStream::Stdout, "b1\nb2\nb3\nb4");
            expected.extend(["b1", "b2", "b3", "b4"]);
        }
        job_log.last();
        in_time(listening).await.unwrap();
        assert_eq!(log.lines(), expected);
    }
}

#[tokio::test]
async fn a_mark_that_was_given_up_is_sent_again() {
    let log = Arc::new(Log::default());
    let (asked, mut silent) = mpsc::unbounded_channel();
    let (job_log, sender) = talk({
        let log = Arc::clone(&log);
        move |request| match asked.send(()) {
            Ok(()) => Answer::Silence,
            Err(_) => log.append(&request.body),
        }
    })
    .await;
    let sender =
        LogSender { patience: Duration::from_millis(100), outage: Duration::from_millis(100), ..sender };
    let all =
        Arc::clone(&job_log.shared.room).try_acquire_many_owned(u32::try_from(WAITING_BYTES_MAX).unwrap());
    (0..10).for_each(|_| job_log.line(LogStream::Stdout, "no room"));
    drop(all);
    job_log.line(LogStream::Stdout, "one");
    job_log.last();
    let listening = tokio::spawn(sender.run());
    for _ in 0..6 {
        in_time(silent.recv()).await.unwrap();
    }
    drop(silent);
    in_time(listening).await.unwrap();
    let more = "up to 9 more lines were dropped here: they came faster than they could be sent";
    assert_eq!(log.lines(), [missing(2).as_str(), more], "11 lines, of which 10 were dropped");
}

#[tokio::test]
async fn an_older_coordinator_gets_the_lines_after_a_gap_and_a_mark() {
    let log = Arc::new(Log::default());
    let (asked, mut refused) = mpsc::unbounded_channel();
    let (job_log, sender) = talk({
        let log = Arc::clone(&log);
        move |request| match asked.send(()) {
            Ok(()) => Answer::problem(507, "storage_full"),
            Err(_) if !request.body["skipped"].is_null() => Answer::problem(400, "invalid"),
            Err(_) => log.append(&request.body),
        }
    })
    .await;
    let listening = tokio::spawn(sender.run());
    job_log.line(LogStream::Stdout, "one\ntwo");
    in_time(refused.recv()).await.unwrap();
    drop(refused);
    job_log.line(LogStream::Stdout, "three");
    job_log.last();
    in_time(listening).await.unwrap();
    assert_eq!(log.lines(), [format!("up to {}", missing(2)).as_str(), "three"]);
}

#[tokio::test]
async fn lines_wait_for_a_leader_for_longer_than_for_a_refusal() {
    for (code, all) in [("no_leader", true), ("internal", false)] {
        let (log, began) = (Arc::new(Log::default()), std::time::Instant::now());
        let (job_log, sender) = talk({
            let log = Arc::clone(&log);
            move |request| match began.elapsed() < Duration::from_millis(600) {
                true => Answer::problem(503, code).header("retry-after", "0.05"),
                false => log.append(&request.body),
            }
        })
        .await;
        let (patience, outage) = (Duration::from_millis(200), Duration::from_secs(45));
        let listening = tokio::spawn(LogSender { patience, outage, ..sender }.run());
        job_log.line(LogStream::Stdout, "one");
        job_log.last();
        in_time(listening).await.unwrap();
        assert_eq!(log.lines() == ["one"], all, "{code}: {:?}", log.lines());
    }
}

#[tokio::test]
async fn a_coordinator_that_is_back_may_ask_to_wait() {
    let (log, began) = (Arc::new(Log::default()), std::time::Instant::now());
    let busy = AtomicUsize::new(3);
    let (job_log, sender) = talk({
        let log = Arc::clone(&log);
        move |request| match began.elapsed() < Duration::from_millis(600) {
            true => Answer::problem(503, "no_leader").header("retry-after", "0"),
            false if busy.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() => {
                Answer::problem(503, "overloaded").header("retry-after", "0")
            }
            false => log.append(&request.body),
        }
    })
    .await;
    let (patience, outage) = (Duration::from_millis(400), Duration::from_secs(45));
    let listening = tokio::spawn(LogSender { patience, outage, ..sender }.run());
    job_log.line(LogStream::Stdout, "one");
    job_log.last();
    in_time(listening).await.unwrap();
    assert_eq!(log.lines(), ["one"]);
}

#[tokio::test]
async fn missing_lines_are_reported_to_a_busy_coordinator() {
    let log = Arc::new(Log::default());
    let (asked, mut refused) = mpsc::unbounded_channel();
    let busy = AtomicUsize::new(3);
    let (job_log, sender) = talk({
        let log = Arc::clone(&log);
        move |request| match asked.send(()) {
            Ok(()) => Answer::problem(507, "storage_full"),
            Err(_) if busy.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() => {
                Answer::problem(503, "overloaded").header("retry-after", "0")
            }
            Err(_) => log.append(&request.body),
        }
    })
    .await;
    let listening = tokio::spawn(sender.run());
    job_log.line(LogStream::Stdout, "one");
    in_time(refused.recv()).await.unwrap();
    drop(refused);
    job_log.last();
    in_time(listening).await.unwrap();
    assert_eq!(log.lines(), [missing(1)]);
}
