//! Every invariant of shards, with a short history that breaks it.

use orchestrix_core::shards::Runs;
use orchestrix_core::wire::{Assignment, ShardHeartbeat, ShardRegister};
use orchestrix_core::{
    Event, Grant, LeaveReason, Name, Position, ShardCountSet, ShardWorkerJoined, ShardWorkerLeft,
    ShardsLetGo, ShardsMoved, Timestamp,
};
use orchestrix_node::ShardAsk;

use super::check;
use crate::history::{Answer, Call, Entry, History, Question};
use crate::shards::coverage::ShardCovered;
use crate::shards::plan::ShardPlan;
use crate::shards::record::{Kind, Message, Process, SentMessage, Served};
use crate::world::{MS, SECOND};

/// A history that is put together event by event. One service with four shards; a process for each worker.
struct Story(History);

const LEASE_MS: u64 = 15_000;
/// The processes of workers a, b and c; the last is a second one of a.
const A: usize = 0;
const B: usize = 1;
const C: usize = 2;
const SECOND_A: usize = 3;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn runs(shards: &[u32]) -> Runs {
    shards.iter().copied().collect()
}

impl Story {
    fn new() -> Self {
        let mut story = Self(History::default());
        for worker in ["a", "b", "c", "a"] {
            let (service, worker) = (name("s"), name(worker));
            story.0.shards.begin(Process { service, worker, kind: Kind::Aware, drift_ppm: 0 });
        }
        for process in [A, B, C] {
            story.say(process, 0, Message::Comes { count: 4 });
        }
        story
    }

    /// Workers a and b have two shards each, and say so.
    fn settled() -> Self {
        let mut story = Self::new();
        story.join("a", Some(4));
        story.join("b", Some(4));
        let at = story.moves(&[], &[("a", &[0, 1]), ("b", &[2, 3])]);
        story.assigned(A, SECOND, at, &[(0, at), (1, at)]);
        story.assigned(B, SECOND, at, &[(2, at), (3, at)]);
        story
    }

    /// The next event, a second after the one before.
    fn add(&mut self, event: impl Into<Event>) -> Position {
        let position = Position(self.0.log.len() as u64 + 1);
        let at = Timestamp(position.0 * 1_000);
        self.0.log.push(Entry { position, at, event: event.into(), batch: [0; 32] });
        self.0.shards.durable_us.push(position.0 * SECOND);
        position
    }

    fn join(&mut self, worker: &str, count: Option<u32>) -> Position {
        let (service, worker) = (name("s"), name(worker));
        self.add(ShardWorkerJoined {
            service,
            worker,
            group: None,
            count,
            capacity: None,
            said: None,
            by: None,
            session: None,
        })
    }

    fn leave(&mut self, worker: &str, reason: LeaveReason) -> Position {
        self.add(ShardWorkerLeft { service: name("s"), worker: name(worker), reason })
    }

    fn moves(&mut self, withdrawn: &[u32], granted: &[(&str, &[u32])]) -> Position {
        let grant = |(worker, shards): &(&str, &[u32])| Grant { worker: name(worker), shards: runs(shards) };
        let granted = granted.iter().map(grant).collect();
        self.add(ShardsMoved { service: name("s"), withdrawn: runs(withdrawn), granted, capacity: None })
    }

    fn let_go(&mut self, worker: &str, shards: &[u32]) -> Position {
        let (service, worker, shards) = (name("s"), name(worker), runs(shards));
        self.add(ShardsLetGo { service, worker, shards, overruled: None })
    }

    fn say(&mut self, process: usize, at_us: u64, what: Message) {
        self.0.shards.sent.push(SentMessage { process, at_us, what });
    }

    /// A process gets its assignment in answer to a heartbeat.
    fn assigned(&mut self, process: usize, at_us: u64, generation: Position, shards: &[(u32, Position)]) {
        let worker = self.0.shards.processes[process].worker.clone();
        let body = ShardHeartbeat {
            max_shard_count: 4,
            assigned_shards: shards.iter().map(|(shard, _)| *shard).collect(),
            generation: None,
            seq: None,
            session: None,
            ..ShardHeartbeat::default()
        };
        let ask = ShardAsk::Heartbeat { service: name("s"), worker, body };
        self.answer(process, at_us, ask, generation, shards);
    }

