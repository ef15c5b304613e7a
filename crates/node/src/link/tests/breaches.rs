//! Followers that break the rules, and what they may cost.

use std::time::Duration;

use crate::link::frame::{self, Broken, Kind};
use crate::link::tests::rules::Pair;
use crate::link::{AskId, Asked, Hello, Reply};

fn frames(kinds: &[(Kind, bool, u64)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, is_last, ask) in kinds {
        frame::write(&mut bytes, *kind, *is_last, *ask, &[]);
    }
    bytes
}

#[test]
fn pings_that_are_not_answered_yet_share_a_pong() {
    let mut pair = Pair::new();
    let pings = frames(&[(Kind::Ping, true, 0); 1_000]);
    let pong = frames(&[(Kind::Pong, true, 0)]);
    let (mut leaders, mut followers) = (Vec::new(), Vec::new());
    pair.answerer.receive(&pings, pair.now, &mut Vec::new()).unwrap();
    assert!(pair.answerer.wants_to_send());
    pair.answerer.send(&mut leaders, usize::MAX);
    pair.asker.receive(&pings, pair.now, &mut Vec::new()).unwrap();
    assert!(pair.asker.wants_to_send());
    pair.asker.send(&mut followers, usize::MAX);
    assert!(leaders == pong && followers == pong, "{} and {} bytes", leaders.len(), followers.len());
    assert!(!pair.answerer.wants_to_send() && !pair.asker.wants_to_send());
    pair.answerer.receive(&pings, pair.now, &mut Vec::new()).unwrap();
    pair.answerer.send(&mut leaders, usize::MAX);
    assert_eq!(leaders, pong.repeat(2), "a later one gets its own");
}

#[test]
fn answers_that_wait_to_be_sent_count_as_asks() {
    let leader = Hello { asks_max: 3, ..Hello::new("a", None) };
    let mut pair = Pair::of(Hello::new("b", None), leader);
    pair.carry_asks();
    pair.carry_answers();
    let mut receive = |kinds: &[(Kind, bool, u64)]| {
        let mut asked = Vec::new();
        pair.answerer.receive(&frames(kinds), Duration::from_secs(100), &mut asked).map(|()| asked)
    };
    // Each is cancelled half way, and answered at once.
    let cancelled = |ask| [(Kind::Ask, false, ask), (Kind::Cancel, true, ask)];
    for ask in 1..=3 {
        let asked: Vec<Asked> = receive(&cancelled(ask)).unwrap();
        assert!(asked.is_empty());
    }
    let more = receive(&cancelled(4)).unwrap_err();
    assert_eq!(more, Broken::TooLarge { what: "asks without an answer", max: 3 });
}

#[test]
fn answers_that_were_sent_do_not_count_as_asks() {
    let leader = Hello { asks_max: 1, ..Hello::new("a", None) };
    let mut pair = Pair::of(Hello::new("b", None), leader);
    pair.carry_asks();
    pair.carry_answers();
    for ask in 1..=3 {
        let mut asked = Vec::new();
        let bytes = frames(&[(Kind::Ask, false, ask)]);
        pair.answerer.receive(&bytes, pair.now, &mut asked).unwrap();
        pair.answerer.answer(AskId(ask), Reply::NotTaken, None);
        pair.answerer.send(&mut Vec::new(), usize::MAX);
    }
}
