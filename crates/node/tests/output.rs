//! The output of tasks: every line once, under its number, whoever leaves and whatever comes in between.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use orchestrix_core::wire::{
    Complete, LeaseQueues, Leased, LogAppend, LogAppended, LogPage, LogStream, LogText, Submit,
};
use orchestrix_core::{Json, Name, Refusal, Retention};
use orchestrix_engine::Logs;
use orchestrix_engine::disk::RealDisk;
use orchestrix_engine::file::{FileLogs, TASK_CHUNKS_MAX};
use orchestrix_node::{Error, Happening, Node, Options, Storage, open};
use tempfile::TempDir;

fn start(options: Options) -> Node {
    open(&Storage::Memory, options).unwrap().0
}

/// A task that somebody works on.
async fn leased(node: &Node) -> Leased {
    let name = |text| Name::new(text).unwrap();
    node.submit(Submit::new(name("mail"), Json::null())).await.unwrap();
    let request = LeaseQueues {
        queues: vec![name("mail")],
        worker: name("w"),
        max: 1,
        lease_ms: 60_000,
        wait_ms: 0,
        request_id: None,
        capacity: None,
    };
    node.lease(request).await.unwrap().leases.remove(0)
}

async fn append(node: &Node, job: &Leased, offset: u64, texts: &[&str]) -> Result<LogAppended, Error> {
    let line = |text: &&str| LogText { text: (*text).to_owned(), stream: LogStream::Stdout };
    let lines = texts.iter().map(line).collect();
    node.append_logs(
        job.task_id,
        LogAppend { lease_id: job.lease_id, lines, offset: Some(offset), skipped: 0 },
    )
    .await
}

async fn read(node: &Node, job: &Leased, offset: u64) -> LogPage {
    node.logs(job.task_id, offset, 1_000, None).await.unwrap()
}

/// Checks that lines are numbered one by one from `first` on, and gives their texts.
fn texts(page: &LogPage, first: u64) -> Vec<&str> {
    let in_order = (first..).zip(&page.lines).all(|(n, line)| n == line.n);
    assert!(in_order, "{page:?}");
    assert_eq!(page.next_offset, first + page.lines.len() as u64);
    page.lines.iter().map(|line| line.text.as_str()).collect()
}

/// Lets a call go on until it waits for the `steps`-th time, and then leaves, as a caller who hangs up does.
/// Gives what came of it if it did not wait that often.
async fn leave_after<F: Future>(steps: usize, call: F) -> Option<F::Output> {
    let mut call = pin!(call);
    let mut waited = 0;
    std::future::poll_fn(|context| match call.as_mut().poll(context) {
        Poll::Ready(came) => Poll::Ready(Some(came)),
        Poll::Pending => {
            waited += 1;
            if waited < steps { Poll::Pending } else { Poll::Ready(None) }
        }
    })
    .await
}