    fn answer(&mut self, process: usize, at: u64, ask: ShardAsk, of: Position, shards: &[(u32, Position)]) {
        let (assigned_shards, tokens) = shards.iter().copied().unzip();
        let assigned = Assignment {
            assigned_shards,
            tokens,
            generation: of,
            lease_ms: LEASE_MS,
            seq: None,
            fenced: false,
        };
        let durable = Position(self.0.log.len() as u64);
        self.0.calls.push(Call {
            op: 0,
            question: Question::Shards { process, ask: Box::new(ask) },
            durable_before: durable,
            durable_after: durable,
            at: Timestamp(0),
            asked_us: at,
            answered_us: at + MS,
            answer: Ok(Answer::Assignment(assigned)),
        });
    }

    fn serve(&mut self, process: usize, shard: u32, token: Position, from_us: u64, to_us: u64) {
        self.0.shards.served.push(Served { process, shard, token, from_us, to_us });
    }

    fn rests(&mut self) {
        self.0.shards.rested_us = Some(1_000 * SECOND);
    }

    fn breaks(mut self, invariant: &str) {
        let found = check(&mut self.0, &ShardPlan::draw(1, 0));
        let named: Vec<&str> = found.iter().map(|violation| violation.invariant).collect();
        assert_eq!(named, [invariant], "{found:#?}");
    }

    fn holds(mut self) -> History {
        let found = check(&mut self.0, &ShardPlan::draw(1, 0));
        assert!(found.is_empty(), "{found:#?}");
        self.0
    }
}

#[test]
fn a_move_as_it_should_be_breaks_nothing() {
    let mut story = Story::settled();
    story.join("c", Some(4));
    let since = story.moves(&[3], &[]);
    let said = Message::Serves { count: 4, shards: vec![2], generation: Some(since) };
    story.say(B, 5 * SECOND, said);
    story.let_go("b", &[3]);
    let token = story.moves(&[], &[("c", &[3])]);
    story.assigned(C, 8 * SECOND, token, &[(3, token)]);
    story.serve(B, 3, Position(3), SECOND, 5 * SECOND);
    story.serve(C, 3, token, 8 * SECOND, 9 * SECOND);
    story.rests();
    let history = story.holds();
    assert_eq!(history.shards.coverage.count(ShardCovered::ServerChanged), 1);
}

#[test]
fn a_shard_outside_the_range_breaks_h1() {
    let mut story = Story::settled();
    story.moves(&[], &[("a", &[4])]);
    story.breaks("H1");
}

#[test]
fn a_free_shard_at_rest_breaks_h1() {
    let mut story = Story::settled();
    story.leave("b", LeaveReason::Deregistered);
    story.moves(&[], &[("a", &[2])]);
    story.say(B, 0, Message::Goes);
    story.rests();
    story.breaks("H1");
}

#[test]
fn two_at_work_on_one_shard_break_h2() {
    let mut story = Story::settled();
    story.serve(A, 0, Position(3), SECOND, 5 * SECOND);
    story.serve(B, 0, Position(4), 5 * SECOND - 1, 6 * SECOND);
    story.breaks("H2");
}

#[test]
fn overlaps_of_plain_workers_are_counted() {
    let mut story = Story::settled();
    story.0.shards.processes[A].kind = Kind::Plain;
    story.serve(A, 0, Position(3), SECOND, 6 * SECOND);
    story.serve(B, 0, Position(4), 4 * SECOND, 7 * SECOND);
    let history = story.holds();
    assert_eq!(history.shards.coverage.count(ShardCovered::PlainOverlap), 1);
    assert_eq!(history.shards.coverage.count(ShardCovered::PlainOverlapMs), 2_000);
    // But the waiting workers are honest.
    let mut story = Story::settled();
    story.0.shards.processes[B].kind = Kind::Plain;
    story.serve(A, 0, Position(3), SECOND, 6 * SECOND);
    story.serve(B, 0, Position(4), 4 * SECOND, 7 * SECOND);
    story.breaks("H2");
}

#[test]
fn a_grant_before_the_time_of_a_silent_worker_is_over_breaks_h3() {
    let mut story = Story::settled();
    story.leave("b", LeaveReason::Silent);
    story.moves(&[], &[("a", &[2, 3])]);
    story.breaks("H3");
}

