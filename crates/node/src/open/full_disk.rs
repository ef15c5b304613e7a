//! Tests of a full disk: new work is refused, and running work ends, with groups of any size.

use orchestrix_core::wire::{CompleteItem, LeaseQueues, Leased, Submit};
use orchestrix_core::{Json, Name};
use orchestrix_engine::disk::sim::{Faults, SimDisk};
use orchestrix_engine::file::Prepare;

use super::*;
use crate::Error;

/// Longer than any of this takes.
const LIMIT: Duration = Duration::from_secs(20);
/// Bytes of the results of one call: shorter than any segment, and about as long as the first and the second one, less
/// what a frame takes, and longer than all that is prepared in one piece.
const GROUPS: [usize; 8] = [
    100 << 10,
    (1 << 20) - 2_000,
    1 << 20,
    (2 << 20) - 2_000,
    (2 << 20) - 200,
    2 << 20,
    (2 << 20) + 200,
    4 << 20,
];
/// What one result has at most.
const RESULT: usize = 128 << 10;

fn start(disk: &SimDisk, prepare: Prepare) -> Node {
    let files = file::Options { prepare, ..file::Options::default() };
    let stored = open_journal(Arc::new(disk.clone()), files).unwrap();
    let options = Options::default();
    let surroundings = Surroundings::new(Arc::new(SystemClock), stored.recovered.position, &options);
    start_node(stored, options, WriteGuard::default(), surroundings).unwrap()
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn json(bytes: usize) -> Json {
    Json::parse(&format!("\"{}\"", "x".repeat(bytes.saturating_sub(2)))).unwrap()
}

fn submit(bytes: usize) -> Submit {
    Submit::new(name("q"), json(bytes))
}

async fn in_time<T>(what: &str, waiting: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, waiting).await.unwrap_or_else(|_| panic!("{what} does not come"))
}

/// So many tasks, under leases.
async fn leased(node: &Node, count: usize) -> Vec<Leased> {
    node.submit_batch((0..count).map(|_| submit(4)).collect()).await.unwrap();
    let request = LeaseQueues {
        queues: vec![name("q")],
        worker: name("w"),
        max: count,
        lease_ms: 3_600_000,
        wait_ms: 0,
        request_id: None,
        capacity: None,
    };
    node.lease(request).await.unwrap().leases
}

/// Their completions, with results of so many bytes together.
fn completions(leased: &[Leased], bytes: usize) -> Vec<CompleteItem> {
    let mut left = bytes;
    let item = |leased: &Leased| {
        let result = json(left.min(RESULT));
        left -= left.min(RESULT);
        CompleteItem { task_id: leased.task_id, lease_id: leased.lease_id, result: Some(result) }
    };
    let items = leased.iter().map(item).collect();
    assert_eq!(left, 0);
    items
}

/// Nothing more can be written but into what is prepared.
fn fill_up(disk: &SimDisk) {
    disk.set_faults(Faults { capacity: Some(disk.used()), ..Faults::default() });
}

/// Waits until new work is accepted.
async fn accepts_again(node: &Node) {
    let waiting = async {
        while node.submit(submit(4)).await == Err(Error::StorageFull) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    in_time("room for new work", waiting).await;
}

async fn completes_on_a_full_disk(bytes: usize, prepare: Prepare) {
    let disk = SimDisk::new(1);
    let node = start(&disk, prepare);
    let held = leased(&node, GROUPS[7] / RESULT).await;
    in_time("the reserve", async {
        while disk.list().unwrap().iter().filter(|name| name.ends_with(".spare")).count() < 5 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    fill_up(&disk);
    let done = in_time("the end of tasks", node.complete_batch(completions(&held, bytes))).await;
    assert!(done.unwrap().iter().all(Result::is_ok), "{bytes} bytes");
    let refused = in_time("a refusal", node.submit_batch(vec![submit(RESULT); 8])).await;
    assert_eq!(refused, Err(Error::StorageFull), "after {bytes} bytes");

    disk.set_faults(Faults::default());
    accepts_again(&node).await;
    in_time("the stop", node.stop()).await.unwrap();
    let node = start(&disk.crash(&mut || false), Prepare::Inline);
    for leased in held {
        assert_eq!(
            node.task(leased.task_id).await.unwrap().summary.state,
            orchestrix_core::TaskState::Completed
        );
    }
}

#[tokio::test]
async fn a_group_of_any_size_ends_tasks_on_a_full_disk() {
    for bytes in GROUPS {
        completes_on_a_full_disk(bytes, Prepare::Thread).await;
        completes_on_a_full_disk(bytes, Prepare::Inline).await;
    }
}
