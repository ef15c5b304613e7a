//! What the loop decides besides: heartbeats, a full disk, what time asks for, how much a turn holds.

use orchestrix_core::limits::{ERROR_BYTES_MAX, PAGE_BYTES_MAX};
use orchestrix_core::wire::Submit;
use orchestrix_core::{
    Command, Filter, Json, LeaseId, Name, Refusal, Retention, TaskCommand, TaskEvent, TaskId,
};
use orchestrix_engine::{Room, Space};
use orchestrix_node::{Answer, Ask, Error, Options};

use crate::common::{World, first_lease, leases, request, submit};

const RESERVE: Space = Space::Short(Room { new_work: 0, in_all: 1 << 20, batch: 1 << 20 });

#[test]
fn a_loop_that_is_asked_nothing_decides_nothing() {
    let mut world = World::new();
    world.submit("q");
    world.poll("w", "q", 0);
    world.submit("q");
    world.commit();
    for _ in 0..9 {
        world.wait(1_000);
        assert!(!world.decisions.has_group(), "nothing is due before the lease of 10 s ends");
    }
}

#[test]
fn a_full_disk_refuses_new_work_and_lets_old_work_end() {
    let mut world = World::new();
    let task = world.submit("mail");
    world.poll("w", "mail", 0);
    let (answers, _) = world.commit();
    let lease = leases(answers.into_iter().next().unwrap().1)[0].lease_id;
    world.decisions.set_space(RESERVE);
    world.ask("submitter", Ask::Command(submit("mail")));
    world.ask("submitter", Ask::Batch(vec![submit("mail")]));
    world.ask(
        "w",
        Ask::Command(Command::Task(TaskCommand::Complete { task, lease, worker: None, result: None })),
    );
    let (answers, events) = world.commit();
    assert_eq!(events, ["TaskCompleted"]);
    assert!(
        matches!(answers[0].1, Err(Error::StorageFull)) && matches!(answers[1].1, Err(Error::StorageFull))
    );
    world.decisions.set_space(Space::Plenty);
    world.submit("mail");
}

#[test]
fn new_work_gets_what_fits_beside_the_reserve() {
    let payload = |bytes: usize| {
        let json = Json::parse(&format!("\"{}\"", "x".repeat(bytes - 2))).unwrap();
        Ask::Command(Command::submit(Submit::new(Name::new("mail").unwrap(), json)))
    };
    // An event has 256 bytes besides.
    for (bytes, fits) in [(10_000 - 256, true), (10_000 - 255, false)] {
        let mut world = World::new();
        world.commit();
        world.decisions.set_space(Space::Short(Room { new_work: 10_000, in_all: 1 << 20, batch: 1_000 }));
        world.ask("s", payload(bytes));
        let (answers, events) = world.commit();
        assert_eq!(answers[0].1.is_ok(), fits, "{bytes}: {answers:?}");
        assert_eq!(events.len(), usize::from(fits));
        if fits {
            // The first is on its way to the disk: nothing is left until that is known.
            world.ask("s", payload(1_000));
            assert!(matches!(world.commit().0[0].1, Err(Error::StorageFull)));
        }
        // Some was refused in either case: that is said until there is plenty.
        assert_eq!(world.stats.space_low.get(), 1);
        world.decisions.set_space(Space::Short(Room { new_work: 500, in_all: 1 << 20, batch: 1_000 }));
        assert_eq!(world.stats.space_low.get(), 1);
        world.decisions.set_space(Space::Plenty);
        assert_eq!(world.stats.space_low.get(), 0);
    }
}

