use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::wire::{LeaseQueues, Leased, Leases, Submit};
use orchestrix_core::{Command, Json, LeaseId, Name, Position, TaskId};

use crate::caller::Caller;
use crate::link::frame::{self, Kind};
use crate::link::*;
use crate::request::{Answer, Ask, Error};
use crate::tasks::Abandoned;

const ENOUGH: usize = 1 << 30;

/// Both ends, and nothing between them but what a test moves.
pub(super) struct Pair {
    pub(super) asker: Asker,
    pub(super) answerer: Answerer<Arc<()>>,
    pub(super) now: Duration,
}

impl Pair {
    pub(super) fn new() -> Self {
        let mut pair = Self::of(Hello::new("b", None), Hello::new("a", None));
        pair.carry_asks();
        pair.carry_answers();
        pair
    }

    pub(super) fn of(follower: Hello, leader: Hello) -> Self {
        let now = Duration::from_secs(100);
        Self { asker: Asker::new(follower, now), answerer: Answerer::new(leader, now), now }
    }

    pub(super) fn ask(&mut self, question: &Question) -> Result<AskId, NotAsked> {
        self.asker.ask(question, self.now)
    }

    pub(super) fn carry_asks(&mut self) -> Vec<Asked> {
        let (mut bytes, mut asked) = (Vec::new(), Vec::new());
        while self.asker.wants_to_send() {
            self.asker.send(&mut bytes, ENOUGH);
        }
        self.answerer.receive(&bytes, self.now, &mut asked).unwrap();
        asked
    }

    pub(super) fn carry_answers(&mut self) -> Vec<Heard> {
        let (mut bytes, mut heard) = (Vec::new(), Vec::new());
        while self.answerer.wants_to_send() {
            self.answerer.send(&mut bytes, ENOUGH);
        }
        self.asker.receive(&bytes, self.now, &mut heard).unwrap();
        heard
    }
}

pub(super) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(super) fn submit(payload_bytes: usize) -> Question {
    let payload = Json::parse(&format!("{:?}", "x".repeat(payload_bytes))).unwrap();
    Question::new(Ask::Command(Command::submit(Submit::new(name("q"), payload))))
}

fn lease() -> Question {
    Question::new(Ask::Lease(LeaseQueues {
        queues: vec![name("q")],
        worker: name("w"),
        max: 1,
        lease_ms: 1_000,
        wait_ms: 1_000,
        request_id: None,
        capacity: None,
    }))
}

fn leased(bytes: usize) -> Answer {
    let leased = Leased {
        task_id: TaskId(7),
        lease_id: LeaseId(9),
        queue: name("q"),
        attempt: 1,
        payload: Json::parse(&format!("{:?}", "x".repeat(bytes))).unwrap(),
        lease_ms: 1_000,
        timeout_ms: None,
    };
    Answer::Leases { leases: Leases { leases: vec![leased], waited_ms: 0 }, at: Position(11) }
}

fn asked_ids(asked: &[Asked]) -> Vec<AskId> {
    let id = |asked: &Asked| match asked {
        Asked::Ask(id, _) => Some(*id),
        Asked::Ready(_) | Asked::Cancel(_) | Asked::GiveBack(_) => None,
    };
    asked.iter().filter_map(id).collect()
}

fn answered_ids(heard: &[Heard]) -> Vec<AskId> {
    let id = |heard: &Heard| match heard {
        Heard::Answer(id, _) => Some(*id),
        Heard::Ready(_) | Heard::Unreadable(_) | Heard::GoAway(_) => None,
    };
    heard.iter().filter_map(id).collect()
}

#[test]
fn an_ask_is_answered_once_with_the_leaders_position() {
    let mut pair = Pair::new();
    let id = pair.ask(&submit(10)).unwrap();
    assert_eq!(asked_ids(&pair.carry_asks()), [id]);
    pair.answerer.taken(id);
    pair.answerer.reached(Position(77));
    pair.answerer.answer(id, Reply::Done(Err(Error::Overloaded)), None);
    pair.answerer.answer(id, Reply::NotTaken, None);
    let heard = pair.carry_answers();
    let [Heard::Answer(heard, answered)] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!((*heard, answered.position), (id, Position(77)));
    assert!(matches!(answered.reply, Reply::Done(Err(Error::Overloaded))));
    assert_eq!((pair.asker.open(), pair.answerer.open()), (0, 0));
}

