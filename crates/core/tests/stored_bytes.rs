//! The bytes of records and snapshots stay what they are: nodes of two versions share one journal while a cluster is
//! upgraded. `tests/stored/*.txt` has them as they were first written.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use orchestrix_core::wire::Backoff;
use orchestrix_core::{
    BusResumed, CancelReason, CancelRequested, Event, ExpiryReason, Extension, FIRST_FORMAT, FormatRaised,
    Grant, Json, Key, KeyClaim, LeaseExpired, LeaseExtended, LeaseGranted, LeaseId, LeaseOffered,
    LeaseReleased, LeasesStarted, LeaveReason, Name, NewCapacity, Next, NodeDraining, NodeJoined, NodeLeft,
    NodeLeftReason, OwnerToken, OwnersAssigned, OwnersReleased, PositionsSkipped, Purge, RecordError,
    Records, ShardCountSet, ShardWeightsSet, ShardWorkerJoined, ShardWorkerLeft, ShardsLetGo, ShardsMoved,
    SnapshotLoader, Start, State, TaskCancelled, TaskCompleted, TaskCreated, TaskExpired, TaskFailed, TaskId,
    TaskPurged, TaskRetried, TermStarted, Tick, Timestamp, encode_record,
};

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn created(queue: &str, key: Option<&str>) -> TaskCreated {
    TaskCreated {
        queue: name(queue),
        payload: Json::parse(r#"{"to":"a@example.org"}"#).unwrap(),
        priority: -3,
        not_before: Timestamp(1_000),
        max_attempts: 3,
        key: key.map(|key| KeyClaim { key: Key::new(key).unwrap(), request: [7; 16] }),
        timeout_ms: key.map(|_| 60_000),
        ttl_at: None,
        backoff: key.map(|_| Backoff { base_ms: 10, factor: 1.5, max_ms: 99 }),
    }
}

fn granted(task: u64) -> LeaseGranted {
    LeaseGranted {
        task: TaskId(task),
        worker: name("worker"),
        attempt: 1,
        length_ms: 5_000,
        expires_at: Timestamp(99_000),
        timeout_at: Some(Timestamp(98_000)),
        request_id: Some(name("call-1")),
    }
}

fn joined(service: &str, worker: &str) -> ShardWorkerJoined {
    ShardWorkerJoined {
        service: name(service),
        worker: name(worker),
        group: Some(name("group")),
        count: Some(4),
        capacity: Some(3),
        said: None,
        by: Some(name("token")),
        session: Some(name("session")),
    }
}

/// One life with every kind of event in it. The comment is the position.
fn events() -> Vec<Event> {
    let waiting = Next::Waiting { not_before: Timestamp(1_000) };
    let (task, lease, actor) = (TaskId, LeaseId, || Some(name("anna")));
    let shards = |numbers: &[u32]| numbers.iter().copied().collect::<orchestrix_core::shards::Runs>();
    let capacity = Some(NewCapacity { worker: name("b"), capacity: None });
    let grant = |worker, numbers| Grant { worker: name(worker), shards: shards(numbers) };
    let moved = |withdrawn, granted, capacity| ShardsMoved {
        service: name("search"),
        withdrawn: shards(withdrawn),
        granted,
        capacity,
    };
    let term =
        |epoch, shard_lease_ms| TermStarted { epoch, node: "n1".to_owned(), actor: actor(), shard_lease_ms };
    vec![
        /* 1 */ term(1, Some(12_000)).into(),
        /* 2 */ FormatRaised { format: 2 }.into(),
        /* 3 */ created("mail", Some("order-1")).into(),
        /* 4 */ granted(3).into(),
        /* 5 */
        LeaseExtended {
            extended: vec![Extension { lease: lease(4), expires_at: Timestamp(99_500) }],
            progress: Some(40),
            note: Some("half".to_owned()),
        }
        .into(),
        /* 6 */
        TaskCompleted { task: task(3), lease: lease(4), result: Some(Json::null()), worker: None }.into(),
        /* 7 */ created("mail", Some("order-2")).into(),
        /* 8 */ granted(7).into(),
        /* 9 */
        LeaseReleased {
            task: task(7),
            lease: lease(8),
            charged: true,
            next: waiting,
            undelivered: None,
            worker: None,
        }
        .into(),
        /* 10 */ granted(7).into(),
        /* 11 */
        LeaseExpired { task: task(7), lease: lease(10), reason: ExpiryReason::Silent, next: waiting }.into(),
        /* 12 */ granted(7).into(),
        /* 13 */
        TaskFailed {
            task: task(7),
            lease: lease(12),
            error: "broken".to_owned(),
            next: Next::Failed,
            worker: None,
        }
        .into(),
        /* 14 */ TaskRetried { task: task(7), actor: actor() }.into(),
        /* 15 */ granted(7).into(),
        /* 16 */
        CancelRequested { task: task(7), cancel_at: Timestamp(90_000), actor: actor() }.into(),
        /* 17 */ created("sms", None).into(),
        /* 18 */
        TaskCancelled { task: task(17), reason: CancelReason::Requested, actor: actor() }.into(),
        /* 19 */ created("sms", None).into(),
        /* 20 */ TaskExpired { task: task(19) }.into(),
        /* 21 */
        TaskPurged {
            tasks: vec![
                Purge { task: task(3), key_until: Some(Timestamp(1_000_000)) },
                Purge { task: task(19), key_until: None },
            ],
            keys_kept: Some(5),
        }
        .into(),
        /* 22 */ Tick {}.into(),
        /* 23 to 25 */ PositionsSkipped { count: 3 }.into(),
        /* 26 */ created("sms", None).into(),
        /* 27 */ joined("search", "a").into(),
        /* 28 */ joined("search", "b").into(),
        /* 29 */ moved(&[], vec![grant("a", &[0, 1]), grant("b", &[3])], None).into(),
        /* 30 */ moved(&[1], vec![], capacity).into(),
        /* 31 */
        ShardsLetGo {
            service: name("search"),
            worker: name("b"),
            shards: shards(&[3]),
            overruled: Some(true),
        }
        .into(),
        /* 32 */ ShardCountSet { service: name("search"), count: 6, worker: None }.into(),
        /* 33 */
        ShardWeightsSet { service: name("search"), weights: BTreeMap::from([(2, 9)]) }.into(),
        /* 34 */ joined("index", "c").into(),
        /* 35 */
        ShardWorkerLeft { service: name("index"), worker: name("c"), reason: LeaveReason::Silent }.into(),
        /* 36 */ term(2, None).into(),
    ]
}

/// The events of the second format, and those of the first that have got fields in it. The comment is the position.
fn events_of_bus() -> Vec<Event> {
    let (task, lease, node) = (TaskId, LeaseId, OwnerToken);
    let offered =
        |id| LeaseOffered { task: task(id), attempt: 1, length_ms: 60_000, expires_at: Timestamp(99_000) };
    let joined = |node: &str| NodeJoined {
        node: node.to_owned(),
        incarnation: "life".to_owned(),
        address: "10.0.0.7:7070".to_owned(),
    };
    let started = |id| Start { lease: lease(id), worker: name("worker"), expires_at: Timestamp(98_000) };
    let waiting = Next::Waiting { not_before: Timestamp(1_000) };
    let by = Some(name("worker"));
    vec![
        /* 1 */ FormatRaised { format: 2 }.into(),
        /* 2 to 4 */ joined("n1").into(),
        joined("n2").into(),
        joined("n3").into(),
        /* 5 to 7 */ created("mail", Some("order-1")).into(),
        created("mail", None).into(),
        created("mail", None).into(),
        /* 8 */ offered(5).into(),
        /* 9 */
        TaskCompleted { task: task(5), lease: lease(8), result: None, worker: by.clone() }.into(),
        /* 10 */ offered(6).into(),
        /* 11 */
        TaskFailed {
            task: task(6),
            lease: lease(10),
            error: "broken".to_owned(),
            next: waiting,
            worker: by.clone(),
        }
        .into(),
        /* 12 */ offered(6).into(),
        /* 13 */
        LeaseReleased {
            task: task(6),
            lease: lease(12),
            charged: false,
            next: waiting,
            undelivered: None,
            worker: by,
        }
        .into(),
        /* 14 to 15 */ offered(6).into(),
        offered(7).into(),
        /* 16 */ LeasesStarted { started: vec![started(14)] }.into(),
        /* 17 */ OwnersAssigned { node: node(2), leases: vec![lease(14), lease(15)] }.into(),
        /* 18 */ OwnersReleased { node: node(2), leases: vec![lease(15)] }.into(),
        /* 19 */ NodeLeft { node: node(2), reason: NodeLeftReason::Silent }.into(),
        /* 20 */ NodeDraining { node: node(3) }.into(),
        /* 21 */ BusResumed { silent_since: Timestamp(1_500) }.into(),
    ]
}

fn folded(events: Vec<Event>) -> State {
    let mut state = State::new();
    for event in events {
        let at = Timestamp(2_000 + state.position().0);
        state.apply(at, event);
    }
    state
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// The chunks of a snapshot that is taken in steps of so many tasks and bytes.
fn chunks(state: &mut State, tasks: usize, bytes: usize) -> Vec<Vec<u8>> {
    let mut chunks = vec![state.begin_capture()];
    loop {
        let mut chunk = Vec::new();
        let more = state.step_capture(tasks, bytes, &mut chunk);
        chunks.push(chunk);
        if !more {
            return chunks;
        }
    }
}

fn stored(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/stored").join(file)
}

/// `WRITE_FIXTURE=1` writes what is missing: only for a new kind of event or a new format, never over what is there.
fn same_as_stored(file: &str, now: &str) -> Result<(), String> {
    let path = stored(file);
    if std::env::var_os("WRITE_FIXTURE").is_some() && !path.exists() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, now).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap();
    let differs = stored.lines().zip(now.lines()).find(|(stored, now)| stored != now);
    match differs {
        Some((stored, now)) => Err(format!("{file} has\n{stored}\nand now it is\n{now}")),
        None if stored.lines().count() == now.lines().count() => Ok(()),
        None => Err(format!("{file} has another number of lines")),
    }
}

#[test]
fn every_kind_of_record_keeps_its_bytes() {
    let (mut lines, mut kinds) = (String::new(), std::collections::BTreeSet::new());
    for event in events() {
        let mut record = Vec::new();
        encode_record(FIRST_FORMAT, Timestamp(2_000), &event, &mut record);
        assert_eq!(Records::new(&record).next().unwrap().unwrap(), (Timestamp(2_000), event.clone()));
        kinds.insert(event.kind());
        writeln!(lines, "{} {} {}", event.kind(), event.name(), hex(&record)).unwrap();
    }
    assert_eq!(kinds, (1..=22).collect(), "there is one of every kind");
    same_as_stored("records.txt", &lines).unwrap();
}

#[test]
fn a_snapshot_keeps_its_bytes_and_its_chunks() {
    let mut lines = String::new();
    for (tasks, bytes) in [(1, 1), (1, 1_000_000), (2, 120), (200, 1_000_000)] {
        let mut state = folded(first_format());
        writeln!(lines, "fingerprint {}", hex(&state.fingerprint())).unwrap();
        for chunk in chunks(&mut state, tasks, bytes) {
            writeln!(lines, "{tasks} {bytes} {}", hex(&chunk)).unwrap();
        }
    }
    // One without services, and one without anything.
    for few in [24, 0] {
        let mut state = folded(first_format().into_iter().take(few).collect());
        for chunk in chunks(&mut state, 2, 1_000) {
            writeln!(lines, "{few} {}", hex(&chunk)).unwrap();
        }
    }
    same_as_stored("snapshots.txt", &lines).unwrap();
}

#[test]
fn a_stored_snapshot_is_loaded() {
    let stored = std::fs::read_to_string(stored("snapshots.txt")).unwrap();
    let mut loader = SnapshotLoader::new();
    for line in stored.lines().filter_map(|line| line.strip_prefix("2 120 ")) {
        let bytes: Vec<u8> = (0..line.len()).step_by(2).map(|n| byte(&line[n..n + 2])).collect();
        loader.load(&bytes).unwrap();
    }
    let loaded = loader.finish().unwrap();
    assert_eq!(hex(&loaded.fingerprint()), hex(&folded(first_format()).fingerprint()));
    assert_eq!(loaded.format(), 1);
}

#[test]
fn every_record_of_the_second_format_keeps_its_bytes() {
    let (mut lines, mut kinds) = (String::new(), std::collections::BTreeSet::new());
    let mut state = State::new();
    for event in events_of_bus() {
        let mut record = Vec::new();
        encode_record(state.format_of(&event), Timestamp(2_000), &event, &mut record);
        assert_eq!(Records::new(&record).next().unwrap().unwrap(), (Timestamp(2_000), event.clone()));
        let unknown = Records::up_to(1, &record).next().unwrap().unwrap_err();
        assert!(matches!(unknown, RecordError::UnknownFormat { found: 2, newest: 1 }), "{unknown}");
        kinds.insert(event.kind());
        writeln!(lines, "{} {} {}", event.kind(), event.name(), hex(&record)).unwrap();
        state.apply(Timestamp(2_000), event);
    }
    assert!((23..=30).all(|kind| kinds.contains(&kind)), "there is one of every kind");
    same_as_stored("records_2.txt", &lines).unwrap();
}

#[test]
fn a_snapshot_with_owners_keeps_its_bytes_and_is_loaded() {
    let mut lines = String::new();
    for (items, bytes) in [(1, 1), (2, 60), (200, 1_000_000)] {
        let mut state = folded(events_of_bus());
        writeln!(lines, "fingerprint {}", hex(&state.fingerprint())).unwrap();
        let chunks = chunks(&mut state, items, bytes);
        let mut loader = SnapshotLoader::new();
        for chunk in &chunks {
            writeln!(lines, "{items} {bytes} {}", hex(chunk)).unwrap();
            loader.load(chunk).unwrap();
        }
        assert_eq!(loader.finish().unwrap().fingerprint(), state.fingerprint());
    }
    same_as_stored("snapshots_2.txt", &lines).unwrap();
}

#[test]
#[should_panic(expected = "NodeDraining is not written in format 1")]
fn a_new_kind_is_not_written_in_an_old_format() {
    encode_record(1, Timestamp(1), &NodeDraining { node: OwnerToken(1) }.into(), &mut Vec::new());
}

/// What was written before there was another format.
fn first_format() -> Vec<Event> {
    let other = |event: Event| if event.kind() == FormatRaised::KIND { Tick {}.into() } else { event };
    events().into_iter().map(other).collect()
}

fn byte(text: &str) -> u8 {
    u8::from_str_radix(text, 16).unwrap()
}