#[test]
fn a_result_larger_than_the_reserve_is_refused() {
    let mut world = World::new();
    let (long, short) = (world.submit("mail"), world.submit("mail"));
    world.poll("w", "mail", 0);
    world.poll("w", "mail", 0);
    let (answers, _) = world.commit();
    let ids: Vec<LeaseId> =
        answers.into_iter().flat_map(|(_, answer)| leases(answer)).map(|l| l.lease_id).collect();
    world.decisions.set_space(Space::Short(Room { new_work: 0, in_all: 10_000, batch: 10_000 }));
    let complete = |task, lease, bytes: usize| {
        let result = Some(Json::parse(&format!("\"{}\"", "x".repeat(bytes - 2))).unwrap());
        Ask::Command(Command::Task(TaskCommand::Complete { task, lease, worker: None, result }))
    };
    world.ask("w", complete(long, ids[0], 10_000 - 255));
    world.ask("w", complete(short, ids[1], 10_000 - 256));
    let (answers, events) = world.commit();
    assert!(matches!(answers[0].1, Err(Error::Overloaded)), "{answers:?}");
    assert_eq!(events, ["TaskCompleted"], "the shorter one ends");
    world.ask(
        "w",
        Ask::Command(Command::Task(TaskCommand::Complete {
            task: long,
            lease: ids[0],
            worker: None,
            result: None,
        })),
    );
    assert_eq!(world.commit().1, ["TaskCompleted"], "what is short is not kept from ending");
}

#[test]
fn a_refusal_travels_in_a_turn_like_any_other_answer() {
    let mut world = World::new();
    world.ask("w", Ask::Command(Command::Task(TaskCommand::Cancel { task: TaskId(9), actor: None })));
    assert!(world.decisions.has_group());
    let (answers, events) = world.commit();
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
    let (answers, _) = world.commit();
    let ids: Vec<LeaseId> =
        leases(answers.into_iter().next().unwrap().1).iter().map(|leased| leased.lease_id).collect();
    world.ask(
        "w",
        Ask::Command(Command::Task(TaskCommand::Complete {
            task: tasks[0],
            lease: ids[0],
            worker: None,
            result: None,
        })),
    );
    world.ask("c", Ask::Command(Command::Task(TaskCommand::Cancel { task: tasks[1], actor: None })));
    world.commit();
    let worker = Name::new("w").unwrap();
    world.ask("w", Ask::HeartbeatAll { worker, leases: vec![ids[2], ids[0], ids[1], LeaseId(77)] });
    let (answers, events) = world.commit();
    assert_eq!(events, ["LeaseExtended"]);
    let Ok(Answer::WorkerExtended(heard)) = &answers[0].1 else { panic!("{answers:?}") };
    assert_eq!(heard.extended, [ids[1], ids[2]]);
    assert_eq!(heard.lost, [ids[0], LeaseId(77)]);
    assert_eq!(heard.cancel, [ids[1]]);
    assert_eq!((heard.lease_ms, heard.lease_ms_each.as_slice()), (10_000, [10_000, 10_000].as_slice()));
}

#[test]
fn a_task_near_its_time_limit_shortens_no_other_lease() {
    let mut world = World::new();
    let mut task = Submit::new(Name::new("mail").unwrap(), Json::null());
    task.timeout_ms = Some(2_000);
    world.ask("s", Ask::Batch(vec![Command::submit(task), submit("mail")]));
    world.commit();
    let mut ask = request("w", "mail", 0);
    ask.max = 2;
    world.ask("w", Ask::Lease(ask));
    let ids: Vec<LeaseId> =
        leases(world.commit().0.into_iter().next().unwrap().1).iter().map(|leased| leased.lease_id).collect();
    world.ask("w", Ask::HeartbeatAll { worker: Name::new("w").unwrap(), leases: ids.clone() });
    let (answers, _) = world.commit();
    let Ok(Answer::WorkerExtended(heard)) = &answers[0].1 else { panic!("{answers:?}") };
    assert_eq!((heard.extended.as_slice(), heard.lease_ms_each[1]), (ids.as_slice(), 10_000));
    assert!(heard.lease_ms_each[0] <= 2_000 && heard.lease_ms == heard.lease_ms_each[0]);
    assert_eq!(heard.timeout_ms_each, [Some(heard.lease_ms_each[0]), None]);
}