#[tokio::test]
async fn a_repeat_after_leaving_stores_every_line_once() {
    for before in [&[][..], &["zero"]] {
        for steps in 1..6 {
            let node = start(Options::default());
            let job = leased(&node).await;
            let sent = before.len() as u64;
            if !before.is_empty() {
                append(&node, &job, 0, before).await.unwrap();
            }
            leave_after(steps, append(&node, &job, sent, &["one", "two"])).await;
            assert_eq!(append(&node, &job, sent, &["one", "two"]).await.unwrap().next, sent + 2);
            assert_eq!(append(&node, &job, sent + 2, &["three"]).await.unwrap().next, sent + 3);
            let expected = [before, &["one", "two", "three"]].concat();
            assert_eq!(texts(&read(&node, &job, 0).await, 0), expected, "left after {steps} steps");
            assert_eq!(texts(&read(&node, &job, sent + 2).await, sent + 2), ["three"]);
            node.stop().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_longer_repeat_stores_only_its_new_lines() {
    let node = start(Options { log_task_bytes: 20, ..Options::default() });
    let job = leased(&node).await;
    append(&node, &job, 0, &["zero", "one"]).await.unwrap();
    for (offset, lines, next) in [
        (0, &["zero", "one", "two"][..], 3),
        (2, &["two", "three"], 4),
        (1, &["one", "two", "three"], 4),
        (4, &["four"], 5),
        (0, &[], 5),
    ] {
        let added = append(&node, &job, offset, lines).await.unwrap();
        assert_eq!((added.next, added.dropped), (next, 0), "{lines:?} from {offset} on");
    }
    assert_eq!(texts(&read(&node, &job, 0).await, 0), ["zero", "one", "two", "three", "four"]);
    assert_eq!(node.stats().log_lines.get(), 5);

    // Past the cap only what is new is dropped and counted.
    let added = append(&node, &job, 3, &["three", "four", "five", "six"]).await.unwrap();
    assert_eq!((added.next, added.dropped), (7, 2));
    let added = append(&node, &job, 5, &["five", "six", "seven"]).await.unwrap();
    assert_eq!((added.next, added.dropped), (8, 1));
    assert_eq!(read(&node, &job, 0).await.dropped, 3);
    node.stop().await.unwrap();
}

#[tokio::test]
async fn a_page_skips_and_repeats_no_line_while_more_of_them_come() {
    let node = start(Options::default());
    let job = leased(&node).await;
    // Two chunks that are not read at one go: what comes in between is seen by the second look.
    let long = "x".repeat(16 << 10);
    for chunk in 0..2 {
        append(&node, &job, chunk * 40, &[long.as_str(); 40]).await.unwrap();
    }
    let mut reading = pin!(read(&node, &job, 0));
    let at_once = leave_after(1, reading.as_mut()).await;
    append(&node, &job, 80, &["eighty"]).await.unwrap();
    append(&node, &job, 81, &["eighty-one", "eighty-two", "eighty-three"]).await.unwrap();
    append(&node, &job, 84, &["eighty-four"]).await.unwrap();

    let page = match at_once {
        Some(page) => page,
        None => reading.await,
    };
    let next = page.next_offset;
    let rest = read(&node, &job, next).await;
    let seen = [texts(&page, 0), texts(&rest, next)].concat();
    assert_eq!(seen[80..], ["eighty", "eighty-one", "eighty-two", "eighty-three", "eighty-four"]);
    node.stop().await.unwrap();
}

#[tokio::test]
async fn output_in_more_parts_than_are_kept_is_dropped_and_counted() {
    const PARTS: u64 = TASK_CHUNKS_MAX as u64 - 64;
    let node = start(Options::default());
    let job = leased(&node).await;
    for offset in 0..PARTS {
        let added = append(&node, &job, offset, &["."]).await.unwrap();
        assert_eq!((added.next, added.dropped), (offset + 1, 0));
    }
    for offset in PARTS..PARTS + 100 {
        let added = append(&node, &job, offset, &["."]).await.unwrap();
        assert_eq!((added.next, added.dropped), (offset + 1, 1));
    }
    let page = read(&node, &job, PARTS - 1).await;
    let mark =
        |lines: u64| format!("{lines} lines were dropped: the output of this task has reached {PARTS} parts");
    let marks = [1, 2, 4, 8, 16, 32, 64].map(mark);
    let seen = texts(&page, PARTS - 1);
    assert_eq!(seen[0], ".");
    assert_eq!(seen[1..], marks);
    assert_eq!(page.dropped, 100);
    assert_eq!(node.stats().log_lines_dropped.get(), 100);
    node.stop().await.unwrap();
}

#[tokio::test]
async fn a_worker_goes_on_past_the_cap_over_a_restart() {
    let folder = TempDir::new().unwrap();
    let start = || {
        let options = Options { log_task_bytes: 10, ..Options::default() };
        open(&Storage::File(folder.path().join("data")), options).unwrap().0
    };
    let node = start();
    let job = leased(&node).await;
    append(&node, &job, 0, &["0123456789"]).await.unwrap();
    let ahead = append(&node, &job, 2, &["x"]).await.unwrap_err();
    assert!(matches!(ahead, Error::Refused(Refusal::Invalid { field: "offset", .. })), "{ahead}");
    for offset in 1..8 {
        assert_eq!(append(&node, &job, offset, &["more"]).await.unwrap().dropped, 1);
    }
    node.stop().await.unwrap();

    // Four of the seven lines that were dropped are in the last mark; nobody knows of the others any more.
    let node = start();
    let added = append(&node, &job, 8, &["and", "more"]).await.unwrap();
    assert_eq!((added.next, added.dropped), (10, 2));
    let again = append(&node, &job, 8, &["and", "more"]).await.unwrap();
    assert_eq!((again.next, again.dropped), (10, 0), "a repeat is known as before");
    assert_eq!(read(&node, &job, 0).await.dropped, 6);
    let far = append(&node, &job, u64::MAX, &["far", "away", "!"]).await.unwrap();
    assert_eq!(far.dropped, 3);
    node.stop().await.unwrap();

    let node = start();
    assert_eq!(read(&node, &job, 0).await.dropped, 9);
    node.stop().await.unwrap();
}

/// Changes one byte in a file of output: `from` bytes after the place where this line begins.
fn damage(data: &Path, line: &str, from: isize) {
    let path = data.join("logs-00000000000000000001.chunks");
    let mut bytes = std::fs::read(&path).unwrap();
    let begins = bytes.windows(line.len()).position(|bytes| bytes == line.as_bytes()).unwrap();
    bytes[begins.checked_add_signed(from).unwrap()] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

const MISSING: &str = "lines are missing here: a part of the output of this task is damaged";

#[tokio::test]
async fn a_damaged_part_costs_only_itself_and_is_reported() {
    // In the text of the line, and in the header of the record in which it is stored.
    for from in [0, -60] {
        for damaged in 0..3 {
            let folder = TempDir::new().unwrap();
            let data = folder.path().join("data");
            let start = || open(&Storage::File(data.clone()), Options::default()).unwrap().0;
            let node = start();
            let job = leased(&node).await;
            append(&node, &job, 0, &["one", "two"]).await.unwrap();
            append(&node, &job, 2, &["three", "four"]).await.unwrap();
            append(&node, &job, 4, &["five", "six"]).await.unwrap();
            node.stop().await.unwrap();
            damage(&data, ["one", "three", "five"][damaged], from);

            let node = start();
            let added = append(&node, &job, 6, &["seven"]).await.unwrap();
            assert_eq!((added.next, added.dropped), (7, 0));
            let far = append(&node, &job, 8, &["nine"]).await.unwrap_err();
            assert!(matches!(far, Error::Refused(Refusal::Invalid { field: "offset", .. })), "{far}");
            let parts = [&["one", "two"][..], &["three", "four"], &["five", "six"], &["seven"]];
            let told = |(part, lines)| if part == damaged { &[MISSING][..] } else { lines };
            let expected: Vec<_> = parts.into_iter().enumerate().flat_map(told).copied().collect();
            let page = read(&node, &job, 0).await;
            assert_eq!(texts(&page, 0), expected, "part {damaged}, byte {from}");
            let hole = page.lines.iter().find(|line| line.text == MISSING).unwrap();
            assert_eq!((hole.stream, hole.attempt), (LogStream::System, 1));
            assert!(page.lines.iter().any(|line| line.text != MISSING && line.at == hole.at));
            for first in 0..expected.len() {
                let page = node.logs(job.task_id, first as u64, 1, Some(1)).await.unwrap();
                assert_eq!(texts(&page, first as u64), expected[first..=first]);
            }
            node.stop().await.unwrap();

            let node = start();
            assert_eq!(texts(&read(&node, &job, 0).await, 0), expected, "part {damaged}, byte {from}");
            node.stop().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_part_that_rots_while_a_node_runs_changes_no_number() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    let node = open(&Storage::File(data.clone()), Options::default()).unwrap().0;
    let job = leased(&node).await;
    append(&node, &job, 0, &["one"]).await.unwrap();
    append(&node, &job, 1, &["two", "three", "four"]).await.unwrap();
    append(&node, &job, 4, &["five"]).await.unwrap();
    damage(&data, "two", 0);
    let numbered = async |offset| {
        let page = read(&node, &job, offset).await;
        assert_eq!(page.next_offset, 5);
        page.lines.into_iter().map(|line| (line.n, line.text)).collect::<Vec<_>>()
    };
    let line = |n, text: &str| (n, text.to_owned());
    assert_eq!(numbered(0).await, [line(0, "one"), line(1, MISSING), line(4, "five")]);
    assert_eq!(numbered(2).await, [line(2, MISSING), line(4, "five")]);
    assert_eq!(numbered(4).await, [line(4, "five")]);
    append(&node, &job, 5, &["six"]).await.unwrap();
    assert_eq!(read(&node, &job, 5).await.lines[0].text, "six");
    node.stop().await.unwrap();
}

#[tokio::test]
async fn a_stop_frees_the_folder_and_the_next_start_deletes_output() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    let retention =
        Retention { done_ms: 86_400_000, failed_ms: 86_400_000, count: 0, ..Retention::default() };
    let mut purged_before = None;
    for _ in 0..5 {
        let options = Options { retention, ..Options::default() };
        let node = open(&Storage::File(data.clone()), options).unwrap().0;
        let ended = leased(&node).await;
        append(&node, &ended, 0, &["soon gone"]).await.unwrap();
        let mut events = node.events(None);
        let done = Complete { lease_id: ended.lease_id, worker: None, result: None };
        node.complete(ended.task_id, done).await.unwrap();
        loop {
            let Happening::Event { event, .. } = events.next().await else { panic!("a gap") };
            if event.name() == "TaskPurged" {
                break;
            }
        }
        let job = leased(&node).await;
        leave_after(2, append(&node, &job, 0, &["last words"])).await;
        node.stop().await.unwrap();

        let logs = FileLogs::open(Arc::new(RealDisk::open(&data).unwrap())).unwrap();
        let left = logs.tasks().unwrap();
        assert!(
            purged_before.is_none_or(|task| !left.contains(&task)),
            "it was purged before the last start"
        );
        purged_before = Some(ended.task_id);
    }
}
