//! The decision loop without threads: the clock is a number, and callers are names.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use orchestrix_core::wire::{LeaseQueues, Leased, Leases, Submit};
use orchestrix_core::{Command, Json, LeaseId, Name, Records, Refusal, State, TaskId, Timestamp};
use orchestrix_engine::Space;
use orchestrix_node::{Answer, Ask, DecisionLoop, Error, Options, Recipient, Stats};

/// A caller who can leave.
#[derive(Clone)]
struct Caller {
    name: &'static str,
    gone: Arc<Mutex<BTreeSet<&'static str>>>,
}

impl Recipient for Caller {
    fn is_gone(&self) -> bool {
        self.gone.lock().unwrap().contains(self.name)
    }

    fn send(self, answer: Result<Answer, Error>) -> Result<(), Result<Answer, Error>> {
        if self.is_gone() { Err(answer) } else { Ok(()) }
    }
}

/// Who was answered, and what.
type Answered = (&'static str, Result<Answer, Error>);

struct World {
    desk: DecisionLoop<Caller>,
    stats: Arc<Stats>,
    now: Timestamp,
    gone: Arc<Mutex<BTreeSet<&'static str>>>,
}

impl World {
    fn new() -> Self {
        Self::with(Options::default())
    }

    fn with(options: Options) -> Self {
        let stats = Arc::new(Stats::default());
        let desk = DecisionLoop::new(State::new(), options, Arc::clone(&stats));
        Self { desk, stats, now: Timestamp(1_000_000), gone: Arc::default() }
    }

    fn ask(&mut self, name: &'static str, ask: Ask) {
        let caller = Caller { name, gone: Arc::clone(&self.gone) };
        self.desk.ask(ask, caller, self.now);
    }

    fn submit(&mut self, queue: &str) -> TaskId {
        self.ask("submitter", Ask::Command(submit(queue)));
        let (answers, _) = self.turn();
        let submitted = answers.into_iter().find(|(name, _)| *name == "submitter");
        match submitted.expect("a submit is answered").1 {
            Ok(Answer::Outcome { outcome, .. }) => outcome.id,
            other => panic!("{other:?}"),
        }
    }

    fn poll(&mut self, name: &'static str, queue: &str, wait_ms: u64) {
        self.ask(name, Ask::Lease(request(name, queue, wait_ms)));
    }

    fn wait(&mut self, millis: u64) {
        self.now = self.now.plus(millis);
        self.desk.tick(self.now);
    }

    /// What comes of the last questions: the answers, and the names of the events that are written first.
    fn turn(&mut self) -> (Vec<Answered>, Vec<&'static str>) {
        let turn = self.desk.take_turn();
        let events = Records::new(&turn.records).map(|record| record.unwrap().1.name()).collect();
        (turn.replies.into_iter().map(|(caller, answer)| (caller.name, answer)).collect(), events)
    }

    /// Who was answered with leases, and which tasks.
    fn leased(&mut self) -> Vec<(&'static str, Vec<u64>)> {
        let (answers, _) = self.turn();
        answers.into_iter().map(|(name, answer)| (name, tasks(&leases(answer)))).collect()
    }
}

fn submit(queue: &str) -> Command {
    Command::submit(Submit::new(Name::new(queue).unwrap(), Json::parse("1").unwrap()))
}

fn request(worker: &str, queue: &str, wait_ms: u64) -> LeaseQueues {
    LeaseQueues {
        queues: vec![Name::new(queue).unwrap()],
        worker: Name::new(worker).unwrap(),
        max: 1,
        lease_ms: 10_000,
        wait_ms,
        request_id: None,
        capacity: None,
    }
}

fn leases(answer: Result<Answer, Error>) -> Vec<Leased> {
    match answer {
        Ok(Answer::Leases(Leases { leases, .. })) => leases,
        Ok(Answer::Outcome { .. }) => Vec::new(),
        other => panic!("{other:?}"),
    }
}

fn tasks(leases: &[Leased]) -> Vec<u64> {
    leases.iter().map(|leased| leased.task_id.0).collect()
}

#[test]
fn a_loop_that_is_asked_nothing_decides_nothing() {
    let mut world = World::new();
    world.submit("q");
    world.poll("w", "q", 0);
    world.submit("q");
    world.turn();
    for _ in 0..9 {
        world.wait(1_000);
        assert!(!world.desk.has_turn(), "nothing is due before the lease of 10 s ends");
    }
}

#[test]
fn long_polls_are_served_in_the_order_in_which_they_came() {
    let mut world = World::new();
    ["first", "second", "third"].into_iter().for_each(|name| world.poll(name, "mail", 5_000));
    assert!(!world.desk.has_turn(), "nobody is answered before there is something to say");
    let commands = vec![submit("mail"), submit("mail")];
    world.ask("submitter", Ask::Batch(commands));
    let (answers, events) = world.turn();
    assert_eq!(events, ["TaskCreated", "TaskCreated", "LeaseGranted", "LeaseGranted"]);
    let names: Vec<_> = answers.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["submitter", "first", "second"]);
    world.wait(5_000);
    assert_eq!(world.leased(), [("third", vec![])]);
}

