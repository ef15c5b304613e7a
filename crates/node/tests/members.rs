//! Several nodes on one engine, in one process: one leads, the others follow, and each can take over.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::wire::{Complete, LeaseQueues, LogAppend, LogStream, LogText, Submit};
use orchestrix_core::{Json, LeaseId, Name, Position, Retention, TaskId};
use orchestrix_engine::memory::MemoryPlace;
use orchestrix_engine::{JournalId, LogPlace, Shared};
use orchestrix_leadership::Candidate;
use orchestrix_node::{Happening, HighWater, Member, Membership, Node, NodeRole, Options};

const TTL: Duration = Duration::from_millis(1_500);

fn place() -> MemoryPlace {
    MemoryPlace::new(JournalId([3; 16]))
}

fn membership(place: &MemoryPlace, name: &str) -> Membership {
    Membership {
        engine: Arc::new(place.clone()),
        me: Candidate {
            name: name.into(),
            incarnation: format!("{name}-1"),
            address: format!("http://{name}"),
        },
        leadership: orchestrix_leadership::Options::first_come(TTL),
        node: Options { node: name.to_owned(), ..Options::default() },
        high_water: HighWater::in_memory(),
    }
}

fn open(place: &MemoryPlace, name: &str) -> Member {
    Member::open(membership(place, name)).unwrap()
}

async fn leads(member: &Member) -> Node {
    let mut roles = member.roles();
    let led = roles.wait_for(|role| matches!(role, NodeRole::Leads(_)));
    let led =
        tokio::time::timeout(Duration::from_secs(20), led).await.expect("it should lead by now").unwrap();
    match &*led {
        NodeRole::Leads(node) => node.clone(),
        NodeRole::Follows => unreachable!("it was waited for"),
    }
}

async fn applied(member: &Member, position: u64) {
    let applied = member.applied(Position(position));
    tokio::time::timeout(Duration::from_secs(20), applied).await.expect("it should have read this by now");
}

