//! Lease calls: who is served when, repeats, answers that nobody takes, tasks that are not handed out.

use orchestrix_core::wire::Submit;
use orchestrix_core::{Command, Json, Name, TaskCommand, TaskId};
use orchestrix_node::{Answer, Ask, Error, Options};

use crate::common::{World, first_lease, leases, request, submit, tasks};

#[test]
fn long_polls_are_served_in_the_order_in_which_they_came() {
    let mut world = World::new();
    ["first", "second", "third"].into_iter().for_each(|name| world.poll(name, "mail", 5_000));
    assert!(!world.decisions.has_group(), "nobody is answered before there is something to say");
    let commands = vec![submit("mail"), submit("mail")];
    world.ask("submitter", Ask::Batch(commands));
    let (answers, events) = world.commit();
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
    let Command::Task(TaskCommand::Submit { mut task, request }) = submit("mail") else { unreachable!() };
    task.delay_ms = 3_000;
    world.ask("submitter", Ask::Command(Command::Task(TaskCommand::Submit { task, request })));
    world.commit();
    assert_eq!(world.decisions.next_due(), Some(world.now.plus(3_000)));
    world.wait(2_999);
    assert!(!world.decisions.has_group());
    world.wait(1);
    assert_eq!(world.leased(), [("w", vec![1])]);
}

#[test]
fn a_poll_learns_how_long_it_waited_and_never_more() {
    let mut world = World::new();
    world.poll("w", "mail", 60_000);
    world.wait(10_000);
    world.ask("submitter", Ask::Command(submit("mail")));
    let (answers, _) = world.commit();
    let Ok(Answer::Leases { leases, .. }) = &answers[1].1 else { panic!("{answers:?}") };
    assert!((9_000..10_000).contains(&leases.waited_ms), "{}", leases.waited_ms);
}

