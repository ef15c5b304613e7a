//! Lease calls at the beginning of a term under a leader lease: some at a time, in their order.

use orchestrix_node::{Answer, Ask, Error, Options};

use crate::common::{World, leases, request, submit, tasks};

/// Calls that a window of 100 ms takes.
const WINDOW: usize = 200;

/// A term that has just begun, with more tasks than anybody asks for here.
fn begun(options: Options) -> World {
    let mut world = World::with(options);
    for _ in 0..2 * WINDOW + 10 {
        world.submit("mail");
    }
    world.decisions.admit_slowly(world.now);
    world
}

fn ask(world: &mut World, name: &'static str, wait_ms: u64, calls: usize) {
    for _ in 0..calls {
        world.poll(name, "mail", wait_ms);
    }
}

/// Who was answered, with how many tasks in all.
fn answered(world: &mut World) -> Vec<(&'static str, usize)> {
    let mut all: Vec<(&'static str, usize)> = Vec::new();
    for (name, tasks) in world.leased() {
        match all.last_mut().filter(|(last, _)| *last == name) {
            Some((_, count)) => *count += tasks.len(),
            None => all.push((name, tasks.len())),
        }
    }
    all
}

#[test]
fn a_call_beyond_the_window_waits_for_the_next_one() {
    let mut world = begun(Options::default());
    ask(&mut world, "w", 5_000, WINDOW);
    ask(&mut world, "late", 5_000, 1);
    assert_eq!(answered(&mut world), [("w", WINDOW)]);
    assert_eq!(world.decisions.next_due(), Some(world.now.plus(100)));
    world.wait(99);
    assert!(!world.decisions.has_group());
    world.wait(1);
    let (answers, events) = world.commit();
    let Ok(Answer::Leases { leases: granted, .. }) = &answers[0].1 else { panic!("{answers:?}") };
    assert_eq!((answers.len(), granted.leases.len(), events), (1, 1, vec!["LeaseGranted"]));
    assert!((90..100).contains(&granted.waited_ms), "it is told that it waited: {}", granted.waited_ms);
}

#[test]
fn workers_with_tasks_are_answered_while_others_wait() {
    let mut world = begun(Options::default());
    ask(&mut world, "w", 5_000, WINDOW + 1);
    let held = leases(world.commit().0.remove(0).1).remove(0);
    let heartbeat = orchestrix_core::Command::Task(orchestrix_core::TaskCommand::Heartbeat {
        task: held.task_id,
        lease: held.lease_id,
        worker: None,
        progress: None,
        note: None,
    });
    world.ask("busy", Ask::Heartbeat(heartbeat));
    world.ask("client", Ask::Command(submit("mail")));
    let names: Vec<_> = world.commit().0.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["busy", "client"]);
}

#[test]
fn calls_are_admitted_in_order() {
    let mut world = begun(Options::default());
    ask(&mut world, "w", 5_000, WINDOW);
    ask(&mut world, "first", 5_000, WINDOW - 1);
    ask(&mut world, "second", 5_000, 2);
    world.commit();
    // The next window is there, and whoever comes now stands behind those who wait.
    world.now = world.now.plus(100);
    ask(&mut world, "third", 5_000, 1);
    world.wait(0);
    assert_eq!(answered(&mut world), [("first", WINDOW - 1), ("second", 1)]);
    world.wait(100);
    assert_eq!(answered(&mut world), [("second", 1), ("third", 1)]);
}

#[test]
fn a_call_whose_wait_ends_in_the_line_gets_an_empty_answer() {
    let mut world = begun(Options::default());
    ask(&mut world, "w", 5_000, WINDOW);
    ask(&mut world, "hasty", 0, 1);
    ask(&mut world, "short", 60, 1);
    ask(&mut world, "patient", 100, 1);
    assert_eq!(answered(&mut world), [("w", WINDOW), ("hasty", 0)]);
    assert_eq!(world.decisions.next_due(), Some(world.now.plus(60)));
    world.wait(60);
    assert_eq!(answered(&mut world), [("short", 0)]);
    world.wait(40);
    assert_eq!(answered(&mut world), [("patient", 0)], "as a poll whose time is over");
}

#[test]
fn a_call_whose_caller_left_takes_no_task() {
    let mut world = begun(Options::default());
    ask(&mut world, "w", 5_000, WINDOW);
    ask(&mut world, "gone", 5_000, 1);
    world.commit();
    world.gone.lock().unwrap().insert("gone");
    world.wait(100);
    assert!(!world.decisions.has_group());
}

#[test]
fn admission_limits_only_the_first_seconds_of_a_term() {
    for (passed, decided) in [(4_999, WINDOW), (5_000, WINDOW + 1)] {
        let mut world = begun(Options::default());
        world.wait(passed);
        world.commit();
        ask(&mut world, "w", 5_000, WINDOW + 1);
        assert_eq!(answered(&mut world), [("w", decided)], "after {passed} ms");
    }
    let mut alone = World::new();
    for _ in 0..=WINDOW {
        alone.submit("mail");
    }
    ask(&mut alone, "w", 5_000, WINDOW + 1);
    assert_eq!(answered(&mut alone), [("w", WINDOW + 1)]);
}

#[test]
fn the_line_is_empty_when_the_first_seconds_are_over() {
    let mut world = begun(Options::default());
    world.wait(4_950);
    world.commit();
    ask(&mut world, "w", 5_000, 2 * WINDOW + 5);
    assert_eq!(answered(&mut world), [("w", WINDOW)]);
    world.wait(50);
    assert_eq!(answered(&mut world), [("w", WINDOW + 5)]);
    assert_eq!(world.stats.polls.get(), 0);
}

#[test]
fn the_line_counts_as_calls_that_wait_and_goes_home_at_the_end() {
    let mut world = begun(Options { polls_max: 2, ..Options::default() });
    ask(&mut world, "w", 5_000, WINDOW);
    world.commit();
    ask(&mut world, "waits", 5_000, 2);
    ask(&mut world, "too-many", 5_000, 1);
    let answers = world.commit().0;
    assert_eq!((answers.len(), answers[0].0), (1, "too-many"));
    assert!(matches!(answers[0].1, Err(Error::Overloaded)), "{answers:?}");
    world.decisions.tick(world.now);
    assert_eq!(world.stats.polls.get(), 2);
    // Whoever left makes room.
    world.gone.lock().unwrap().insert("waits");
    world.now = world.now.plus(100);
    ask(&mut world, "next", 5_000, 1);
    assert!(!world.decisions.has_group());
    world.decisions.dismiss(world.now);
    assert_eq!(answered(&mut world), [("next", 0)]);
}

#[test]
fn an_admitted_empty_lease_waits_no_longer_than_asked() {
    let mut world = begun(Options::default());
    ask(&mut world, "w", 5_000, WINDOW);
    world.ask("other", Ask::Lease(request("other", "empty", 150)));
    world.commit();
    world.wait(100);
    assert!(!world.decisions.has_group(), "it waits for a task now");
    world.wait(50);
    let answers = world.commit().0;
    let Ok(Answer::Leases { leases: given, .. }) = &answers[0].1 else { panic!("{answers:?}") };
    assert!(tasks(&given.leases).is_empty() && (140..150).contains(&given.waited_ms), "{}", given.waited_ms);
}
