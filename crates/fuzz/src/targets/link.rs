//! The node link: what another node sends, to the leader's end and to the follower's.

use std::time::Duration;

use orchestrix_core::wire::{LeaseQueues, Submit};
use orchestrix_core::{Command, Json, Name, OwnerToken, TaskId};
use orchestrix_node::link::{Answerer, Asked, Asker, Heard, Hello, Question};
use orchestrix_node::{Ask, OwnerAsk, Report};

/// The first byte says which end the bytes come to, and in how long pieces; what is understood does not depend on that.
pub(super) fn bytes(input: &[u8]) {
    let Some((&first, bytes)) = input.split_first() else { return };
    let length = usize::from(first >> 1) + 1;
    if first & 1 == 0 {
        let (whole, cut) = (to_leader([bytes]), to_leader(bytes.chunks(length)));
        assert_eq!(whole, cut, "asks are the same wherever the bytes are cut");
    } else {
        let (whole, cut) = (to_follower([bytes]), to_follower(bytes.chunks(length)));
        assert_eq!(whole, cut, "answers are the same wherever the bytes are cut");
    }
}

/// What the leader's end understands, and sends.
fn to_leader<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (usize, usize, bool, Vec<u8>) {
    let mut answerer = Answerer::<()>::new(Hello::new("a", None), Duration::ZERO);
    let (mut asked, mut is_broken) = (Vec::new(), false);
    for piece in pieces {
        is_broken = is_broken || answerer.receive(piece, Duration::ZERO, &mut asked).is_err();
    }
    let asks = asked.iter().filter(|asked| matches!(asked, Asked::Ask(..))).count();
    let mut sent = Vec::new();
    answerer.send(&mut sent, usize::MAX);
    (asked.len(), asks, is_broken, sent)
}

/// What the follower's end understands of a leader that it has met and asked a few things.
fn to_follower<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (usize, usize, bool, Vec<u8>) {
    let mut asker = Asker::new(Hello::new("b", None), Duration::ZERO);
    for ask in asks() {
        asker.ask(&Question::new(ask), Duration::ZERO).expect("there is room for a few");
    }
    let (mut heard, mut sent, mut is_broken) = (Vec::new(), Vec::new(), false);
    let mut hello = Vec::new();
    Answerer::<()>::new(Hello::new("a", None), Duration::ZERO).send(&mut hello, usize::MAX);
    asker.receive(&hello, Duration::ZERO, &mut heard).expect("the two speak the same version");
    asker.send(&mut sent, usize::MAX);
    for piece in pieces {
        is_broken = is_broken || asker.receive(piece, Duration::ZERO, &mut heard).is_err();
    }
    asker.send(&mut sent, usize::MAX);
    let answers = heard.iter().filter(|heard| matches!(heard, Heard::Answer(..))).count();
    (heard.len(), answers, is_broken, sent)
}

/// What is asked of the leader that the bytes come from.
fn asks() -> [Ask; 5] {
    let queue = Name::new("q").expect("a name");
    let lease = LeaseQueues {
        queues: vec![queue.clone()],
        worker: queue.clone(),
        max: 3,
        lease_ms: 1_000,
        wait_ms: 1_000,
        request_id: None,
        capacity: None,
    };
    let submit = Command::submit(Submit::new(queue, Json::null()));
    let report = Report { node: OwnerToken(1), own: Vec::new(), items: Vec::new(), after: None };
    let report = Ask::Owner(Box::new(OwnerAsk::Report(report)));
    [Ask::Command(submit), Ask::Lease(lease), Ask::Task(TaskId(1)), Ask::Queues, report]
}
