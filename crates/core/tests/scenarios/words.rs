//! The words of a scenario: commands, and events that no command asks for.

use orchestrix_core::wire::{Backoff, Submit};
use orchestrix_core::{
    BusResumed, Claim, Command, Event, ExpiryReason, FormatRaised, HeldLease, Json, Key, Lease, LeaseExpired,
    LeaseGranted, LeaseId, LeasesStarted, Name, Next, NodeDraining, NodeLeft, NodeLeftReason, Offer,
    OwnerToken, OwnersAssigned, OwnersReleased, OwnershipCommand, PositionsSkipped, Retention, Start,
    TaskCommand, TaskCompleted, TaskId, TermCommand, Timestamp,
};

pub(crate) fn command(name: &str, words: &[&str]) -> Command {
    let plain: Vec<&str> = words.iter().copied().filter(|word| !is_option(word)).collect();
    let option = |name: &str| words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let task = || TaskId(plain[0].parse().unwrap());
    let lease = || LeaseId(plain[1].parse().unwrap());
    let worker = option("worker").map(name_of);
    let actor = || option("actor").map(name_of);
    match name {
        "term" => Command::Term(TermCommand::Start {
            epoch: 0,
            node: plain[0].to_owned(),
            actor: actor(),
            shard_lease_ms: None,
        }),
        "submit" => Command::submit(submit(&plain, option)),
        "lease" => Command::Task(TaskCommand::Lease(Lease {
            worker: name_of(plain[0]),
            queues: plain[1].split(',').map(name_of).collect(),
            lease_ms: option("lease").map_or(30_000, millis),
            request_id: option("request").map(name_of),
            capacity: option("capacity").map(|text| text.parse().unwrap()),
        })),
        "offer" => Command::Task(TaskCommand::Offer(Offer {
            queues: plain[0].split(',').map(name_of).collect(),
            lease_ms: option("lease").map_or(60_000, millis),
        })),
        "start" => Command::Task(TaskCommand::Start(plain.iter().map(|word| held(word)).collect())),
        "extend" => Command::Task(TaskCommand::Extend(plain.iter().map(|word| held(word)).collect())),
        "note" => Command::Task(TaskCommand::Note {
            task: task(),
            lease: lease(),
            worker: worker.unwrap(),
            progress: option("progress").map(|text| text.parse().unwrap()),
            note: option("note").map(str::to_owned),
        }),
        "resume" => {
            let silent_since = Timestamp(plain[0].parse().unwrap());
            Command::Task(TaskCommand::ResumeBus { silent_since })
        }
        "join" => OwnershipCommand::Join {
            node: plain[0].to_owned(),
            incarnation: plain[1].to_owned(),
            address: "localhost:1".to_owned(),
        }
        .into(),
        "leave" => OwnershipCommand::Leave { node: owner(plain[0]), reason: NodeLeftReason::Silent }.into(),
        "drain" => OwnershipCommand::Drain { node: owner(plain[0]) }.into(),
        "own" => {
            let previous = option("from").map(owner);
            let claims = plain[1..].iter().map(|word| Claim { lease: lease_id(word), previous }).collect();
            OwnershipCommand::Own { node: owner(plain[0]), claims }.into()
        }
        "disown" => {
            let leases = plain[1..].iter().map(|word| lease_id(word)).collect();
            OwnershipCommand::Release { node: owner(plain[0]), leases }.into()
        }
        "heartbeat" => Command::Task(TaskCommand::Heartbeat {
            task: task(),
            lease: lease(),
            worker,
            progress: option("progress").map(|text| text.parse().unwrap()),
            note: option("note").map(str::to_owned),
        }),
        "heartbeat-all" => Command::Task(TaskCommand::HeartbeatAll {
            worker: name_of(plain[0]),
            leases: plain[1..].iter().map(|text| LeaseId(text.parse().unwrap())).collect(),
        }),
        "complete" => Command::Task(TaskCommand::Complete {
            task: task(),
            lease: lease(),
            worker,
            result: option("result").map(|text| Json::parse(text).unwrap()),
        }),
        "fail" => {
            let retry = option("retry") != Some("no");
            Command::Task(TaskCommand::Fail {
                task: task(),
                lease: lease(),
                worker,
                error: plain[2].to_owned(),
                retry,
            })
        }
        "release" => Command::Task(TaskCommand::Release { task: task(), lease: lease(), worker }),
        "abandon" => Command::Task(TaskCommand::Abandon { task: task(), lease: lease() }),
        "expire" => Command::Task(TaskCommand::Expire { task: task() }),
        "cancel" => Command::Task(TaskCommand::Cancel { task: task(), actor: actor() }),
        "retry" => Command::Task(TaskCommand::Retry { task: task(), actor: actor() }),
        "purge" => Command::Task(TaskCommand::Purge(Retention {
            done_ms: option("done").map_or(0, millis),
            failed_ms: option("failed").map_or(0, millis),
            count: option("count").map_or(1_000, |text| text.parse().unwrap()),
            key_ms: option("keys_for").map_or(86_400_000, millis),
            keys: option("keys").map_or(1_000, |text| text.parse().unwrap()),
        })),
        other => panic!("no command {other:?}"),
    }
}

