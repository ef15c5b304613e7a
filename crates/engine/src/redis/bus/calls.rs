//! The contract, by scripts and commands.

use std::time::Duration;

use orchestrix_core::{LeaseId, Name, Term};
use redis::Value;

use super::publisher::RedisPublisher;
use super::replies::{Noting, entries, found, id, list, size, text};
use super::{CHECK, CLAIM, CLOSE, DELETE, FIGURES, LEAVE, OPEN, READ, RedisBus, SETTLE, TRIM, topics};
use crate::bus::{
    Budget, Bus, Channel, Checked, Claimed, Closed, DATA, ENTRIES_MAX, Ended, EntryId, Figures, Found,
    JobChannel, Left, MESSAGE_BYTES_MAX, Message, OpenJobs, Queue, Sent, Taken, Topic, check_channels,
    check_count, check_messages, check_reclaimed,
};
use crate::redis::server::{Command, Failure};
use crate::{Error, JournalId};

const DO_OPEN: &str = "open the bus";
const DO_CLAIM: &str = "claim the bus";
const DO_CHECK: &str = "check the bus";
const DO_CLOSE: &str = "close channels";
const DO_SEND: &str = "send messages";
const DO_TAKE: &str = "take messages";
const DO_RECLAIM: &str = "reclaim messages";
const DO_SETTLE: &str = "settle messages";
const DO_LOOK: &str = "look for channels";
const DO_READ: &str = "read channels";
const DO_DELETE: &str = "delete messages";
const DO_TRIM: &str = "trim topics";
const DO_LEAVE: &str = "leave the bus";
const DO_MEASURE: &str = "measure queues";

/// Bytes of messages in one request. Bounds memory here, and twice that in the server.
const REQUEST_BYTES: usize = 4 << 20;
/// Messages, channels or queues in one request. Bounds how long it blocks the server for others.
const REQUEST_COMMANDS: usize = 100;
/// Keys that one look for channels goes through, about. Bounds how long it blocks the server for others.
const SCAN_KEYS: usize = 1_000;

impl RedisBus {
    /// The outcome of a command that takes messages.
    fn taken(&self, doing: &str, answer: Result<Value, Failure>) -> Result<Answered, Error> {
        match answer {
            Ok(answer) => Ok(Answered::Value(answer)),
            Err(Failure::Lost(what)) => {
                self.server.unknown(doing, &what);
                Ok(Answered::Unknown)
            }
            Err(Failure::Refused { code, .. }) if code == "NOGROUP" => Ok(Answered::NoGroup),
            Err(failure) => Err(self.error(doing, failure)),
        }
    }

    fn make_group(&self, queue: &Queue) -> Result<(), Error> {
        let mut command = Command::new("XGROUP");
        command.arg("CREATE").arg(self.channels.queue(queue)).arg(queue.group()).arg("0").arg("MKSTREAM");
        match self.server.ask::<Value>(&command) {
            Err(Failure::Refused { code, .. }) if code == "BUSYGROUP" => Ok(()),
            Ok(_) => Ok(()),
            Err(failure) => Err(self.error(DO_TAKE, failure)),
        }
    }

    fn rolled_back(&self) -> Taken {
        self.seen().forgotten();
        Taken::RolledBack
    }
}

enum Answered {
    Value(Value),
    Unknown,
    NoGroup,
}

impl Bus for RedisBus {
    fn open(&self, journal: JournalId, node: &Name) -> Result<(), Error> {
        let mut keys = vec![
            self.keys.bus(),
            self.channels.queue(&Queue::Assigned),
            self.channels.queue(&Queue::Handoff),
        ];
        let own = Topic::HandoffAck(node.clone());
        keys.extend(topics().iter().chain([&own]).map(|topic| self.channels.topic(topic)));
        let mut command = OPEN.with(&keys);
        command.arg(journal.to_string()).arg(Queue::Assigned.group());
        match self.noting(DO_OPEN, &command, journal)? {
            Noting::Here(noted) => {
                self.seen().opened(journal, node, noted);
                Ok(())
            }
            Noting::Stale { .. } | Noting::Done | Noting::Repeated | Noting::Gone | Noting::Ahead(_) => {
                Err(self.server.damaged(DO_OPEN, &self.keys.bus(), "a part of it is gone"))
            }
        }
    }