#[test]
fn versions_that_do_not_meet_break_the_link() {
    let newer = Hello { versions: (VERSIONS.1 + 1, VERSIONS.1 + 2), ..Hello::new("b", None) };
    let mut pair = Pair::of(newer, Hello::new("a", None));
    let mut bytes = Vec::new();
    pair.asker.send(&mut bytes, ENOUGH);
    let broken = pair.answerer.receive(&bytes, pair.now, &mut Vec::new());
    assert!(matches!(broken, Err(Broken::Version { .. })), "{broken:?}");
}

#[test]
fn a_newer_peer_that_speaks_our_version_is_met() {
    let newer = Hello { versions: (VERSIONS.1, VERSIONS.1 + 2), ..Hello::new("b", None) };
    let mut pair = Pair::of(newer, Hello::new("a", None));
    assert!(matches!(pair.carry_asks()[..], [Asked::Ready(_)]));
}

#[test]
fn bytes_of_another_protocol_break_the_link() {
    let mut answerer = Answerer::<()>::new(Hello::new("a", None), Duration::ZERO);
    let broken = answerer.receive(b"GET / HTTP/1.1\r\n\r\n", Duration::ZERO, &mut Vec::new());
    assert!(broken.is_err());
}

#[test]
fn different_tokens_files_are_seen() {
    let (one, other) = (Hello::new("a", Some([1; 32])), Hello::new("b", Some([2; 32])));
    assert!(one.knows_other_tokens(&other) && one.knows_other_tokens(&Hello::new("b", None)));
    assert!(!one.knows_other_tokens(&Hello::new("b", Some([1; 32]))));
}

#[test]
fn a_frame_at_the_limit_is_read_and_one_byte_more_is_not() {
    let mut received = frame::Received::default();
    let mut bytes = Vec::new();
    frame::write(&mut bytes, Kind::Ask, true, 1, &vec![0; frame::PAYLOAD_BYTES_MAX]);
    assert_eq!(bytes.len(), FRAME_BYTES_MAX);
    let mut frames = 0;
    received
        .take(&bytes, |_| {
            frames += 1;
            Ok(())
        })
        .unwrap();
    assert_eq!(frames, 1);
    let mut head = bytes[..12].to_vec();
    let one_more = u16::try_from(frame::PAYLOAD_BYTES_MAX + 1).unwrap().to_le_bytes();
    head[2..4].copy_from_slice(&one_more);
    assert!(matches!(received.take(&head, |_| Ok(())), Err(Broken::TooLarge { .. })));
}

#[test]
fn asks_beyond_the_window_wait_until_the_loop_takes_some() {
    let mut pair = Pair::new();
    let half = WINDOW_BYTES / 2 - 1_000;
    let ids: Vec<AskId> = (0..16).map(|_| pair.ask(&submit(250 << 10)).unwrap()).collect();
    let more = pair.ask(&submit(half.min(255 << 10))).unwrap();
    let first = asked_ids(&pair.carry_asks());
    assert!(first.len() < 17 && first.len() >= 15, "{}", first.len());
    assert!(!pair.asker.wants_to_send());
    for id in &first {
        pair.answerer.taken(*id);
    }
    pair.carry_answers();
    let second = asked_ids(&pair.carry_asks());
    assert_eq!(first.len() + second.len(), ids.len() + 1);
    assert!(second.contains(&more));
}

#[test]
fn parked_calls_do_not_use_up_the_window() {
    let mut pair = Pair::new();
    for _ in 0..20_000 {
        let id = pair.ask(&lease()).unwrap();
        assert_eq!(asked_ids(&pair.carry_asks()), [id]);
        pair.answerer.taken(id);
        pair.carry_answers();
    }
    assert_eq!(pair.answerer.open(), 20_000);
}

#[test]
fn as_many_asks_as_the_limit_are_open_and_not_one_more() {
    let leader = Hello { asks_max: 3, ..Hello::new("a", None) };
    let mut pair = Pair::of(Hello::new("b", None), leader);
    pair.carry_asks();
    pair.carry_answers();
    let ids: Vec<AskId> = (0..3).map(|_| pair.ask(&lease()).unwrap()).collect();
    assert_eq!(pair.ask(&lease()), Err(NotAsked::Full));
    pair.carry_asks();
    pair.answerer.answer(ids[0], Reply::NotTaken, None);
    pair.carry_answers();
    assert!(pair.ask(&lease()).is_ok(), "an answer makes room");
}

