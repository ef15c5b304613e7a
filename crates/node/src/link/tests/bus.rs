//! Asks of owners of leases of the bus.

use std::net::{IpAddr, Ipv4Addr};

use orchestrix_core::limits::{
    BATCH_ITEMS_MAX, BATCH_PAYLOAD_BYTES_MAX, NAME_BYTES_MAX, NODE_ADDRESS_BYTES_MAX, OWNED_LEASES_MAX,
};
use orchestrix_core::wire::bus::MESSAGE_BYTES_MAX;
use orchestrix_core::{Claim, Json, LeaseId, OwnerToken, Refusal, TaskId};

use super::codec::comes_back;
use super::rules::{Pair, name, submit};
use crate::bus::{BusAnswer, DispatchAsk, OwnedLease, OwnerAsk, Pulled, Report, ReportItem, Reported, Said};
use crate::caller::Caller;
use crate::link::bus_codec::validate;
use crate::link::codec::{decoded, encoded};
use crate::link::frame::{self, Kind};
use crate::link::{AskId, Asked, Heard, NotAsked, Question, Reply};
use crate::request::{Answer, Ask, Error};

fn item(said: Said) -> ReportItem {
    ReportItem { task: TaskId(3), lease: LeaseId(4), worker: name("w"), said }
}

fn report(own: usize, items: Vec<ReportItem>) -> OwnerAsk {
    let own = vec![Claim { lease: LeaseId(4), previous: None }; own];
    OwnerAsk::Report(Report { node: OwnerToken(2), own, items, after: None })
}

fn question(ask: OwnerAsk) -> Question {
    Question::new(Ask::Owner(Box::new(ask)))
}

fn answer(answer: BusAnswer) -> Reply {
    Reply::Done(Ok(Answer::Bus(Box::new(answer))))
}

fn reported(own: usize, items: usize, owned: usize) -> BusAnswer {
    let lease = OwnedLease { task: TaskId(3), lease: LeaseId(4), attempt: 5 };
    let (own, items, owned) = (vec![Ok(2); own], vec![Ok(()); items], vec![lease; owned]);
    BusAnswer::Reported(Reported { own, items, owned, more: false, mean: u64::MAX })
}

#[test]
fn every_ask_of_an_owner_comes_back_as_it_was() {
    let node = OwnerToken(7);
    let running = |progress, note| item(Said::Running { progress, note });
    let items = vec![
        running(None, None),
        running(Some(100), Some("near the end".to_owned())),
        item(Said::Completed { result: None }),
        item(Said::Completed { result: Some(Json::parse("{\"a\": [1]}").unwrap()) }),
        item(Said::Failed { error: "no".to_owned(), retry: true }),
        item(Said::Failed { error: String::new(), retry: false }),
        item(Said::Released),
    ];
    let own = vec![
        Claim { lease: LeaseId(4), previous: None },
        Claim { lease: LeaseId(u64::MAX), previous: Some(node) },
    ];
    let address = "http://10.0.0.5:3000".to_owned();
    for ask in [
        OwnerAsk::Join { node: name("a"), incarnation: "worker-1-x".to_owned(), address },
        OwnerAsk::Drain { node },
        OwnerAsk::Leave { node },
        OwnerAsk::Release { node, leases: vec![LeaseId(1), LeaseId(9)] },
        OwnerAsk::Report(Report { node, own, items, after: Some(LeaseId(9)) }),
        report(0, Vec::new()),
    ] {
        comes_back(&question(ask));
    }
}

#[test]
fn every_answer_to_an_owner_comes_back_as_it_was() {
    let refusals = vec![
        Ok(()),
        Err(Refusal::NotOwner { lease: LeaseId(4), why: "another node owns it" }),
        Err(Refusal::TooLarge { field: "own", bytes: 2, max: 1 }),
    ];
    let own = refusals.iter().cloned().map(|refusal| refusal.map(|()| u32::MAX)).collect();
    let mixed = Reported { own, items: refusals, more: true, ..Reported::default() };
    for of_bus in [
        BusAnswer::Done,
        BusAnswer::Joined(OwnerToken(7)),
        BusAnswer::Gone,
        reported(1, 2, 3),
        BusAnswer::Reported(mixed),
    ] {
        comes_back(&answer(of_bus));
    }
}

#[test]
fn reports_are_bounded() {
    let released = || item(Said::Released);
    let many = |own, items| validate(&report(own, vec![released(); items])).is_ok();
    assert!(many(OWNED_LEASES_MAX, BATCH_ITEMS_MAX));
    assert!(!many(OWNED_LEASES_MAX + 1, 0) && !many(0, BATCH_ITEMS_MAX + 1));
    let failed = |bytes: usize| item(Said::Failed { error: "x".repeat(bytes), retry: true });
    let noted = |bytes: usize| item(Said::Running { progress: None, note: Some("x".repeat(bytes)) });
    for long in [failed, noted] {
        assert_eq!(validate(&report(0, vec![long(MESSAGE_BYTES_MAX)])), Ok(()));
        let refused = validate(&report(0, vec![long(MESSAGE_BYTES_MAX + 1)]));
        assert!(matches!(refused, Err(Refusal::TooLarge { field: "items", .. })), "{refused:?}");
    }
    let (whole, rest) =
        (BATCH_PAYLOAD_BYTES_MAX / MESSAGE_BYTES_MAX, BATCH_PAYLOAD_BYTES_MAX % MESSAGE_BYTES_MAX);
    let mut items = vec![failed(MESSAGE_BYTES_MAX); whole];
    items.push(failed(rest));
    assert_eq!(validate(&report(0, items.clone())), Ok(()));
    items.push(failed(1));
    assert!(validate(&report(0, items)).is_err());
}