    fn claim(&self, term: Term) -> Result<Claimed, Error> {
        let (journal, used, before) = {
            let seen = self.seen();
            if seen.is_rolled_back() {
                return Ok(Claimed::RolledBack);
            }
            (seen.journal(DO_CLAIM)?, seen.used(), seen.newest())
        };
        let mut command = self.about_claims(&CLAIM);
        command.arg(journal.to_string()).arg(term.0).arg(used);
        let noting = self.noting(DO_CLAIM, &command, journal)?;
        match noting {
            Noting::Here(noted) if self.seen().learn(before, Some(noted)) => {
                Ok(Claimed::Done(Box::new(RedisPublisher::new(self, journal, noted))))
            }
            Noting::Stale { term, generation } => Ok(Claimed::Stale { term, generation }),
            Noting::Here(_) | Noting::Done | Noting::Repeated | Noting::Gone | Noting::Ahead(_) => {
                self.seen().forgotten();
                Ok(Claimed::RolledBack)
            }
        }
    }

    fn check(&self) -> Result<Checked, Error> {
        let (journal, before) = {
            let seen = self.seen();
            (seen.journal(DO_CHECK)?, seen.newest())
        };
        let found = match self.noting(DO_CHECK, &self.about_claims(&CHECK), journal)? {
            Noting::Here(noted) => Some(noted),
            Noting::Stale { .. } | Noting::Done | Noting::Repeated | Noting::Gone | Noting::Ahead(_) => None,
        };
        Ok(if self.seen().learn(before, found) { Checked::Sound } else { Checked::RolledBack })
    }

    fn close(&self, ended: &[Ended]) -> Result<Vec<Closed>, Error> {
        check_count(DO_CLOSE, ended.len())?;
        let one = |ended: &Ended| {
            let mut keys = self.job(&[JobChannel::Status(ended.task), JobChannel::Logs(ended.task)]);
            keys.extend(
                ended.offered_in.iter().map(|queue| self.channels.queue(&Queue::Dispatch(queue.clone()))),
            );
            let mut command = CLOSE.with(&keys);
            command.arg(ended.lease.0);
            command
        };
        let mut closed = Vec::with_capacity(ended.len());
        for some in ended.chunks(REQUEST_COMMANDS) {
            let commands: Vec<Command> = some.iter().map(one).collect();
            let answers = self.server.ask_all(&commands).map_err(|failure| self.error(DO_CLOSE, failure))?;
            for answer in answers {
                closed.push(self.closed(DO_CLOSE, answer)?);
            }
        }
        Ok(closed)
    }

    fn send(&self, messages: &[Message]) -> Result<Vec<Sent>, Error> {
        check_messages(DO_SEND, messages)?;
        let (mut results, mut refused) = (Vec::with_capacity(messages.len()), None);
        while results.len() < messages.len() {
            let rest = &messages[results.len()..];
            let lengths = rest.iter().map(|message| message.data.len()).take(REQUEST_COMMANDS);
            let some = &rest[..crate::limit::fitting(lengths, REQUEST_BYTES)];
            let one = |message: &Message| {
                let mut command = Command::new("XADD");
                command.arg(self.channels.name(&message.channel)).arg("NOMKSTREAM").arg("*");
                command.arg(DATA).arg(&message.data);
                command
            };
            let commands: Vec<Command> = some.iter().map(one).collect();
            let answers = match self.server.ask_all(&commands) {
                Ok(answers) => answers,
                Err(Failure::Lost(what)) => {
                    self.server.unknown(DO_SEND, &what);
                    results.resize(messages.len(), Sent::Unknown);
                    break;
                }
                Err(failure) if results.is_empty() => return Err(self.error(DO_SEND, failure)),
                Err(_) => {
                    results.resize(messages.len(), Sent::Refused);
                    break;
                }
            };
            for answer in answers {
                results.push(match answer {
                    Ok(Value::Nil) => Sent::Closed,
                    Ok(answer) => Sent::Done(id(&answer).ok_or_else(|| self.strange(DO_SEND, &answer))?),
                    Err(failure) => {
                        refused = Some(failure);
                        Sent::Refused
                    }
                });
            }
        }
        match refused {
            Some(failure) if results.iter().all(|sent| *sent == Sent::Refused) => {
                Err(self.error(DO_SEND, failure))
            }
            Some(_) | None => Ok(results),
        }
    }