#[test]
fn an_ask_larger_than_the_window_goes_alone() {
    let follower = Hello::new("b", None);
    let leader = Hello { window_bytes: 1_000, ..Hello::new("a", None) };
    let mut pair = Pair::of(follower, leader);
    pair.carry_asks();
    pair.carry_answers();
    let (small, large) = (pair.ask(&submit(10)).unwrap(), pair.ask(&submit(200_000)).unwrap());
    assert_eq!(asked_ids(&pair.carry_asks()), [small]);
    pair.answerer.taken(small);
    pair.carry_answers();
    assert_eq!(asked_ids(&pair.carry_asks()), [large]);
}

#[test]
fn a_large_answer_does_not_keep_a_small_one_waiting() {
    let mut pair = Pair::new();
    let (large, small) = (pair.ask(&lease()).unwrap(), pair.ask(&submit(10)).unwrap());
    pair.carry_asks();
    pair.answerer.answer(large, Reply::Done(Ok(leased(4 << 20))), None);
    let mut bytes = Vec::new();
    pair.answerer.send(&mut bytes, 1);
    pair.answerer.answer(small, Reply::Done(Err(Error::Overloaded)), None);
    pair.answerer.send(&mut bytes, 3 * FRAME_BYTES_MAX);
    let mut heard = Vec::new();
    pair.asker.receive(&bytes, pair.now, &mut heard).unwrap();
    assert_eq!(answered_ids(&heard), [small]);
    assert_eq!(answered_ids(&pair.carry_answers()), [large]);
}