#[test]
fn a_poll_whose_caller_left_takes_nothing() {
    let mut world = World::new();
    world.poll("gone", "mail", 5_000);
    world.poll("patient", "mail", 5_000);
    world.gone.lock().unwrap().insert("gone");
    world.ask("submitter", Ask::Command(submit("mail")));
    assert_eq!(world.leased(), [("submitter", vec![]), ("patient", vec![1])]);
}

#[test]
fn a_delayed_task_wakes_a_poll_when_its_time_comes() {
    let mut world = World::new();
    world.poll("w", "mail", 60_000);
    let Command::Submit { mut task, request } = submit("mail") else { unreachable!() };
    task.delay_ms = 3_000;
    world.ask("submitter", Ask::Command(Command::Submit { task, request }));
    world.turn();
    assert_eq!(world.desk.next_due(), Some(world.now.plus(3_000)));
    world.wait(2_999);
    assert!(!world.desk.has_turn());
    world.wait(1);
    assert_eq!(world.leased(), [("w", vec![1])]);
}

#[test]
fn a_poll_is_told_how_long_it_waited_and_never_more() {
    let mut world = World::new();
    world.poll("w", "mail", 60_000);
    world.wait(10_000);
    world.ask("submitter", Ask::Command(submit("mail")));
    let (answers, _) = world.turn();
    let Ok(Answer::Leases(leases)) = &answers[1].1 else { panic!("{answers:?}") };
    assert!((9_000..10_000).contains(&leases.waited_ms), "{}", leases.waited_ms);
}

#[test]
fn a_lease_that_nobody_took_is_given_back_uncharged_and_served_to_the_next() {
    let mut world = World::new();
    let task = world.submit("mail");
    world.poll("gone", "mail", 0);
    let (answers, _) = world.turn();
    let lease = leases(answers.into_iter().next().unwrap().1)[0].lease_id;
    world.poll("next", "mail", 5_000);
    world.desk.abandon(&[(task, lease)], world.now);
    let (answers, events) = world.turn();
    assert_eq!(events, ["LeaseReleased", "LeaseGranted"]);
    let [(name, answer)] = answers.try_into().unwrap();
    assert_eq!((name, leases(answer)[0].attempt), ("next", 1));
    assert_eq!(world.stats.abandoned.get(), 1);
}

#[test]
fn the_same_request_gets_the_same_leases_prolonged() {
    let mut world = World::new();
    world.submit("mail");
    world.submit("mail");
    let mut ask = request("w", "mail", 0);
    ask.request_id = Some(Name::new("r-1").unwrap());
    world.ask("w", Ask::Lease(ask.clone()));
    assert_eq!(world.leased(), [("w", vec![1])]);
    world.wait(9_000);
    world.ask("w", Ask::Lease(ask.clone()));
    let (answers, events) = world.turn();
    assert_eq!(events, ["LeaseExtended"]);
    assert_eq!(tasks(&leases(answers.into_iter().next().unwrap().1)), [1]);
    ask.request_id = Some(Name::new("r-2").unwrap());
    world.ask("w", Ask::Lease(ask));
    assert_eq!(world.leased(), [("w", vec![2])]);
}

#[test]
fn a_repeat_of_a_waiting_request_takes_its_place() {
    let mut world = World::new();
    let mut ask = request("w", "mail", 5_000);
    ask.request_id = Some(Name::new("r-1").unwrap());
    world.ask("lost connection", Ask::Lease(ask.clone()));
    world.ask("new connection", Ask::Lease(ask));
    assert_eq!(world.leased(), [("lost connection", vec![])]);
    world.ask("submitter", Ask::Command(submit("mail")));
    assert_eq!(world.leased(), [("submitter", vec![]), ("new connection", vec![1])]);
}

#[test]
fn one_more_poll_than_may_wait_is_told_to_come_back() {
    let mut world = World::with(Options { polls_max: 2, ..Options::default() });
    ["a", "b", "c"].into_iter().for_each(|name| world.poll(name, "mail", 5_000));
    let (answers, _) = world.turn();
    assert!(matches!(&answers[..], [("c", Err(Error::Overloaded))]), "{answers:?}");
}