#[test]
fn a_grant_after_its_time_breaks_nothing() {
    let mut story = Story::settled();
    while story.0.log.len() < 15 {
        story.add(orchestrix_core::Tick {});
    }
    story.leave("b", LeaveReason::Silent);
    story.moves(&[], &[("a", &[2, 3])]);
    story.rests();
    story.holds();
}

#[test]
fn a_grant_after_a_heartbeat_of_an_old_generation_breaks_h3() {
    let mut story = Story::settled();
    story.join("c", Some(4));
    let since = story.moves(&[3], &[]);
    let before = Some(Position(since.0 - 1));
    story.say(B, 5 * SECOND, Message::Serves { count: 4, shards: vec![2], generation: before });
    story.let_go("b", &[3]);
    story.moves(&[], &[("c", &[3])]);
    story.breaks("H3");
}

#[test]
fn to_let_go_of_what_one_should_keep_breaks_h3() {
    let mut story = Story::settled();
    story.let_go("b", &[3]);
    story.breaks("H3");
}

#[test]
fn a_grant_of_an_assigned_shard_breaks_h3() {
    let mut story = Story::settled();
    story.say(B, 0, Message::Goes);
    story.moves(&[], &[("a", &[3])]);
    story.breaks("H3");
}

#[test]
fn a_generation_that_goes_back_breaks_h4() {
    let mut story = Story::settled();
    let at = story.join("c", Some(4));
    story.assigned(C, 5 * SECOND, at, &[]);
    story.assigned(A, 6 * SECOND, Position(3), &[(0, Position(3)), (1, Position(3))]);
    story.breaks("H4");
}

#[test]
fn an_assignment_that_is_not_the_journals_breaks_h4() {
    let mut story = Story::settled();
    story.assigned(B, 6 * SECOND, Position(3), &[(2, Position(3))]);
    story.breaks("H4");
    let mut story = Story::settled();
    story.assigned(A, 6 * SECOND, Position(9), &[]);
    story.breaks("H4");
}

#[test]
fn a_token_that_is_not_of_its_grant_breaks_h5() {
    let mut story = Story::settled();
    story.assigned(A, 6 * SECOND, Position(3), &[(0, Position(3)), (1, Position(2))]);
    story.breaks("H5");
}

#[test]
fn a_token_that_does_not_grow_breaks_h5() {
    let mut story = Story::settled();
    story.serve(A, 0, Position(3), SECOND, 2 * SECOND);
    story.serve(B, 0, Position(3), 3 * SECOND, 4 * SECOND);
    story.breaks("H5");
}

#[test]
fn a_move_without_a_reason_breaks_h6() {
    let mut story = Story::settled();
    story.join("c", Some(4));
    story.moves(&[3], &[]);
    story.moves(&[1], &[]);
    story.breaks("H6");
}

#[test]
fn to_take_more_than_surplus_breaks_h6() {
    let mut story = Story::settled();
    story.join("c", Some(4));
    story.moves(&[2, 3], &[]);
    story.breaks("H6");
}

#[test]
fn uneven_shares_at_rest_break_h6() {
    let mut story = Story::new();
    story.join("a", Some(4));
    story.join("b", Some(4));
    story.moves(&[], &[("a", &[0, 1, 2]), ("b", &[3])]);
    story.rests();
    story.breaks("H6");
}

#[test]
fn more_than_a_worker_takes_breaks_h6() {
    let mut story = Story::new();
    let (service, worker) = (name("s"), name("a"));
    story.add(ShardWorkerJoined {
        service,
        worker,
        group: None,
        count: Some(4),
        capacity: Some(1),
        said: None,
        by: None,
        session: None,
    });
    story.moves(&[], &[("a", &[0, 1])]);
    story.breaks("H6");
}

#[test]
fn one_token_for_two_processes_breaks_h7() {
    let mut story = Story::settled();
    let at = Position(3);
    let (service, worker) = (name("s"), name("a"));
    let body = ShardRegister {
        max_shard_count: 4,
        capacity: None,
        group: None,
        session: None,
        ..ShardRegister::default()
    };
    let ask = ShardAsk::Register { service, worker, body };
    story.answer(SECOND_A, 2 * SECOND, ask, at, &[(0, at), (1, at)]);
    story.breaks("H7");
}

