//! Callers who are limited to some queues: the loop checks with the decision.

use orchestrix_core::{Command, Filter, Forbidden, LeaseId, Name, Refusal, TaskCommand, TaskId};
use orchestrix_node::{Answer, Ask, Error};

use crate::common::{World, request, submit};

fn own() -> [Name; 1] {
    [Name::new("mail").unwrap()]
}

/// What a caller hears who is limited to the queue `mail`.
fn heard(world: &mut World, ask: Ask) -> Result<Answer, Error> {
    world.ask_within("limited", ask, Some(&own()));
    let (answers, _) = world.commit();
    answers.into_iter().find(|(name, _)| *name == "limited").expect("it is answered at once").1
}

fn complete(task: TaskId, lease: LeaseId) -> Command {
    Command::Task(TaskCommand::Complete { task, lease, worker: None, result: None })
}

/// A task of another queue, under a lease.
fn foreign(world: &mut World) -> (TaskId, LeaseId) {
    let task = world.submit("payroll");
    world.ask("w", Ask::Lease(request("w", "payroll", 0)));
    let (answers, _) = world.commit();
    match answers.into_iter().next().unwrap().1 {
        Ok(Answer::Leases { leases, .. }) => (task, leases.leases[0].lease_id),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_foreign_task_is_not_there() {
    let mut world = World::new();
    let (task, lease) = foreign(&mut world);
    let heartbeat =
        Command::Task(TaskCommand::Heartbeat { task, lease, worker: None, progress: None, note: None });
    for ask in [
        Ask::Command(complete(task, lease)),
        Ask::Command(Command::Task(TaskCommand::Fail {
            task,
            lease,
            worker: None,
            error: "x".to_owned(),
            retry: true,
        })),
        Ask::Command(Command::Task(TaskCommand::Release { task, lease, worker: None })),
        Ask::Command(Command::Task(TaskCommand::Cancel { task, actor: None })),
        Ask::Command(Command::Task(TaskCommand::Retry { task, actor: None })),
        Ask::Heartbeat(heartbeat),
        Ask::Attempt { task, lease },
        Ask::Task(task),
        Ask::Explain(task),
    ] {
        let shown = format!("{ask:?}");
        let refused = heard(&mut world, ask).unwrap_err();
        assert_eq!(refused, Error::Refused(Refusal::NotFound(task)), "{shown}");
    }
}

#[test]
fn a_foreign_queue_that_is_named_is_forbidden() {
    let mut world = World::new();
    let payroll = Name::new("payroll").unwrap();
    let filter = Filter { queue: Some(payroll.clone()), state: None };
    for ask in [
        Ask::Command(submit("payroll")),
        Ask::Batch(vec![submit("mail"), submit("payroll")]),
        Ask::Lease(request("w", "payroll", 0)),
        Ask::Tasks { filter, after: None, limit: 1 },
    ] {
        let refused = heard(&mut world, ask).unwrap_err();
        assert_eq!(refused, Error::Refused(Refusal::Forbidden(Forbidden::Queue(payroll.clone()))));
    }
    let any = Ask::Tasks { filter: Filter::default(), after: None, limit: 1 };
    for (ask, why) in [(any, Forbidden::AnyQueue), (Ask::Workers, Forbidden::Everything)] {
        assert_eq!(heard(&mut world, ask).unwrap_err(), Error::Refused(Refusal::Forbidden(why)));
    }
    assert!(!world.decisions.state().has_queue(&own()[0]), "a batch is refused as a whole");
}

#[test]
fn a_batch_hides_foreign_tasks_one_by_one() {
    let mut world = World::new();
    let (task, lease) = foreign(&mut world);
    world.submit("mail");
    let leased = heard(&mut world, Ask::Lease(request("limited", "mail", 0)));
    let Ok(Answer::Leases { leases, .. }) = leased else { panic!("{leased:?}") };
    let (mine, my_lease) = (leases.leases[0].task_id, leases.leases[0].lease_id);
    let batch = Ask::Batch(vec![complete(task, lease), complete(mine, my_lease)]);
    let Ok(Answer::Batch(outcomes)) = heard(&mut world, batch) else { panic!("a batch is answered") };
    assert_eq!(outcomes[0], Err(Refusal::NotFound(task)));
    assert_eq!(outcomes[1].as_ref().unwrap().id, mine);
}

#[test]
fn queues_of_others_are_not_listed() {
    let mut world = World::new();
    world.submit("mail");
    world.submit("payroll");
    let Ok(Answer::Queues(list)) = heard(&mut world, Ask::Queues) else { panic!("queues are listed") };
    assert_eq!(list.queues.iter().map(|view| view.queue.as_str()).collect::<Vec<_>>(), ["mail"]);
}