#[test]
fn a_full_disk_refuses_new_work_and_lets_old_work_end() {
    let mut world = World::new();
    let task = world.submit("mail");
    world.poll("w", "mail", 0);
    let (answers, _) = world.turn();
    let lease = leases(answers.into_iter().next().unwrap().1)[0].lease_id;
    world.desk.set_space(Space::Reserve);
    world.ask("submitter", Ask::Command(submit("mail")));
    world.ask("submitter", Ask::Batch(vec![submit("mail")]));
    world.ask("w", Ask::Command(Command::Complete { task, lease, worker: None, result: None }));
    let (answers, events) = world.turn();
    assert_eq!(events, ["TaskCompleted"]);
    assert!(
        matches!(answers[0].1, Err(Error::StorageFull)) && matches!(answers[1].1, Err(Error::StorageFull))
    );
    world.desk.set_space(Space::Plenty);
    world.submit("mail");
}

#[test]
fn a_refusal_travels_in_a_turn_like_any_other_answer() {
    let mut world = World::new();
    world.ask("w", Ask::Command(Command::Cancel { task: TaskId(9) }));
    assert!(world.desk.has_turn());
    let (answers, events) = world.turn();
    assert!(events.is_empty());
    assert!(matches!(answers[0].1, Err(Error::Refused(Refusal::NotFound(TaskId(9))))));
}

#[test]
fn a_worker_hears_what_it_keeps_what_it_lost_and_what_to_stop() {
    let mut world = World::new();
    let tasks: Vec<TaskId> = (0..3).map(|_| world.submit("mail")).collect();
    let mut ask = request("w", "mail", 0);
    ask.max = 3;
    world.ask("w", Ask::Lease(ask));
    let (answers, _) = world.turn();
    let ids: Vec<LeaseId> =
        leases(answers.into_iter().next().unwrap().1).iter().map(|leased| leased.lease_id).collect();
    world.ask(
        "w",
        Ask::Command(Command::Complete { task: tasks[0], lease: ids[0], worker: None, result: None }),
    );
    world.ask("c", Ask::Command(Command::Cancel { task: tasks[1] }));
    world.turn();
    let worker = Name::new("w").unwrap();
    world.ask(
        "w",
        Ask::HeartbeatAll { worker, leases: vec![ids[2], ids[0], ids[1], LeaseId(77)], within: None },
    );
    let (answers, events) = world.turn();
    assert_eq!(events, ["LeaseExtended"]);
    let Ok(Answer::WorkerExtended(heard)) = &answers[0].1 else { panic!("{answers:?}") };
    assert_eq!(heard.extended, [ids[1], ids[2]]);
    assert_eq!(heard.lost, [ids[0], LeaseId(77)]);
    assert_eq!(heard.cancel, [ids[1]]);
    assert_eq!(heard.lease_ms, 10_000);
}

#[test]
fn what_ends_by_time_is_due_and_purged_a_little_at_a_time() {
    let retention = orchestrix_core::Retention { done_ms: 5_000, failed_ms: 5_000, count: 1_000 };
    let mut world = World::with(Options { retention, ..Options::default() });
    let commands = (0..1_000).map(|_| submit("mail")).collect();
    world.ask("submitter", Ask::Batch(commands));
    let cancels = (1..=1_000).map(|id| Command::Cancel { task: TaskId(id) }).collect();
    world.ask("submitter", Ask::Batch(cancels));
    world.turn();
    world.wait(1);
    assert!(world.desk.next_due().is_some_and(|due| due <= world.now.plus(1_000)));
    world.turn();
    world.wait(10_000);
    let (_, events) = world.turn();
    assert_eq!(events, ["TaskPurged"]);
    assert_eq!(world.stats.purged.get(), 500);
    world.wait(1_000);
    assert_eq!(world.stats.purged.get(), 1_000);
    world.turn();
    world.wait(1_000);
    assert_eq!(world.desk.next_due(), None, "a node without tasks sleeps");
}

#[test]
fn an_explanation_names_the_reason() {
    let mut world = World::new();
    let (first, second) = (world.submit("mail"), world.submit("mail"));
    let code = |world: &mut World, id| {
        world.ask("c", Ask::Explain(id));
        let (answers, _) = world.turn();
        let Ok(Answer::Explanation(explanation)) = &answers[0].1 else { panic!("{answers:?}") };
        explanation.code.clone()
    };
    assert_eq!(code(&mut world, second), "no_worker");
    world.poll("w", "mail", 0);
    let (answers, _) = world.turn();
    let lease = leases(answers.into_iter().next().unwrap().1)[0].lease_id;
    assert_eq!(code(&mut world, first), "leased_by");
    assert_eq!(code(&mut world, second), "behind_n");
    world.ask("c", Ask::Command(Command::Cancel { task: first }));
    world.turn();
    assert_eq!(code(&mut world, first), "cancel_requested");
    world.ask("w", Ask::Command(Command::Release { task: first, lease, worker: None }));
    world.turn();
    assert_eq!(code(&mut world, first), "finished");
}
