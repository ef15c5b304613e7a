//! Which task of a queue has waited for longest, and which is next.

use orchestrix_core::wire::{QueueView, Submit};
use orchestrix_core::{Command, Json, Name, TaskCommand, TaskId};
use orchestrix_node::{Answer, Ask};

use crate::common::{World, leases};

fn submit(world: &mut World, change: impl FnOnce(&mut Submit)) -> TaskId {
    let mut task = Submit::new(Name::new("q").unwrap(), Json::parse("1").unwrap());
    change(&mut task);
    world.ask("submitter", Ask::Command(Command::submit(task)));
    match world.commit().0.remove(0).1 {
        Ok(Answer::Outcome { outcome, .. }) => outcome.id,
        other => panic!("{other:?}"),
    }
}

fn view(world: &mut World) -> QueueView {
    world.ask("reader", Ask::Queues);
    match world.commit().0.remove(0).1 {
        Ok(Answer::Queues(mut list)) => list.queues.remove(0),
        other => panic!("{other:?}"),
    }
}

/// The oldest and how long it is ready, the next and how long that is.
fn seen(world: &mut World) -> [Option<(TaskId, u64)>; 2] {
    let view = view(world);
    [view.oldest.zip(view.oldest_ms), view.next.zip(view.next_ms)]
}

#[test]
fn an_urgent_task_does_not_hide_one_that_waits() {
    let mut world = World::new();
    let patient = submit(&mut world, |_| {});
    world.wait(60_000);
    let urgent = submit(&mut world, |task| task.priority = 10);
    world.wait(1_000);
    assert_eq!(seen(&mut world), [Some((patient, 61_000)), Some((urgent, 1_000))]);
}

#[test]
fn a_task_that_came_back_does_not_hide_one_that_waits() {
    let mut world = World::new();
    let first = submit(&mut world, |_| {});
    world.poll("w", "q", 0);
    let lease = leases(world.commit().0.remove(0).1)[0].lease_id;
    let patient = submit(&mut world, |_| {});
    world.wait(9_000);
    assert_eq!(seen(&mut world), [Some((patient, 9_000)), Some((patient, 9_000))], "the other is leased");
    world.ask("w", Ask::Command(Command::Task(TaskCommand::Release { task: first, lease, worker: None })));
    world.commit();
    world.wait(500);
    assert_eq!(seen(&mut world), [Some((patient, 9_500)), Some((first, 500))]);
}

#[test]
fn a_delay_that_is_over_counts_from_its_end() {
    let mut world = World::new();
    let delayed = submit(&mut world, |task| task.delay_ms = 5_000);
    assert_eq!(seen(&mut world), [None, None]);
    world.wait(2_000);
    let prompt = submit(&mut world, |_| {});
    world.wait(4_000);
    assert_eq!(seen(&mut world), [Some((prompt, 4_000)), Some((delayed, 1_000))]);
    world.poll("w", "q", 0);
    world.poll("w", "q", 0);
    world.commit();
    assert_eq!(seen(&mut world), [None, None], "nothing waits");
}