    fn take(&self, queue: &Queue, consumer: &Name, at_most: usize) -> Result<Taken, Error> {
        check_count(DO_TAKE, at_most)?;
        if at_most == 0 {
            return Ok(Taken::Entries(Vec::new()));
        }
        let name = self.channels.queue(queue);
        let mut command = Command::new("XREADGROUP");
        command.arg("GROUP").arg(queue.group()).arg(consumer.as_str()).arg("COUNT").arg(at_most);
        command.arg("STREAMS").arg(name).arg(">");
        let mut answer = self.taken(DO_TAKE, self.server.ask(&command))?;
        if matches!((&answer, queue), (Answered::NoGroup, Queue::Dispatch(_))) {
            self.make_group(queue)?;
            answer = self.taken(DO_TAKE, self.server.ask(&command))?;
        }
        let answer = match answer {
            Answered::Unknown => return Ok(Taken::Unknown),
            Answered::NoGroup => return Ok(self.rolled_back()),
            Answered::Value(Value::Nil) => return Ok(Taken::Entries(Vec::new())),
            Answered::Value(answer) => answer,
        };
        // One stream: its name, and its entries.
        let stream = list(&answer).and_then(<[Value]>::first).and_then(list);
        let taken = stream.and_then(|stream| entries(stream.get(1)?));
        let taken = taken.ok_or_else(|| self.strange(DO_TAKE, &answer))?;
        Ok(Taken::Entries(taken))
    }

    fn reclaim(
        &self,
        queue: &Queue,
        consumer: &Name,
        idle: Duration,
        at_most: usize,
    ) -> Result<Taken, Error> {
        check_count(DO_RECLAIM, at_most)?;
        check_reclaimed(DO_RECLAIM, queue)?;
        let (mut from, mut taken) = ("0-0".to_owned(), Vec::new());
        while taken.len() < at_most {
            let mut command = Command::new("XAUTOCLAIM");
            command.arg(self.channels.queue(queue)).arg(queue.group()).arg(consumer.as_str());
            let idle_ms = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
            command.arg(idle_ms).arg(&from).arg("COUNT").arg(at_most - taken.len());
            let answer = match self.taken(DO_RECLAIM, self.server.ask(&command))? {
                Answered::Unknown => return Ok(Taken::Unknown),
                Answered::NoGroup => return Ok(self.rolled_back()),
                Answered::Value(answer) => answer,
            };
            let parts = list(&answer).unwrap_or_default();
            let next = parts.first().and_then(id);
            let some = parts.get(1).and_then(entries);
            let (Some(next), Some(some)) = (next, some) else {
                return Err(self.strange(DO_RECLAIM, &answer));
            };
            taken.extend(some);
            if next == EntryId::ZERO {
                break;
            }
            from = next.to_string();
        }
        Ok(Taken::Entries(taken))
    }

    fn settle(&self, queue: &Queue, entries: &[EntryId]) -> Result<(), Error> {
        check_count(DO_SETTLE, entries.len())?;
        if entries.is_empty() {
            return Ok(());
        }
        let mut command = SETTLE.with(&[self.channels.queue(queue)]);
        command.arg(queue.group());
        for id in entries {
            command.arg(id.to_string());
        }
        self.server.get(DO_SETTLE, &command)
    }

    fn jobs(&self, from: u64) -> Result<OpenJobs, Error> {
        let mut command = Command::new("SCAN");
        command.arg(from).arg("MATCH").arg(self.channels.job_pattern()).arg("COUNT").arg(SCAN_KEYS);
        let answer: Value = self.server.get(DO_LOOK, &command)?;
        let found = match list(&answer) {
            Some([next, names]) => text(next).and_then(|next| next.parse::<u64>().ok()).zip(list(names)),
            Some(_) | None => None,
        };
        let (next, names) = found.ok_or_else(|| self.strange(DO_LOOK, &answer))?;
        let channels: Vec<(&str, JobChannel)> = names
            .iter()
            .filter_map(text)
            .filter_map(|name| Some((name, self.channels.job_of(name)?)))
            .collect();
        let mut leases = Vec::with_capacity(channels.len());
        for some in channels.chunks(REQUEST_COMMANDS) {
            let first = |(name, _): &(&str, JobChannel)| {
                let mut command = Command::new("XRANGE");
                command.arg(*name).arg("-").arg("+").arg("COUNT").arg(1);
                command
            };
            let commands: Vec<Command> = some.iter().map(first).collect();
            let answers = self.server.ask_all(&commands).map_err(|failure| self.error(DO_LOOK, failure))?;
            for ((_, channel), answer) in some.iter().zip(answers) {
                // What is no stream, or begins otherwise, is not a channel of a lease.
                let first = answer.ok().and_then(|answer| entries(&answer)?.into_iter().next());
                let (JobChannel::Status(task) | JobChannel::Logs(task)) = *channel;
                leases.extend(
                    first.filter(|first| first.id.minor == 0).map(|first| (task, LeaseId(first.id.major))),
                );
            }
        }
        Ok(OpenJobs { leases, next: (next > 0).then_some(next) })
    }