/// An event that no command asks for.
pub(crate) fn event(name: &str, words: &[&str]) -> Event {
    let number = |n: usize| words[n].parse::<u64>().unwrap();
    match name {
        "skip" => PositionsSkipped { count: number(0).try_into().unwrap() }.into(),
        "raise" => FormatRaised { format: number(0).try_into().unwrap() }.into(),
        "assign" => {
            let leases = words[1..].iter().map(|word| lease_id(word)).collect();
            OwnersAssigned { node: OwnerToken(number(0)), leases }.into()
        }
        "took-back" => {
            let leases = words[1..].iter().map(|word| lease_id(word)).collect();
            OwnersReleased { node: OwnerToken(number(0)), leases }.into()
        }
        "resumed" => BusResumed { silent_since: Timestamp(number(0)) }.into(),
        "drained" => NodeDraining { node: OwnerToken(number(0)) }.into(),
        "left" => NodeLeft { node: OwnerToken(number(0)), reason: NodeLeftReason::Stopped }.into(),
        "started" => {
            let started = vec![Start {
                lease: LeaseId(number(0)),
                worker: name_of(words[1]),
                expires_at: Timestamp(number(2)),
            }];
            LeasesStarted { started }.into()
        }
        "completed" => TaskCompleted {
            task: TaskId(number(0)),
            lease: LeaseId(number(1)),
            result: None,
            worker: words.get(2).map(|word| name_of(word)),
        }
        .into(),
        "grant" => {
            let (task, worker) = (TaskId(number(0)), name_of("w"));
            let expires_at = Timestamp(60_000);
            let (attempt, length_ms) = (1, 1_000);
            LeaseGranted { task, worker, attempt, length_ms, expires_at, timeout_at: None, request_id: None }
                .into()
        }
        // It goes on, however many attempts it has had.
        "lapse" => LeaseExpired {
            task: TaskId(number(0)),
            lease: LeaseId(number(1)),
            reason: ExpiryReason::Silent,
            next: Next::Waiting { not_before: Timestamp(0) },
        }
        .into(),
        other => panic!("no event {other:?}"),
    }
}

fn submit<'a>(plain: &[&str], option: impl Fn(&str) -> Option<&'a str>) -> Submit {
    let number = |name: &str| option(name).map(|text| text.parse::<u32>().unwrap());
    let mut task = Submit::new(name_of(plain[0]), Json::parse(plain[1]).unwrap());
    task.key = option("key").map(|key| Key::new(key).unwrap());
    task.priority = option("priority").map_or(0, |text| text.parse().unwrap());
    task.delay_ms = option("delay").map_or(0, millis);
    task.max_attempts = number("max_attempts").unwrap_or(task.max_attempts);
    task.timeout_ms = option("timeout").map(millis);
    task.ttl_ms = option("ttl").map(millis);
    if let Some(base) = option("backoff") {
        task.backoff = Backoff { base_ms: millis(base), ..Backoff::default() };
    }
    task
}

fn is_option(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
}

pub(crate) fn owner(text: &str) -> OwnerToken {
    OwnerToken(text.parse().unwrap())
}

pub(crate) fn lease_id(text: &str) -> LeaseId {
    LeaseId(text.parse().unwrap())
}

/// A lease and a worker, with `@` between.
fn held(text: &str) -> HeldLease {
    let (lease, worker) = text.split_once('@').unwrap();
    HeldLease { lease: lease_id(lease), worker: name_of(worker) }
}

fn name_of(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) fn millis(text: &str) -> u64 {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().unwrap();
    match &text[digits.len()..] {
        "ms" | "" => number,
        "s" => number * 1_000,
        "m" => number * 60_000,
        "h" => number * 3_600_000,
        "d" => number * 86_400_000,
        unit => panic!("no unit {unit:?}"),
    }
}