#[test]
fn an_untaken_lease_is_returned_uncharged() {
    let mut world = World::new();
    world.submit("mail");
    world.poll("gone", "mail", 0);
    let (answers, _) = world.commit();
    world.poll("next", "mail", 5_000);
    world.lost(&answers, "gone");
    let (answers, events) = world.commit();
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
    let (answers, events) = world.commit();
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
fn one_more_poll_than_may_wait_gets_overloaded() {
    let mut world = World::with(Options { polls_max: 2, ..Options::default() });
    ["a", "b", "c"].into_iter().for_each(|name| world.poll(name, "mail", 5_000));
    let (answers, _) = world.commit();
    assert!(matches!(&answers[..], [("c", Err(Error::Overloaded))]), "{answers:?}");
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
    let (answers, events) = world.commit();
    assert!(events.is_empty(), "{events:?}");
    assert_eq!(leases(answers.into_iter().next().unwrap().1), []);
}

#[test]
fn a_task_whose_answers_are_lost_is_never_charged() {
    let mut world = World::new();
    let task = world.submit("mail");
    for _ in 0..50 {
        world.poll("w", "mail", 0);
        let (answers, _) = world.commit();
        world.lost(&answers, "w");
        assert_eq!(world.commit().1, ["LeaseReleased"]);
    }
    let task = world.decisions.state().task(task).unwrap();
    assert_eq!((task.charged, task.releases()), (0, 0));
}

#[test]
fn a_caller_who_left_before_it_was_looked_at_gets_nothing() {
    let mut world = World::new();
    world.submit("mail");
    world.gone.lock().unwrap().insert("gone");
    world.poll("gone", "mail", 0);
    assert!(!world.decisions.has_group());
}

#[test]
fn a_worker_that_has_room_again_is_served_at_once() {
    let mut world = World::new();
    let first = world.submit("mail");
    let mut ask = request("w", "mail", 5_000);
    ask.capacity = Some(1);
    world.ask("w", Ask::Lease(ask.clone()));
    let lease = first_lease(world.commit().0, "w").lease_id;
    ask.queues.push(Name::new("pay").unwrap());
    world.ask("w", Ask::Lease(ask));
    world.submit("pay");
    assert!(!world.decisions.has_group(), "it has as many as it wants");
    world.poll("late", "pay", 5_000);
    assert_eq!(world.leased(), [("late", vec![3])], "and stands in nobody's way");
    world.submit("pay");
    world.ask(
        "w2",
        Ask::Command(Command::Task(TaskCommand::Complete { task: first, lease, worker: None, result: None })),
    );
    assert_eq!(world.leased(), [("w2", vec![]), ("w", vec![5])]);
}

#[test]
fn calls_of_callers_who_left_make_room_for_others() {
    let mut world = World::with(Options { polls_max: 2, ..Options::default() });
    ["a", "b"].into_iter().for_each(|name| world.poll(name, "mail", 5_000));
    world.gone.lock().unwrap().insert("a");
    world.poll("c", "mail", 5_000);
    world.poll("d", "mail", 5_000);
    let (answers, _) = world.commit();
    assert!(matches!(&answers[..], [("d", Err(Error::Overloaded))]), "{answers:?}");
}

#[test]
fn waiting_calls_come_first_when_a_delay_is_over() {
    let mut world = World::new();
    let mut task = Submit::new(Name::new("mail").unwrap(), Json::null());
    task.delay_ms = 1_000;
    world.ask("s", Ask::Command(Command::submit(task)));
    world.poll("patient", "mail", 5_000);
    world.commit();
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
    let (answers, events) = world.commit();
    assert_eq!(events, ["TaskExpired", "LeaseGranted"]);
    assert_eq!(first_lease(answers, "w").task_id, TaskId(2));
}

#[test]
fn ten_thousand_delayed_tasks_delay_no_other() {
    let mut world = World::new();
    let mut task = Submit::new(Name::new("mail").unwrap(), Json::null());
    (task.delay_ms, task.priority) = (3_600_000, 10);
    for _ in 0..10 {
        world.ask("s", Ask::Batch((0..1_000).map(|_| Command::submit(task.clone())).collect()));
        world.commit();
    }
    let ready = world.submit("mail");
    world.poll("w", "mail", 0);
    assert_eq!(world.leased(), [("w", vec![ready.0])]);
    let line = world.decisions.state().queues().next().unwrap();
    assert_eq!((line.ready, line.all.waiting), (0, 10_000), "they are not in the line that is looked at");
}

#[test]
fn a_lease_passes_many_expired_tasks_to_the_first_live_one() {
    let mut world = World::new();
    let mut task = Submit::new(Name::new("mail").unwrap(), Json::null());
    task.ttl_ms = Some(1_000);
    let mut commands: Vec<Command> = (0..700).map(|_| Command::submit(task.clone())).collect();
    commands.push(submit("mail"));
    world.ask("s", Ask::Batch(commands));
    world.commit();
    world.now = world.now.plus(1_000);
    world.poll("w", "mail", 5_000);
    let mut answers = Vec::new();
    for _ in 0..3 {
        world.decisions.tick(world.now);
        answers.extend(world.commit().0);
    }
    assert_eq!(first_lease(answers, "w").task_id, TaskId(701));
}

/// The disk takes longer than the lease is long.
#[test]
fn a_lease_without_a_delivered_answer_costs_no_attempt() {
    let mut world = World::new();
    world.submit("mail");
    world.poll("w", "mail", 0);
    assert_eq!(world.unwritten_turn().1, ["LeaseGranted"]);
    let granted = world.decisions.state().position();
    world.wait(10_101);
    assert_eq!(world.unwritten_turn().1, ["LeaseReleased"]);
    world.decisions.is_durable(granted);
    let attempt = |world: &mut World| {
        world.poll("w", "mail", 0);
        first_lease(world.commit().0, "w").attempt
    };
    assert_eq!(attempt(&mut world), 1, "the first was not charged");
    world.wait(10_101);
    assert_eq!(world.commit().1, ["LeaseExpired"], "one that was heard of is");
    world.wait(1_000);
    assert_eq!(attempt(&mut world), 2);
}