#[test]
fn expired_tasks_are_purged_in_small_steps() {
    let retention = Retention { done_ms: 5_000, failed_ms: 5_000, count: 1_000, ..Retention::default() };
    let mut world = World::with(Options { retention, ..Options::default() });
    let commands = (0..1_000).map(|_| submit("mail")).collect();
    world.ask("submitter", Ask::Batch(commands));
    let cancels =
        (1..=1_000).map(|id| Command::Task(TaskCommand::Cancel { task: TaskId(id), actor: None })).collect();
    world.ask("submitter", Ask::Batch(cancels));
    world.commit();
    world.wait(1);
    assert!(world.decisions.next_due().is_some_and(|due| due <= world.now.plus(1_000)));
    world.commit();
    world.wait(10_000);
    let (_, events) = world.commit();
    assert_eq!(events, ["TaskPurged", "TaskPurged"], "500 by one event");
    assert_eq!(world.stats.purged.get(), 1_000);
    world.commit();
    world.wait(1_000);
    assert_eq!(world.decisions.next_due(), None, "a node without tasks sleeps");
}

#[test]
fn excess_ended_tasks_are_purged_as_fast_as_they_end() {
    let retention = Retention { done_ms: 1 << 40, failed_ms: 1 << 40, count: 10, ..Retention::default() };
    let mut world = World::with(Options { retention, ..Options::default() });
    for round in 0..5_u64 {
        world.ask("s", Ask::Batch((0..1_000).map(|_| submit("mail")).collect()));
        let first = world.decisions.state().position().0 - 999;
        let cancels = (first..first + 1_000)
            .map(|id| Command::Task(TaskCommand::Cancel { task: TaskId(id), actor: None }))
            .collect();
        world.ask("s", Ask::Batch(cancels));
        world.wait(1);
        world.commit();
        assert_eq!(world.stats.purged.get(), round * 1_000 + 990);
    }
}

#[test]
fn dead_letters_are_forgotten_while_other_tasks_keep_ending() {
    let retention = Retention { done_ms: 0, failed_ms: 0, count: 1 << 30, ..Retention::default() };
    let mut world = World::with(Options { retention, ..Options::default() });
    world.ask("s", Ask::Batch((0..1_000).map(|_| submit("mail")).collect()));
    let mut ask = request("w", "mail", 0);
    ask.max = 300;
    world.ask("w", Ask::Lease(ask));
    let (answers, _) = world.commit();
    let fails = leases(answers.into_iter().last().unwrap().1).into_iter().map(|leased| {
        Command::Task(TaskCommand::Fail {
            task: leased.task_id,
            lease: leased.lease_id,
            worker: None,
            error: String::new(),
            retry: false,
        })
    });
    world.ask("w", Ask::Batch(fails.collect()));
    let cancels = (301..=1_000)
        .map(|id| Command::Task(TaskCommand::Cancel { task: TaskId(id), actor: None }))
        .collect();
    world.ask("s", Ask::Batch(cancels));
    let retention = Command::Task(TaskCommand::Purge(retention));
    let decision = world.decisions.state().decide(&retention, world.now.plus(1)).unwrap();
    let orchestrix_core::Decision::Event(orchestrix_core::Event::Task(TaskEvent::TaskPurged(event))) =
        decision
    else {
        panic!("{decision:?}")
    };
    let failed = event.tasks.iter().filter(|purge| purge.task.0 <= 300).count();
    assert_eq!((event.tasks.len(), failed), (500, 250));
}

/// The first lease of the answer to a name.

#[test]
fn a_worker_gets_the_limit_that_comes_first() {
    let mut world = World::new();
    let mut task = Submit::new(Name::new("mail").unwrap(), Json::null());
    task.timeout_ms = Some(5_051);
    world.ask("s", Ask::Command(Command::submit(task)));
    world.poll("w", "mail", 0);
    let leased = first_lease(world.commit().0.split_off(1), "w");
    assert_eq!(leased.lease_ms, 5_000, "1 % and a millisecond less than the time limit");
    world.wait(3_031);
    let heartbeat = Command::Task(TaskCommand::Heartbeat {
        task: leased.task_id,
        lease: leased.lease_id,
        worker: None,
        progress: None,
        note: None,
    });
    world.ask("w", Ask::Heartbeat(heartbeat));
    let (answers, _) = world.commit();
    let Ok(Answer::Extended(extended)) = &answers[0].1 else { panic!("{answers:?}") };
    assert_eq!(extended.lease_ms, 1_999);
}