    fn read(&self, after: &[(Channel, EntryId)], budget: Budget) -> Result<Found, Error> {
        check_channels(DO_READ, after.len())?;
        if after.is_empty() {
            return Ok(Found::default());
        }
        let names: Vec<String> = after.iter().map(|(channel, _)| self.channels.name(channel)).collect();
        let mut command = READ.with(&names);
        for (_, cursor) in after {
            command.arg(cursor.to_string());
        }
        command.arg(budget.entries).arg(budget.bytes).arg(MESSAGE_BYTES_MAX);
        let answer: Value = self.server.get(DO_READ, &command)?;
        let read = match list(&answer) {
            Some([channels, entries]) => size(channels).zip(list(entries).and_then(found)),
            Some(_) | None => None,
        };
        let (channels, entries) = read.ok_or_else(|| self.strange(DO_READ, &answer))?;
        Ok(Found { entries, channels })
    }

    fn delete(&self, channel: JobChannel, lease: LeaseId, entries: &[EntryId]) -> Result<Closed, Error> {
        check_count(DO_DELETE, entries.len())?;
        let mut command = DELETE.with(&self.job(&[channel]));
        command.arg(lease.0);
        for id in entries {
            command.arg(id.to_string());
        }
        self.closed(DO_DELETE, self.server.ask(&command))
    }

    fn trim(&self, topics: &[Topic], keep: Duration) -> Result<(), Error> {
        let names: Vec<String> = topics.iter().map(|topic| self.channels.topic(topic)).collect();
        for some in names.chunks(REQUEST_COMMANDS) {
            let mut command = TRIM.with(some);
            let () =
                self.server.get(DO_TRIM, command.arg(u64::try_from(keep.as_millis()).unwrap_or(u64::MAX)))?;
        }
        Ok(())
    }

    fn leave(&self, consumer: &Name) -> Result<Left, Error> {
        let queues = [Queue::Assigned, Queue::Handoff].map(|queue| self.channels.queue(&queue));
        let mut command = LEAVE.with(&queues);
        command.arg(Queue::Assigned.group()).arg(consumer.as_str()).arg(ENTRIES_MAX);
        match self.server.get(DO_LEAVE, &command)? {
            0 => Ok(Left::Done),
            holding => Ok(Left::Holding(holding)),
        }
    }

    fn figures(&self, queues: &[Queue]) -> Result<Vec<Figures>, Error> {
        let one = |queue: &Queue| {
            let mut command = FIGURES.with(&[self.channels.queue(queue)]);
            command.arg(queue.group());
            command
        };
        let mut figures = Vec::with_capacity(queues.len());
        for some in queues.chunks(REQUEST_COMMANDS) {
            let commands: Vec<Command> = some.iter().map(one).collect();
            let answers =
                self.server.ask_all(&commands).map_err(|failure| self.error(DO_MEASURE, failure))?;
            for answer in answers {
                let answer = answer.map_err(|failure| self.error(DO_MEASURE, failure))?;
                let all = match list(&answer) {
                    Some([length, taken, last]) => size(length).zip(size(taken)).zip(id(last)),
                    Some(_) | None => None,
                };
                let ((length, taken), last) = all.ok_or_else(|| self.strange(DO_MEASURE, &answer))?;
                figures.push(Figures { waiting: length.saturating_sub(taken), taken, last });
            }
        }
        Ok(figures)
    }

    fn place(&self) -> String {
        format!("{}, domain {}", self.server.place(), self.keys.domain())
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }
}