#[test]
fn what_a_node_says_of_itself_is_bounded() {
    let join = |incarnation: usize, address: usize| {
        let (incarnation, address) = ("i".repeat(incarnation), "a".repeat(address));
        validate(&OwnerAsk::Join { node: name("a"), incarnation, address }).is_ok()
    };
    assert!(join(NAME_BYTES_MAX, NODE_ADDRESS_BYTES_MAX));
    assert!(!join(NAME_BYTES_MAX + 1, 0) && !join(0, NODE_ADDRESS_BYTES_MAX + 1));
}

/// The follower asks, the leader answers so: what the follower hears.
fn heard(ask: OwnerAsk, reply: BusAnswer) -> Heard {
    let mut pair = Pair::new();
    let id = pair.ask(&question(ask)).unwrap();
    let asked = pair.carry_asks();
    assert!(matches!(&asked[..], [Asked::Ask(asked, _)] if *asked == id), "{asked:?}");
    pair.answerer.answer(id, answer(reply), None);
    pair.carry_answers().pop().unwrap()
}

#[test]
fn an_owner_hears_only_what_it_asked_for() {
    let join = || OwnerAsk::Join { node: name("a"), incarnation: "i".to_owned(), address: String::new() };
    let leave = || OwnerAsk::Leave { node: OwnerToken(7) };
    let two = || report(1, vec![item(Said::Released)]);
    for (ask, reply) in [
        (join(), BusAnswer::Joined(OwnerToken(7))),
        (leave(), BusAnswer::Done),
        (leave(), BusAnswer::Gone),
        (two(), reported(1, 1, OWNED_LEASES_MAX)),
        (two(), BusAnswer::Gone),
    ] {
        assert!(matches!(heard(ask, reply), Heard::Answer(..)));
    }
    for (ask, reply) in [
        (join(), BusAnswer::Gone),
        (join(), reported(0, 0, 0)),
        (leave(), BusAnswer::Joined(OwnerToken(7))),
        (two(), BusAnswer::Done),
        (two(), reported(0, 1, 0)),
        (two(), reported(1, 2, 0)),
        (two(), reported(1, 1, OWNED_LEASES_MAX + 1)),
    ] {
        assert!(matches!(heard(ask, reply), Heard::Unreadable(_)));
    }
}

#[test]
fn what_a_leader_asks_itself_does_not_leave_it() {
    let mut pair = Pair::new();
    let ask = Ask::Dispatch(Box::new(DispatchAsk::Pull { after: LeaseId(1) }));
    assert_eq!(pair.ask(&Question::new(ask)), Err(NotAsked::Local));
    for local in [BusAnswer::Pulled(Pulled::default()), BusAnswer::Heard(Vec::new())] {
        let Heard::Answer(_, answered) = heard(report(0, Vec::new()), local) else { panic!("a refusal") };
        assert!(matches!(answered.reply, Reply::Done(Err(Error::Refused(Refusal::Internal)))));
    }
}

#[test]
fn an_owners_ask_of_a_caller_is_refused() {
    let someone = Caller { name: Some(name("t")), ..Caller::default() };
    let limited = Caller { queues: Some([name("q")].into()), ..Caller::default() };
    let somewhere = Caller { address: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)), ..Caller::default() };
    let mut pair = Pair::new();
    for caller in [someone, limited, somewhere] {
        pair.ask(&Question { caller, ..question(report(0, Vec::new())) }).unwrap();
        assert!(pair.carry_asks().is_empty(), "nothing is decided");
        let heard = pair.carry_answers();
        let [Heard::Answer(_, answered)] = &heard[..] else { panic!("{heard:?}") };
        assert!(matches!(answered.reply, Reply::Done(Err(Error::Refused(Refusal::Internal)))));
    }
}

/// Nodes before the bus do not know its asks.
#[test]
fn an_ask_of_a_newer_node_is_refused_and_the_link_goes_on() {
    let mut pair = Pair::new();
    let mut unknown = encoded(&Question::new(Ask::Queues));
    // The ask without content: the choice 9.
    let at = unknown.windows(4).position(|bytes| bytes == [0x82, 9, 0xbf, 0xff]).unwrap();
    unknown[at + 1] = 23;
    assert!(decoded::<Question>(&unknown).is_err());
    let id = pair.ask(&Question::new(Ask::Queues)).unwrap();
    pair.asker.send(&mut Vec::new(), usize::MAX);
    let (mut bytes, mut asked) = (Vec::new(), Vec::new());
    frame::write(&mut bytes, Kind::Ask, true, id.0, &unknown);
    pair.answerer.receive(&bytes, pair.now, &mut asked).unwrap();
    assert!(asked.is_empty());
    let heard = pair.carry_answers();
    let [Heard::Answer(refused, answered)] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!(*refused, id);
    assert!(matches!(answered.reply, Reply::Done(Err(Error::Refused(Refusal::Internal)))));
    let next = pair.ask(&submit(10)).unwrap();
    assert!(matches!(&pair.carry_asks()[..], [Asked::Ask(AskId(n), _)] if *n == next.0));
}