#[test]
fn a_repeat_needs_no_room_on_the_disk() {
    let mut world = World::new();
    let mut task = Submit::new(Name::new("mail").unwrap(), Json::null());
    task.key = Some(orchestrix_core::Key::new("k").unwrap());
    world.ask("s", Ask::Command(Command::submit(task.clone())));
    world.commit();
    world.decisions.set_space(RESERVE);
    world.ask("s", Ask::Command(Command::submit(task)));
    let (answers, _) = world.commit();
    assert!(matches!(answers[0].1, Ok(Answer::Outcome { .. })), "{answers:?}");
}

#[test]
fn a_page_of_tasks_with_long_errors_is_short() {
    let mut world = World::new();
    let in_a_page = PAGE_BYTES_MAX / ERROR_BYTES_MAX;
    let mut ids = Vec::new();
    for _ in 0..=in_a_page {
        let task = world.submit("mail");
        world.poll("w", "mail", 0);
        let lease = leases(world.commit().0.remove(0).1)[0].lease_id;
        let error = "e".repeat(ERROR_BYTES_MAX);
        world.ask(
            "w",
            Ask::Command(Command::Task(TaskCommand::Fail { task, lease, worker: None, error, retry: false })),
        );
        world.commit();
        ids.push(task);
    }
    let mut page = |after| {
        world.ask("reader", Ask::Tasks { filter: Filter::default(), after, limit: 1_000 });
        match world.commit().0.remove(0).1 {
            Ok(Answer::Tasks { tasks, next }) => (tasks.iter().map(|task| task.id).collect::<Vec<_>>(), next),
            other => panic!("{other:?}"),
        }
    };
    let (first, next) = page(None);
    assert!(
        (in_a_page - 1..=in_a_page).contains(&first.len()),
        "{} tasks of {ERROR_BYTES_MAX} bytes",
        first.len()
    );
    assert_eq!(next, first.last().copied());
    let (rest, next) = page(next);
    assert_eq!((next, [first, rest].concat()), (None, ids));
}

#[test]
fn keys_beyond_the_limit_are_forgotten_and_counted() {
    let retention = Retention { done_ms: 0, keys: 2, ..Retention::default() };
    let mut world = World::with(Options { retention, ..Options::default() });
    let submit = |world: &mut World, key: &str| {
        let mut task = Submit::new(Name::new("mail").unwrap(), Json::null());
        task.key = Some(orchestrix_core::Key::new(key).unwrap());
        world.ask("s", Ask::Command(Command::submit(task)));
        match world.commit().0.remove(0).1 {
            Ok(Answer::Outcome { outcome, .. }) => outcome.id,
            other => panic!("{other:?}"),
        }
    };
    let mut ids = Vec::new();
    for key in ["a", "b", "c"] {
        let task = submit(&mut world, key);
        world.ask("s", Ask::Command(Command::Task(TaskCommand::Cancel { task, actor: None })));
        world.commit();
        world.wait(2_000);
        world.commit();
        ids.push(task);
    }
    let stats = &world.stats;
    let counts = (stats.purged.get(), stats.keys_remembered.get(), stats.keys_forgotten_early.get());
    assert_eq!(counts, (3, 2, 1));
    assert_eq!((submit(&mut world, "b"), submit(&mut world, "c")), (ids[1], ids[2]));
    assert!(submit(&mut world, "a") > ids[2], "the first that was purged is forgotten");
}