#[test]
fn memory_of_an_answer_is_freed_when_it_is_sent() {
    let mut pair = Pair::new();
    let id = pair.ask(&lease()).unwrap();
    pair.carry_asks();
    let held = Arc::new(());
    pair.answerer.answer(id, Reply::Done(Ok(leased(200_000))), Some(Arc::clone(&held)));
    let mut bytes = Vec::new();
    pair.answerer.send(&mut bytes, 1);
    assert_eq!(Arc::strong_count(&held), 2);
    pair.answerer.send(&mut bytes, ENOUGH);
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn a_cancel_follows_its_ask() {
    let mut pair = Pair::new();
    let id = pair.ask(&lease()).unwrap();
    pair.carry_asks();
    pair.asker.cancel(id);
    let asked = pair.carry_asks();
    assert!(matches!(asked[..], [Asked::Cancel(cancelled)] if cancelled == id), "{asked:?}");
    pair.answerer.answer(id, Reply::Cancelled, None);
    assert!(pair.carry_answers().is_empty(), "nobody waits for it");
    assert_eq!(pair.asker.open(), 0);
}

#[test]
fn an_ask_that_was_not_begun_is_cancelled_without_a_word() {
    let mut pair = Pair::new();
    let id = pair.ask(&lease()).unwrap();
    pair.asker.cancel(id);
    assert!(pair.carry_asks().is_empty());
    assert_eq!(pair.asker.open(), 0);
}

#[test]
fn an_ask_cancelled_half_way_is_not_taken() {
    let mut pair = Pair::new();
    let id = pair.ask(&submit(200_000)).unwrap();
    let (mut bytes, mut asked) = (Vec::new(), Vec::new());
    pair.asker.send(&mut bytes, 1);
    pair.answerer.receive(&bytes, pair.now, &mut asked).unwrap();
    pair.asker.cancel(id);
    assert!(asked.is_empty() && pair.carry_asks().is_empty());
    assert!(pair.carry_answers().is_empty());
    assert_eq!((pair.asker.open(), pair.answerer.open()), (0, 0));
}

#[test]
fn leases_answered_to_a_cancelled_ask_are_given_back() {
    let mut pair = Pair::new();
    let id = pair.ask(&lease()).unwrap();
    pair.carry_asks();
    pair.answerer.answer(id, Reply::Done(Ok(leased(10))), None);
    pair.asker.cancel(id);
    assert!(pair.carry_answers().is_empty());
    let asked = pair.carry_asks();
    let given_back = Abandoned { at: Position(11), leases: vec![(TaskId(7), LeaseId(9))] };
    let is_back = |asked: &Asked| matches!(asked, Asked::GiveBack(back) if *back == given_back);
    assert!(asked.iter().any(is_back), "{asked:?}");
}

#[test]
fn a_stopping_leader_answers_what_it_has_and_takes_no_more() {
    let mut pair = Pair::new();
    let had = pair.ask(&lease()).unwrap();
    pair.carry_asks();
    let late = pair.ask(&submit(10)).unwrap();
    pair.answerer.go_away();
    assert!(pair.carry_asks().is_empty(), "it came after the farewell");
    let heard = pair.carry_answers();
    assert!(matches!(&heard[..], [Heard::GoAway(ids)] if *ids == [late]), "{heard:?}");
    assert_eq!(pair.ask(&lease()), Err(NotAsked::GoneAway));
    assert!(!pair.answerer.is_done());
    pair.answerer.answer(had, Reply::Done(Ok(leased(10))), None);
    assert_eq!(answered_ids(&pair.carry_answers()), [had]);
    assert!(pair.answerer.is_done());
}

#[test]
fn a_lost_link_leaves_only_sent_asks_unknown() {
    let leader = Hello { window_bytes: 1_000, ..Hello::new("a", None) };
    let mut pair = Pair::of(Hello::new("b", None), leader);
    pair.carry_asks();
    pair.carry_answers();
    let (sent, unsent) = (pair.ask(&submit(900)).unwrap(), pair.ask(&submit(900)).unwrap());
    pair.carry_asks();
    assert_eq!(pair.asker.cut(), [(sent, Fate::Unknown), (unsent, Fate::NotTaken)]);
}

#[test]
fn an_ask_that_comes_too_late_is_not_taken() {
    let mut pair = Pair::new();
    let within = Some(Duration::from_millis(10));
    let id = pair.ask(&Question { within, ..submit(200_000) }).unwrap();
    let mut bytes = Vec::new();
    pair.asker.send(&mut bytes, 1);
    pair.answerer.receive(&bytes, pair.now, &mut Vec::new()).unwrap();
    pair.now += Duration::from_millis(10);
    assert!(pair.carry_asks().is_empty());
    let heard = pair.carry_answers();
    let [Heard::Answer(heard, Answered { reply: Reply::Done(Err(Error::Overloaded)), .. })] = heard[..]
    else {
        panic!("{heard:?}")
    };
    assert_eq!(heard, id);
}

#[test]
fn an_ask_without_room_in_time_is_not_sent() {
    let leader = Hello { window_bytes: 1_000, ..Hello::new("a", None) };
    let mut pair = Pair::of(Hello::new("b", None), leader);
    pair.carry_asks();
    pair.carry_answers();
    let within = Some(Duration::from_millis(10));
    let sent = pair.ask(&Question { within, ..submit(900) }).unwrap();
    let waits = pair.ask(&Question { within, ..submit(900) }).unwrap();
    let patient = pair.ask(&submit(900)).unwrap();
    assert_eq!(asked_ids(&pair.carry_asks()), [sent]);
    assert_eq!(pair.asker.next_due(), pair.now + Duration::from_millis(10));
    pair.now += Duration::from_millis(9);
    assert!(pair.asker.overdue(pair.now).is_empty());
    pair.now += Duration::from_millis(1);
    assert_eq!(pair.asker.overdue(pair.now), [waits]);
    assert!(pair.asker.next_due() > pair.now, "what was sent has no deadline here");
    pair.answerer.taken(sent);
    pair.carry_answers();
    assert_eq!(asked_ids(&pair.carry_asks()), [patient]);
    assert_eq!(pair.asker.open(), 2);
}

#[test]
fn a_silent_peer_is_pinged_and_then_given_up() {
    let mut pair = Pair::new();
    assert!(pair.asker.tick(pair.now).is_ok());
    pair.now += PING_AFTER;
    pair.asker.tick(pair.now).unwrap();
    let due = pair.asker.next_due();
    assert!(pair.asker.tick(due - Duration::from_millis(1)).is_ok());
    assert_eq!(pair.asker.tick(due), Err(Broken::Silent));
}

#[test]
fn a_peer_that_answers_pings_is_kept() {
    let mut pair = Pair::new();
    for _ in 0..10 {
        pair.now += PING_AFTER;
        pair.asker.tick(pair.now).unwrap();
        pair.carry_asks();
        pair.carry_answers();
    }
    assert!(pair.asker.tick(pair.now + PING_AFTER).is_ok());
}

#[test]
fn a_peer_that_says_nothing_at_first_is_given_up() {
    let mut asker = Asker::new(Hello::new("b", None), Duration::ZERO);
    assert!(asker.tick(HELLO_WITHIN - Duration::from_millis(1)).is_ok());
    assert_eq!(asker.tick(HELLO_WITHIN), Err(Broken::Silent));
}

#[test]
fn an_answer_of_another_kind_fails_its_ask_only() {
    let mut pair = Pair::new();
    let (bad, good) = (pair.ask(&submit(10)).unwrap(), pair.ask(&lease()).unwrap());
    pair.carry_asks();
    pair.answerer.answer(bad, Reply::Done(Ok(leased(10))), None);
    pair.answerer.answer(good, Reply::Done(Ok(leased(10))), None);
    let heard = pair.carry_answers();
    let [Heard::Unreadable(unread), Heard::Answer(read, _)] = heard[..] else { panic!("{heard:?}") };
    assert_eq!((unread, read), (bad, good));
    assert_eq!(pair.asker.open(), 0);
}

#[test]
fn an_answer_that_cannot_be_decoded_fails_its_ask_only() {
    let mut pair = Pair::new();
    let (bad, good) = (pair.ask(&lease()).unwrap(), pair.ask(&lease()).unwrap());
    pair.carry_asks();
    let (mut bytes, mut heard) = (Vec::new(), Vec::new());
    frame::write(&mut bytes, Kind::Answer, true, bad.0, b"no CBOR");
    pair.asker.receive(&bytes, pair.now, &mut heard).unwrap();
    assert!(matches!(heard[..], [Heard::Unreadable(unread)] if unread == bad), "{heard:?}");
    pair.answerer.answer(good, Reply::Done(Ok(leased(10))), None);
    assert_eq!(answered_ids(&pair.carry_answers()), [good]);
}

#[test]
fn cancelling_an_ask_in_the_outbox_frees_its_window() {
    let leader = Hello { window_bytes: 1_000, ..Hello::new("a", None) };
    let mut pair = Pair::of(Hello::new("b", None), leader);
    pair.carry_asks();
    pair.carry_answers();
    let id = pair.ask(&submit(900)).unwrap();
    // It has room in the window, and nothing of it was handed over.
    pair.asker.send(&mut Vec::new(), 0);
    pair.asker.cancel(id);
    assert!(pair.carry_asks().is_empty(), "the leader has not heard of it");
    assert_eq!((pair.asker.open(), pair.asker.untaken_bytes()), (0, 0));
    let next = pair.ask(&submit(900)).unwrap();
    assert_eq!(asked_ids(&pair.carry_asks()), [next]);
}

#[test]
fn an_ask_in_the_outbox_of_a_lost_link_is_not_taken() {
    let mut pair = Pair::new();
    let id = pair.ask(&submit(900)).unwrap();
    pair.asker.send(&mut Vec::new(), 0);
    assert_eq!(pair.asker.cut(), [(id, Fate::NotTaken)]);
}

#[test]
fn no_more_asks_are_sent_than_the_leader_says() {
    let leader = Hello { asks_max: 3, ..Hello::new("a", None) };
    let mut pair = Pair::of(Hello::new("b", None), leader);
    // Asked before the leader has said how many it takes.
    let ids: Vec<AskId> = (0..5).map(|_| pair.ask(&lease()).unwrap()).collect();
    pair.carry_asks();
    pair.carry_answers();
    assert_eq!(asked_ids(&pair.carry_asks()), ids[..3]);
    pair.answerer.answer(ids[0], Reply::NotTaken, None);
    pair.carry_answers();
    assert_eq!(asked_ids(&pair.carry_asks()), ids[3..4]);
}

#[test]
fn only_a_few_long_answers_are_sent_at_one_time() {
    let mut pair = Pair::new();
    let long: Vec<AskId> = (0..20).map(|_| pair.ask(&lease()).unwrap()).collect();
    let short = pair.ask(&submit(10)).unwrap();
    pair.carry_asks();
    for id in &long {
        pair.answerer.answer(*id, Reply::Done(Ok(leased(200_000))), None);
    }
    pair.answerer.answer(short, Reply::Done(Err(Error::Overloaded)), None);
    let mut ended = Vec::new();
    while pair.answerer.wants_to_send() {
        let (mut bytes, mut heard) = (Vec::new(), Vec::new());
        pair.answerer.send(&mut bytes, 1);
        pair.asker.receive(&bytes, pair.now, &mut heard).unwrap();
        assert!(pair.asker.partial() <= LONG_ANSWERS_MAX, "{}", pair.asker.partial());
        ended.extend(answered_ids(&heard));
    }
    assert_eq!(ended[0], short, "a short one goes before");
    assert_eq!(ended[1..], long);
    assert_eq!(pair.answerer.unsent_bytes(), 0);
}

#[test]
fn answers_that_wait_to_be_sent_are_counted_in_bytes() {
    let mut pair = Pair::new();
    let id = pair.ask(&lease()).unwrap();
    pair.carry_asks();
    pair.answerer.answer(id, Reply::Done(Ok(leased(200_000))), None);
    let all = pair.answerer.unsent_bytes();
    assert!((200_000..201_000).contains(&all), "{all}");
    pair.answerer.send(&mut Vec::new(), 1);
    assert_eq!(pair.answerer.unsent_bytes(), all - frame::PAYLOAD_BYTES_MAX);
}

#[test]
fn many_leases_are_given_back_in_several_frames() {
    let mut pair = Pair::new();
    let Answer::Leases { leases: Leases { leases: one, .. }, at } = leased(10) else {
        unreachable!("leases")
    };
    // More than fit into one frame, and numbers that take the most room.
    let many = 4 * GIVE_BACK_LEASES_MAX + 1;
    let last = |n: usize| u64::MAX - n as u64;
    let leases =
        (0..many).map(|n| Leased { task_id: TaskId(last(n)), lease_id: LeaseId(last(n)), ..one[0].clone() });
    let leases = Leases { leases: leases.collect(), waited_ms: 0 };
    let answered = Answered { reply: Reply::Done(Ok(Answer::Leases { leases, at })), position: at };
    pair.asker.give_back(&answered);
    let back = |asked: &Asked| match asked {
        Asked::GiveBack(back) => back.leases.len(),
        Asked::Ready(_) | Asked::Ask(..) | Asked::Cancel(_) => 0,
    };
    let sent = pair.carry_asks();
    assert_eq!((sent.len(), sent.iter().map(back).sum::<usize>()), (5, many));
}

#[test]
fn leases_are_given_back_after_a_farewell() {
    let mut pair = Pair::new();
    let id = pair.ask(&lease()).unwrap();
    pair.carry_asks();
    pair.answerer.go_away();
    pair.answerer.answer(id, Reply::Done(Ok(leased(10))), None);
    let heard = pair.carry_answers();
    let [Heard::GoAway(_), Heard::Answer(_, answered)] = &heard[..] else { panic!("{heard:?}") };
    pair.asker.give_back(answered);
    assert!(matches!(pair.carry_asks()[..], [Asked::GiveBack(_)]));
}

#[test]
fn a_hundred_thousand_cancels_take_no_time() {
    let leader = Hello { window_bytes: 1_000, asks_max: 1 << 20, ..Hello::new("a", None) };
    let mut pair = Pair::of(Hello::new("b", None), leader);
    pair.carry_asks();
    pair.carry_answers();
    let ids: Vec<AskId> = (0..100_000).map(|_| pair.ask(&lease()).unwrap()).collect();
    let began = std::time::Instant::now();
    ids.into_iter().rev().for_each(|id| pair.asker.cancel(id));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(pair.asker.open(), 0);
}

#[test]
fn an_invalid_ask_is_refused_and_the_link_goes_on() {
    let mut pair = Pair::new();
    let Question { ask: Ask::Lease(request), .. } = lease() else { unreachable!("a lease call") };
    let invalid = || Question::new(Ask::Lease(LeaseQueues { max: 1_001, ..request.clone() }));
    let mut refused = |question: &Question| {
        let id = pair.ask(question).unwrap();
        assert!(pair.carry_asks().is_empty(), "the loop does not see it");
        let heard = pair.carry_answers();
        let [Heard::Answer(heard, Answered { reply: Reply::Done(Err(Error::Refused(refusal))), .. })] =
            &heard[..]
        else {
            panic!("{heard:?}")
        };
        assert_eq!(*heard, id);
        refusal.code()
    };
    assert_eq!(refused(&invalid()), "invalid");
    let caller = Caller { queues: Some([name("other")].into()), ..Caller::default() };
    assert_eq!(refused(&Question { caller, ..invalid() }), "forbidden", "as at the leader itself");
    assert!(pair.ask(&lease()).is_ok());
}