fn submit() -> Submit {
    Submit {
        queue: Name::new("mail").unwrap(),
        payload: Json::null(),
        key: None,
        priority: 0,
        delay_ms: 0,
        max_attempts: 3,
        timeout_ms: None,
        ttl_ms: None,
        backoff: orchestrix_core::wire::Backoff::default(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_leads_and_the_others_stay_warm() {
    let place = place();
    let first = open(&place, "a");
    let node = leads(&first).await;
    let second = open(&place, "b");
    let (outcome, _) = node.submit(submit()).await.unwrap();
    applied(&second, outcome.id.0).await;
    let mut events = second.events(Some(Position(outcome.id.0 - 1)));
    let Happening::Event { position, event, .. } = events.next().await else { panic!("no gap") };
    assert_eq!((position.0, event.name()), (outcome.id.0, "TaskCreated"));
    assert!(matches!(second.role(), NodeRole::Follows));
    second.stop().await.unwrap();
    first.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_of_the_cluster_says_how_old_it_is() {
    let place = place();
    let first = open(&place, "a");
    leads(&first).await;
    let second = open(&place, "b");
    let seen = async {
        while second.cluster().nodes.len() < 2 || second.cluster().leader.is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), seen).await.expect("it should see the other by now");
    assert_eq!(first.cluster().leader_seen_ms, Some(0), "a leader knows itself");
    let ages = async {
        let (mut last, mut grew, mut fell) = (0, false, false);
        while !(grew && fell) {
            let view = second.cluster();
            let age = view.leader_seen_ms.expect("there is a leader, so its last sign has an age");
            let [of_leader, own] = &view.nodes[..] else { panic!("{view:?}") };
            assert!(of_leader.seen_ms.is_some_and(|seen| seen <= age), "{view:?}");
            assert_eq!((own.name.as_str(), own.seen_ms), ("b", Some(0)));
            // It grows until the leader renews.
            (grew, fell, last) = (grew || age > last, fell || age < last, age);
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), ages).await.expect("it should be renewed by now");
    second.stop().await.unwrap();
    first.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_leader_has_everything_acknowledged() {
    let place = place();
    let first = open(&place, "a");
    let node = leads(&first).await;
    let second = open(&place, "b");
    let (outcome, _) = node.submit(submit()).await.unwrap();
    first.stop().await.unwrap();
    let node = leads(&second).await;
    assert_eq!(node.task(outcome.id).await.unwrap().summary.id, outcome.id);
    let cluster = second.cluster();
    assert_eq!(cluster.leader.as_deref(), Some("b"));
    assert_eq!(cluster.epoch, 2);
    // And back again.
    let first = open(&place, "a");
    second.stop().await.unwrap();
    let node = leads(&first).await;
    assert_eq!(node.task(outcome.id).await.unwrap().summary.id, outcome.id);
    assert_eq!(first.stats().epoch.get(), 3);
    first.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn output_left_by_a_purging_leader_is_deleted_by_the_next() {
    let place = place();
    let retention =
        Retention { done_ms: 86_400_000, failed_ms: 86_400_000, count: 0, ..Retention::default() };
    let node = Options { retention, node: "a".to_owned(), ..Options::default() };
    let first = Member::open(Membership { node, ..membership(&place, "a") }).unwrap();
    let node = leads(&first).await;
    let (kept, _) = node.submit(submit()).await.unwrap();
    let (purged, _) = node.submit(submit()).await.unwrap();
    let mut events = node.events(None);
    node.cancel(purged.id, None).await.unwrap();
    loop {
        let Happening::Event { event, .. } = events.next().await else { panic!("a gap") };
        if event.name() == "TaskPurged" {
            break;
        }
    }
    first.stop().await.unwrap();
    // As if the first had died before it came to delete.
    let (logs, end) = (place.logs(), place.journal().unwrap().end().position.0);
    let later = TaskId(end + 100);
    for task in [kept.id, purged.id, later] {
        logs.append(LogPlace::first(task, LeaseId(1)), b"line").unwrap();
    }
    let second = open(&place, "b");
    leads(&second).await;
    let swept = async {
        while logs.tasks().unwrap().contains(&purged.id) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), swept).await.expect("it should be deleted by now");
    second.stop().await.unwrap();
    assert_eq!(logs.tasks().unwrap(), [kept.id, later]);
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_purged_with_its_task_in_any_term() {
    let place = place();
    let first = open(&place, "a");
    let (before, _) = leads(&first).await.submit(submit()).await.unwrap();
    first.stop().await.unwrap();
    let logs = place.logs();
    logs.append(LogPlace::first(before.id, LeaseId(1)), b"line").unwrap();
    let retention =
        Retention { done_ms: 86_400_000, failed_ms: 86_400_000, count: 0, ..Retention::default() };
    let node = Options { retention, node: "b".to_owned(), ..Options::default() };
    let second = Member::open(Membership { node, ..membership(&place, "b") }).unwrap();
    let node = leads(&second).await;
    // The walk over what was there has named the first when the second comes.
    for _ in 0..2 {
        let request = LeaseQueues {
            queues: vec![Name::new("mail").unwrap()],
            worker: Name::new("w").unwrap(),
            max: 1,
            lease_ms: 60_000,
            wait_ms: 0,
            request_id: None,
            capacity: None,
        };
        let leased = node.lease(request).await.unwrap().leases.remove(0);
        let line = LogText { text: "a line".to_owned(), stream: LogStream::Stdout };
        let lines = LogAppend { lease_id: leased.lease_id, lines: vec![line], offset: None, skipped: 0 };
        node.append_logs(leased.task_id, lines).await.unwrap();
        assert!(logs.tasks().unwrap().contains(&leased.task_id));
        let done = Complete { lease_id: leased.lease_id, worker: None, result: None };
        node.complete(leased.task_id, done).await.unwrap();
        let gone = async {
            while logs.tasks().unwrap().contains(&leased.task_id) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), gone).await.expect("it should be deleted by now");
        node.submit(submit()).await.unwrap();
    }
    assert!(logs.tasks().unwrap().is_empty());
    second.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_engine_is_noticed_and_no_token_repeats() {
    let folder = tempfile::tempdir().unwrap();
    let on = |place: &MemoryPlace, accept: bool| {
        let high_water = HighWater::open(folder.path().to_owned()).unwrap();
        if accept {
            high_water.accept_loss();
        }
        Member::open(Membership { high_water, ..membership(place, "a") })
    };
    let member = on(&place(), false).unwrap();
    let (seen, _) = leads(&member).await.submit(submit()).await.unwrap();
    member.stop().await.unwrap();
    // Another journal, as after a server was wiped.
    let wiped = MemoryPlace::new(JournalId([4; 16]));
    let told = on(&wiped, false).unwrap_err().to_string();
    assert!(told.contains("another journal") && told.contains("--accept-data-loss"), "{told}");
    let member = on(&wiped, true).unwrap();
    let node = leads(&member).await;
    let (next, _) = node.submit(submit()).await.unwrap();
    assert!(next.id.0 > seen.id.0 + 1_000_000, "{} after {}", next.id, seen.id);
    assert!(member.stats().epoch.get() > 1, "the epoch goes on, too");
    // A second node without a past follows, and so does this one later, without being asked again.
    let second = open(&wiped, "b");
    applied(&second, next.id.0).await;
    second.stop().await.unwrap();
    member.stop().await.unwrap();
    let member = on(&wiped, false).unwrap();
    assert_eq!(leads(&member).await.task(next.id).await.unwrap().summary.id, next.id);
    member.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_a_name_in_use_ends_and_says_what_to_do() {
    let place = place();
    let first = open(&place, "a");
    let node = leads(&first).await;
    let me = Candidate { name: "a".into(), incarnation: "a-2".into(), address: "http://elsewhere".into() };
    let second = Member::open(Membership { me, ..membership(&place, "a") }).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(20), second.stopped()).await.unwrap();
    let told = ended.unwrap_err().to_string();
    assert!(
        told.contains("another node named a is alive, at http://a:") && told.contains("--node NAME"),
        "{told}"
    );
    node.submit(submit()).await.unwrap();
    second.stop().await.unwrap();
    first.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn ticks_keep_the_leader_lease_of_an_idle_leader() {
    let place = place();
    let member = open(&place, "a");
    leads(&member).await;
    // Longer than a leader without proof would last.
    applied(&member, 5).await;
    let mut events = member.events(Some(Position(1)));
    for _ in 2..=5 {
        let Happening::Event { event, .. } = events.next().await else { panic!("no gap") };
        // The only node reads what it reads.
        assert!(["Tick", "FormatRaised"].contains(&event.name()), "{event:?}");
    }
    assert_eq!(member.stats().epoch.get(), 1, "it was one term");
    assert!(matches!(member.role(), NodeRole::Leads(_)));
    member.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_overtaken_in_the_journal_steps_down() {
    let place = place();
    let member = open(&place, "a");
    let node = leads(&member).await;
    let mut journal = place.journal().unwrap();
    let mut records = Vec::new();
    let at = orchestrix_core::Timestamp(u64::MAX >> 12);
    orchestrix_core::encode_record(
        orchestrix_core::FIRST_FORMAT,
        at,
        &orchestrix_core::Tick {}.into(),
        &mut records,
    );
    let batch = loop {
        let previous = journal.refresh().unwrap();
        let term = orchestrix_core::Term(1);
        let batch = orchestrix_engine::Batch { previous, term, count: 1, records: records.clone() };
        if let orchestrix_engine::Appended::Done(_) = journal.append(&batch).unwrap() {
            break batch;
        }
    };
    let refused = node.submit(submit()).await.unwrap_err();
    assert_eq!(refused, orchestrix_node::Error::OutcomeUnknown);
    applied(&member, batch.last().0 + 1).await;
    let node = leads(&member).await;
    node.submit(submit()).await.unwrap();
    assert_eq!(member.stats().stale_appends.get(), 1);
    assert_eq!(member.stats().epoch.get(), 2, "a new term");
    member.stop().await.unwrap();
}
