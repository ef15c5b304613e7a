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
    world.desk.abandon(&[(task, lease)], world.desk.state().position(), world.now);
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
    assert_eq!((heard.lease_ms, heard.lease_ms_each.as_slice()), (10_000, [10_000, 10_000].as_slice()));
}

#[test]
fn a_task_near_its_time_limit_does_not_shorten_the_other_leases_of_its_worker() {
    let mut world = World::new();
    let mut task = Submit::new(Name::new("mail").unwrap(), Json::null());
    task.timeout_ms = Some(2_000);
    world.ask("s", Ask::Batch(vec![Command::submit(task), submit("mail")]));
    world.turn();
    let mut ask = request("w", "mail", 0);
    ask.max = 2;
    world.ask("w", Ask::Lease(ask));
    let ids: Vec<LeaseId> =
        leases(world.turn().0.into_iter().next().unwrap().1).iter().map(|leased| leased.lease_id).collect();
    world.ask("w", Ask::HeartbeatAll { worker: Name::new("w").unwrap(), leases: ids.clone(), within: None });
    let (answers, _) = world.turn();
    let Ok(Answer::WorkerExtended(heard)) = &answers[0].1 else { panic!("{answers:?}") };
    assert_eq!((heard.extended.as_slice(), heard.lease_ms_each[1]), (ids.as_slice(), 10_000));
    assert!(heard.lease_ms_each[0] <= 2_000 && heard.lease_ms == heard.lease_ms_each[0]);
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
    assert_eq!(events, ["TaskPurged", "TaskPurged"], "500 by one event");
    assert_eq!(world.stats.purged.get(), 1_000);
    world.turn();
    world.wait(1_000);
    assert_eq!(world.desk.next_due(), None, "a node without tasks sleeps");
}

#[test]
fn what_is_kept_too_long_is_forgotten_as_fast_as_it_comes() {
    let retention = orchestrix_core::Retention { done_ms: 1 << 40, failed_ms: 1 << 40, count: 10 };
    let mut world = World::with(Options { retention, ..Options::default() });
    for round in 0..5_u64 {
        world.ask("s", Ask::Batch((0..1_000).map(|_| submit("mail")).collect()));
        let first = world.desk.state().position().0 - 999;
        let cancels = (first..first + 1_000).map(|id| Command::Cancel { task: TaskId(id) }).collect();
        world.ask("s", Ask::Batch(cancels));
        world.wait(1);
        world.turn();
        assert_eq!(world.stats.purged.get(), round * 1_000 + 990);
    }
}

#[test]
fn dead_letters_are_forgotten_while_other_tasks_keep_ending() {
    let retention = orchestrix_core::Retention { done_ms: 0, failed_ms: 0, count: 1 << 30 };
    let mut world = World::with(Options { retention, ..Options::default() });
    world.ask("s", Ask::Batch((0..1_000).map(|_| submit("mail")).collect()));
    let mut ask = request("w", "mail", 0);
    ask.max = 300;
    world.ask("w", Ask::Lease(ask));
    let (answers, _) = world.turn();
    let fails = leases(answers.into_iter().last().unwrap().1).into_iter().map(|leased| Command::Fail {
        task: leased.task_id,
        lease: leased.lease_id,
        worker: None,
        error: String::new(),
        retry: false,
    });
    world.ask("w", Ask::Batch(fails.collect()));
    let cancels = (301..=1_000).map(|id| Command::Cancel { task: TaskId(id) }).collect();
    world.ask("s", Ask::Batch(cancels));
    let retention = Command::Purge(retention);
    let decision = world.desk.state().decide(&retention, world.now.plus(1)).unwrap();
    let orchestrix_core::Decision::Event(orchestrix_core::Event::TaskPurged(event)) = decision else {
        panic!("{decision:?}")
    };
    let failed = event.tasks.iter().filter(|purge| purge.task.0 <= 300).count();
    assert_eq!((event.tasks.len(), failed), (500, 250));
}

/// The first lease of the answer to a name.
fn first_lease(answers: Vec<Answered>, name: &str) -> Leased {
    let answer = answers.into_iter().find(|(answered, _)| *answered == name).unwrap().1;
    leases(answer).remove(0)
}