#[test]
fn a_token_that_another_process_looks_up_breaks_h7() {
    let mut story = Story::settled();
    let at = Position(3);
    let (service, worker, session) = (name("s"), name("a"), name("a-2"));
    let ask = ShardAsk::Assignment { service, worker, session };
    story.answer(SECOND_A, 2 * SECOND, ask, at, &[(0, at), (1, at)]);
    story.breaks("H7");
}

#[test]
fn a_process_that_is_believed_after_its_successor_breaks_h7() {
    let mut story = Story::settled();
    story.leave("a", LeaveReason::Deregistered);
    let at = story.join("a", None);
    story.assigned(SECOND_A, 6 * SECOND, at, &[]);
    let (service, worker) = (name("s"), name("a"));
    let body = ShardHeartbeat {
        max_shard_count: 4,
        assigned_shards: vec![0, 1],
        generation: None,
        seq: None,
        session: None,
        ..ShardHeartbeat::default()
    };
    story.answer(A, 7 * SECOND, ShardAsk::Heartbeat { service, worker, body }, at, &[]);
    story.breaks("H7");
}

#[test]
fn a_heartbeat_from_before_its_worker_joined_breaks_h7() {
    let mut story = Story::settled();
    story.leave("a", LeaveReason::Fenced);
    let at = story.join("a", None);
    story.assigned(A, 6 * SECOND, at, &[]);
    let (service, worker) = (name("s"), name("a"));
    let body = ShardHeartbeat {
        max_shard_count: 4,
        assigned_shards: vec![0, 1],
        generation: Some(Position(3)),
        ..ShardHeartbeat::default()
    };
    story.answer(A, 7 * SECOND, ShardAsk::Heartbeat { service, worker, body }, at, &[]);
    story.breaks("H7");
}

#[test]
fn a_repeated_word_that_counts_breaks_h8() {
    let mut story = Story::settled();
    story.add(ShardCountSet { service: name("s"), count: 4, worker: Some(name("a")) });
    story.breaks("H8");
}

#[test]
fn a_shard_count_without_a_request_breaks_h8() {
    for worker in [None, Some(name("a"))] {
        let mut story = Story::settled();
        story.add(ShardCountSet { service: name("s"), count: 5, worker });
        story.breaks("H8");
    }
}

#[test]
fn a_shard_that_is_not_served_for_long_breaks_hl1() {
    let mut story = Story::settled();
    let at = Position(3);
    story.serve(A, 0, at, SECOND, 2 * SECOND);
    story.serve(A, 0, at, 40 * SECOND, 1_000 * SECOND);
    story.rests();
    let mut plan = ShardPlan::draw(1, 0);
    plan.lease_ms = LEASE_MS;
    assert!(check(&mut story.0.clone(), &plan).is_empty(), "other worlds promise nothing");
    plan.calm = true;
    assert_eq!(check(&mut story.0, &plan)[0].invariant, "HL1");
    story.0.shards.troubles.push((name("s"), 20 * SECOND));
    assert!(check(&mut story.0, &plan).is_empty(), "there was more trouble");
}

#[test]
fn two_rounds_within_a_moment_break_hl2() {
    let mut story = Story::settled();
    story.join("c", Some(4));
    story.moves(&[3], &[]);
    let last = story.0.log.len() - 1;
    story.0.log[last].at = Timestamp(story.0.log[last - 2].at.0 + 249);
    story.breaks("HL2");
}

#[test]
fn to_overrule_where_a_worker_can_be_asked_breaks_h3() {
    for kind in [Kind::Aware, Kind::Plain] {
        let mut story = Story::settled();
        story.0.shards.processes[A].kind = Kind::Deaf;
        story.0.shards.processes[SECOND_A].kind = Kind::Deaf;
        story.0.shards.processes[B].kind = kind;
        story.join("c", Some(4));
        story.0.shards.processes[C].kind = Kind::Plain;
        story.moves(&[1], &[]);
        let (service, worker, shards) = (name("s"), name("a"), runs(&[1]));
        story.add(ShardsLetGo { service, worker, shards, overruled: Some(true) });
        match kind {
            Kind::Aware => story.breaks("H3"),
            Kind::Plain | Kind::Deaf => drop(story.holds()),
        }
    }
}
