//! What everything costs in requests, which is what stores are paid for.

use std::collections::BTreeMap;

use orchestrix_core::{LeaseId, Position, TaskId};
use orchestrix_engine::suite::{append_one, read_all, take_snapshot};
use orchestrix_engine::{Claim, LogPlace, Read, Set, Shared};

use crate::common::{PATIENT, new_prefix, place, shared_store};
use crate::support::http::Front;

/// What was asked since the last call, as `GET 2, PUT 1`.
fn asked(front: &Front) -> String {
    let mut counts = BTreeMap::<String, usize>::new();
    for asked in front.asked() {
        let kind = if asked.path.contains("list-type=2") { "LIST".to_owned() } else { asked.method };
        *counts.entry(kind).or_default() += 1;
    }
    let parts: Vec<_> = counts.into_iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    parts.join(", ")
}

#[test]
fn every_call_costs_what_the_documents_say() {
    const BATCHES: usize = 200;
    let (front, prefix) = (Front::to(shared_store().s3), new_prefix());
    let place_ = place(front.port(), &prefix, PATIENT);
    assert_eq!(asked(&front), "GET 1, POST 1, PUT 4", "to connect");
    let mut journal = place_.journal().unwrap();
    assert_eq!(asked(&front), "GET 4, LIST 2, PUT 1", "to make a journal");
    let follower = place_.journal().unwrap();
    assert_eq!(asked(&front), "GET 3, LIST 1", "to open one");
    append_one(&mut *journal, 1, 300);
    assert_eq!(asked(&front), "GET 1, PUT 1", "the first batch has none before it");
    for _ in 1..BATCHES {
        append_one(&mut *journal, 1, 300);
    }
    assert_eq!(asked(&front), format!("GET {0}, HEAD {0}, PUT {0}", BATCHES - 1), "for each batch");

    assert_eq!(place_.journal().unwrap().end(), journal.end());
    assert_eq!(asked(&front), "GET 4, LIST 1", "to open one with batches");

    assert!(matches!(follower.read(Position(0), 300).unwrap(), Read::Batches(_)));
    assert_eq!(asked(&front), "GET 2", "one batch that fills the answer, and the floor");
    assert_eq!(read_all(&*follower, Position(1), 1 << 20).len(), BATCHES - 1);
    assert_eq!(asked(&front), format!("GET {}, LIST 1", BATCHES - 1 + 3), "many, and then the end");
    let end = journal.end().position;
    assert_eq!(follower.read(end, 300).unwrap(), Read::End);
    assert_eq!(asked(&front), "GET 2", "to find nothing");
    append_one(&mut *journal, 1, 300);
    asked(&front);
    follower.wait(end, PATIENT).unwrap();
    assert_eq!(asked(&front), "GET 1", "to find out that there is more");
    assert!(matches!(follower.read(end, 1000).unwrap(), Read::Batches(_)));
    assert_eq!(
        asked(&front),
        "GET 2",
        "what was found is not asked for again: what follows it, and the floor"
    );

    let register = place_.register();
    let mut seen = None;
    for epoch in 0..2 {
        let set = register.compare_and_set("leader", seen.as_ref(), &Claim { epoch, ..Claim::default() });
        let Set::Done(version) = set.unwrap() else { panic!("nobody else writes") };
        seen = Some(version);
    }
    assert_eq!(asked(&front), "PUT 2", "a renewal is one request");
    register.read("leader").unwrap();
    assert_eq!(asked(&front), "GET 1", "and so is a look");

    let logs = place_.logs();
    for offset in 0..10 {
        logs.append(LogPlace::nth(TaskId(1), LeaseId(1), offset), b"a line").unwrap();
    }
    assert_eq!(asked(&front), "PUT 10", "a chunk is one request");
    logs.append(LogPlace::first(TaskId(2), LeaseId(1)), b"a line").unwrap();
    asked(&front);
    logs.delete(&[TaskId(1), TaskId(2)]).unwrap();
    assert_eq!(asked(&front), "LIST 2, POST 1", "to delete is a list for each task");

    take_snapshot(&*journal, &[b"one", b"two"]);
    assert_eq!(asked(&front), "LIST 1, PUT 3", "a snapshot is one for each chunk, and two");
    append_one(&mut *journal, 1, 300);
    take_snapshot(&*journal, &[b"one", b"two"]);
    asked(&front);
    assert_eq!(journal.truncate().unwrap(), Position(end.0 + 1));
    assert_eq!(asked(&front), "GET 6, LIST 4, POST 1, PUT 1", "to forget up to 500 batches");
}