#[test]
fn a_lease_that_a_repeat_was_given_is_not_taken_back_for_the_lost_answer() {
    let mut world = World::new();
    let task = world.submit("mail");
    let mut ask = request("w", "mail", 0);
    ask.request_id = Some(Name::new("r-1").unwrap());
    world.ask("lost connection", Ask::Lease(ask.clone()));
    let lease = first_lease(world.turn().0, "lost connection").lease_id;
    let durable = world.desk.state().position();
    world.ask("new connection", Ask::Lease(ask));
    world.desk.abandon(&[(task, lease)], durable, world.now);
    let (answers, events) = world.turn();
    assert_eq!(events, ["LeaseExtended"], "the repeat has it");
    assert_eq!(first_lease(answers, "new connection").lease_id, lease);
    world.desk.abandon(&[(task, lease)], world.desk.state().position(), world.now);
    assert_eq!(world.turn().1, ["LeaseReleased"], "nobody has it");
}

#[test]
fn a_repeat_gets_only_tasks_of_the_queues_that_it_asks() {
    let mut world = World::new();
    world.submit("pay");
    let mut ask = request("w", "pay", 0);
    ask.request_id = Some(Name::new("r-1").unwrap());
    world.ask("w", Ask::Lease(ask.clone()));
    assert_eq!(world.leased(), [("w", vec![1])]);
    ask.queues = vec![Name::new("mail").unwrap()];
    world.ask("other", Ask::Lease(ask));
    let (answers, events) = world.turn();
    assert!(events.is_empty(), "{events:?}");
    assert_eq!(leases(answers.into_iter().next().unwrap().1), []);
}

#[test]
fn a_task_whose_answers_are_lost_is_never_charged() {
    let mut world = World::new();
    let task = world.submit("mail");
    for _ in 0..50 {
        world.poll("w", "mail", 0);
        let lease = first_lease(world.turn().0, "w").lease_id;
        world.desk.abandon(&[(task, lease)], world.desk.state().position(), world.now);
        assert_eq!(world.turn().1, ["LeaseReleased"]);
    }
    let task = world.desk.state().task(task).unwrap();
    assert_eq!((task.charged, task.releases()), (0, 0));
}

#[test]
fn a_caller_who_left_before_it_was_looked_at_gets_nothing() {
    let mut world = World::new();
    world.submit("mail");
    world.gone.lock().unwrap().insert("gone");
    world.poll("gone", "mail", 0);
    assert!(!world.desk.has_turn());
}

#[test]
fn a_worker_is_told_the_limit_that_comes_first() {
    let mut world = World::new();
    let mut task = Submit::new(Name::new("mail").unwrap(), Json::null());
    task.timeout_ms = Some(5_051);
    world.ask("s", Ask::Command(Command::submit(task)));
    world.poll("w", "mail", 0);
    let leased = first_lease(world.turn().0.split_off(1), "w");
    assert_eq!(leased.lease_ms, 5_000, "1 % and a millisecond less than the time limit");
    world.wait(3_031);
    let heartbeat = Command::Heartbeat {
        task: leased.task_id,
        lease: leased.lease_id,
        worker: None,
        progress: None,
        note: None,
    };
    world.ask("w", Ask::Heartbeat(heartbeat));
    let (answers, _) = world.turn();
    let Ok(Answer::Extended(extended)) = &answers[0].1 else { panic!("{answers:?}") };
    assert_eq!(extended.lease_ms, 1_999);
}

#[test]
fn a_worker_that_has_room_again_is_served_at_once() {
    let mut world = World::new();
    let first = world.submit("mail");
    let mut ask = request("w", "mail", 5_000);
    ask.capacity = Some(1);
    world.ask("w", Ask::Lease(ask.clone()));
    let lease = first_lease(world.turn().0, "w").lease_id;
    ask.queues.push(Name::new("pay").unwrap());
    world.ask("w", Ask::Lease(ask));
    world.submit("pay");
    assert!(!world.desk.has_turn(), "it has as many as it wants");
    world.poll("late", "pay", 5_000);
    assert_eq!(world.leased(), [("late", vec![3])], "and stands in nobody's way");
    world.submit("pay");
    world.ask("w2", Ask::Command(Command::Complete { task: first, lease, worker: None, result: None }));
    assert_eq!(world.leased(), [("w2", vec![]), ("w", vec![5])]);
}