#[test]
fn a_repeat_after_the_purge_hears_how_its_task_ended() {
    let retention = Retention { done_ms: 0, ..Retention::default() };
    let mut world = World::with(Options { retention, ..Options::default() });
    let mut task = Submit::new(Name::new("mail").unwrap(), Json::null());
    task.key = Some(orchestrix_core::Key::new("k").unwrap());
    world.ask("s", Ask::Command(Command::submit(task.clone())));
    world.poll("w", "mail", 0);
    let (answers, _) = world.commit();
    let leased = leases(answers.into_iter().nth(1).unwrap().1).remove(0);
    let (task_id, lease) = (leased.task_id, leased.lease_id);
    let complete = Command::Task(TaskCommand::Complete { task: task_id, lease, worker: None, result: None });
    world.ask("w", Ask::Command(complete));
    world.commit();
    world.wait(2_000);
    world.commit();
    assert_eq!((world.stats.purged.get(), world.stats.keys_remembered.get()), (1, 1));
    world.ask("s", Ask::Command(Command::submit(task)));
    world.ask("s", Ask::Task(task_id));
    let (answers, events) = world.commit();
    assert!(events.is_empty());
    let Ok(Answer::Outcome { outcome, .. }) = &answers[0].1 else { panic!("{answers:?}") };
    assert_eq!((outcome.id, outcome.state), (task_id, orchestrix_core::TaskState::Completed));
    let Err(Error::Refused(refusal)) = &answers[1].1 else { panic!("{answers:?}") };
    assert!(refusal.to_string().contains("it ended and was purged"), "{refusal}");
}

#[test]
fn a_turn_holds_so_many_answers_and_then_it_is_full() {
    let mut world = World::new();
    let id = world.submit("mail");
    for _ in 0..8_191 {
        world.ask("c", Ask::Task(id));
    }
    assert!(!world.decisions.is_full());
    world.ask("c", Ask::Task(id));
    assert!(world.decisions.is_full());
    world.commit();
    assert!(!world.decisions.is_full());
}

#[test]
fn a_turn_holds_so_many_events_and_then_it_is_full() {
    let mut world = World::new();
    world.ask("c", Ask::Batch(vec![submit("mail"); 1_023]));
    assert!(!world.decisions.is_full());
    world.ask("c", Ask::Command(submit("mail")));
    assert!(world.decisions.is_full());
    world.commit();
    assert!(!world.decisions.is_full());
}

#[test]
fn a_turn_holds_so_many_bytes_and_then_it_is_full() {
    let bytes = 4 << 20;
    let with = |letters: usize| {
        let payload = Json::parse(&format!("\"{}\"", "x".repeat(letters))).unwrap();
        Ask::Command(Command::submit(Submit::new(Name::new("mail").unwrap(), payload)))
    };
    let mut world = World::new();
    world.ask("c", with(1 << 16));
    let around = world.decisions.take_group().records.len() - (1 << 16);
    for (letters, full) in [(bytes - 1 - around, false), (bytes - around, true)] {
        world.ask("c", with(letters));
        assert_eq!(world.decisions.is_full(), full, "{letters} letters");
        assert_eq!(world.decisions.take_group().records.len(), letters + around);
    }
}

#[test]
fn an_explanation_names_the_reason() {
    let mut world = World::new();
    let (first, second) = (world.submit("mail"), world.submit("mail"));
    let code = |world: &mut World, id| {
        world.ask("c", Ask::Explain(id));
        let (answers, _) = world.commit();
        let Ok(Answer::Explanation(explanation)) = &answers[0].1 else { panic!("{answers:?}") };
        explanation.code.clone()
    };
    assert_eq!(code(&mut world, second), "no_worker");
    world.poll("w", "mail", 0);
    let (answers, _) = world.commit();
    let lease = leases(answers.into_iter().next().unwrap().1)[0].lease_id;
    assert_eq!(code(&mut world, first), "leased_by");
    assert_eq!(code(&mut world, second), "behind_n");
    world.ask("c", Ask::Command(Command::Task(TaskCommand::Cancel { task: first, actor: None })));
    world.commit();
    assert_eq!(code(&mut world, first), "cancel_requested");
    world.ask("w", Ask::Command(Command::Task(TaskCommand::Release { task: first, lease, worker: None })));
    world.commit();
    assert_eq!(code(&mut world, first), "finished");
}