#[test]
fn calls_of_callers_who_left_make_room_for_others() {
    let mut world = World::with(Options { polls_max: 2, ..Options::default() });
    ["a", "b"].into_iter().for_each(|name| world.poll(name, "mail", 5_000));
    world.gone.lock().unwrap().insert("a");
    world.poll("c", "mail", 5_000);
    world.poll("d", "mail", 5_000);
    let (answers, _) = world.turn();
    assert!(matches!(&answers[..], [("d", Err(Error::Overloaded))]), "{answers:?}");
}

#[test]
fn those_who_wait_come_before_those_who_ask_when_a_delay_is_over() {
    let mut world = World::new();
    let mut task = Submit::new(Name::new("mail").unwrap(), Json::null());
    task.delay_ms = 1_000;
    world.ask("s", Ask::Command(Command::submit(task)));
    world.poll("patient", "mail", 5_000);
    world.turn();
    world.now = world.now.plus(1_000);
    world.poll("newcomer", "mail", 0);
    assert_eq!(world.leased(), [("patient", vec![1]), ("newcomer", vec![])]);
}

#[test]
fn a_task_that_has_outlived_its_ttl_is_not_handed_out() {
    let mut world = World::new();
    let mut task = Submit::new(Name::new("mail").unwrap(), Json::null());
    task.ttl_ms = Some(1_000);
    world.ask("s", Ask::Command(Command::submit(task)));
    world.submit("mail");
    world.now = world.now.plus(1_000);
    world.poll("w", "mail", 0);
    let (answers, events) = world.turn();
    assert_eq!(events, ["TaskExpired", "LeaseGranted"]);
    assert_eq!(first_lease(answers, "w").task_id, TaskId(2));
}

#[test]
fn ten_thousand_delayed_tasks_stand_in_nobodys_way() {
    let mut world = World::new();
    let mut task = Submit::new(Name::new("mail").unwrap(), Json::null());
    (task.delay_ms, task.priority) = (3_600_000, 10);
    for _ in 0..10 {
        world.ask("s", Ask::Batch((0..1_000).map(|_| Command::submit(task.clone())).collect()));
        world.turn();
    }
    let ready = world.submit("mail");
    world.poll("w", "mail", 0);
    assert_eq!(world.leased(), [("w", vec![ready.0])]);
    let line = world.desk.state().queues().next().unwrap();
    assert_eq!((line.ready, line.all.waiting), (0, 10_000), "they are not in the line that is looked at");
}

#[test]
fn a_call_that_waits_behind_many_expired_tasks_gets_the_first_live_one() {
    let mut world = World::new();
    let mut task = Submit::new(Name::new("mail").unwrap(), Json::null());
    task.ttl_ms = Some(1_000);
    let mut commands: Vec<Command> = (0..700).map(|_| Command::submit(task.clone())).collect();
    commands.push(submit("mail"));
    world.ask("s", Ask::Batch(commands));
    world.turn();
    world.now = world.now.plus(1_000);
    world.poll("w", "mail", 5_000);
    let mut answers = Vec::new();
    for _ in 0..3 {
        world.desk.tick(world.now);
        answers.extend(world.turn().0);
    }
    assert_eq!(first_lease(answers, "w").task_id, TaskId(701));
}

#[test]
fn a_repeat_needs_no_room_on_the_disk() {
    let mut world = World::new();
    let mut task = Submit::new(Name::new("mail").unwrap(), Json::null());
    task.key = Some(orchestrix_core::Key::new("k").unwrap());
    world.ask("s", Ask::Command(Command::submit(task.clone())));
    world.turn();
    world.desk.set_space(Space::Reserve);
    world.ask("s", Ask::Command(Command::submit(task)));
    let (answers, _) = world.turn();
    assert!(matches!(answers[0].1, Ok(Answer::Outcome { .. })), "{answers:?}");
}

#[test]
fn a_turn_holds_so_many_answers_and_then_it_is_full() {
    let mut world = World::new();
    let id = world.submit("mail");
    for _ in 0..8_191 {
        world.ask("c", Ask::Task(id));
    }
    assert!(!world.desk.is_full());
    world.ask("c", Ask::Task(id));
    assert!(world.desk.is_full());
    world.turn();
    assert!(!world.desk.is_full());
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
