//! The names of all channels. Nothing else builds one.
//!
//! ```text
//! orchestrix.job.assigned              in the domain `default`
//! orchestrix.DOMAIN.job.assigned       in every other
//! ```
//!
//! **Invariant:** no two channels of one or two domains have the same name. A domain has no dot, because the name of a queue
//! may have one, and is not called like the first part of a name in `default`.

use crate::{Name, TaskId};

/// Bounds the length of names, of which there are two for each leased task.
const DOMAIN_BYTES_MAX: usize = 64;
const DEFAULT: &str = "default";
/// They begin names in `default`.
const TAKEN: [&str; 3] = ["job", "worker", "coordinator"];

/// Messages for which consumers compete: each is taken by one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Queue {
    /// Offers of one queue, for workers.
    Dispatch(Name),
    /// Leases that need an owner.
    Assigned,
    /// Leases that need another owner.
    Handoff,
}

/// Messages that everyone reads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    Cancel,
    /// For the node of this name.
    HandoffAck(Name),
    WorkerHeartbeat,
    CoordinatorHeartbeat,
}

/// Messages of one task, from its worker to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobChannel {
    Status(TaskId),
    Logs(TaskId),
}

/// Any of the nine channels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Channel {
    Queue(Queue),
    Topic(Topic),
    Job(JobChannel),
}

impl From<Queue> for Channel {
    fn from(queue: Queue) -> Self {
        Self::Queue(queue)
    }
}

impl From<Topic> for Channel {
    fn from(topic: Topic) -> Self {
        Self::Topic(topic)
    }
}

impl From<JobChannel> for Channel {
    fn from(channel: JobChannel) -> Self {
        Self::Job(channel)
    }
}

impl Queue {
    /// The consumer group that shares the messages.
    #[must_use]
    pub fn group(&self) -> &'static str {
        match self {
            Self::Dispatch(_) => "workers",
            Self::Assigned | Self::Handoff => "coordinators",
        }
    }
}

/// The names of one domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channels {
    prefix: String,
}

impl Default for Channels {
    fn default() -> Self {
        Self { prefix: "orchestrix.".to_owned() }
    }
}

impl Channels {
    /// # Errors
    /// A sentence, when the name of the domain cannot be part of the name of a channel.
    pub fn of(domain: &str) -> Result<Self, String> {
        if domain == DEFAULT {
            return Ok(Self::default());
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let length = 1..=DOMAIN_BYTES_MAX;
        if !length.contains(&domain.len()) || !domain.bytes().all(plain) || TAKEN.contains(&domain) {
            return Err(format!(
                "the domain of a bus is named by 1 to {DOMAIN_BYTES_MAX} letters, digits, '-' or '_', and is not \
                 called {}",
                TAKEN.join(", ")
            ));
        }
        Ok(Self { prefix: format!("orchestrix.{domain}.") })
    }

    #[must_use]
    pub fn name(&self, channel: &Channel) -> String {
        match channel {
            Channel::Queue(queue) => self.queue(queue),
            Channel::Topic(topic) => self.topic(topic),
            Channel::Job(channel) => self.job(*channel),
        }
    }

    #[must_use]
    pub fn queue(&self, queue: &Queue) -> String {
        match queue {
            Queue::Dispatch(queue) => format!("{}job.dispatch.{queue}", self.prefix),
            Queue::Assigned => format!("{}job.assigned", self.prefix),
            Queue::Handoff => format!("{}job.handoff", self.prefix),
        }
    }

    #[must_use]
    pub fn topic(&self, topic: &Topic) -> String {
        match topic {
            Topic::Cancel => format!("{}job.cancel", self.prefix),
            Topic::HandoffAck(node) => format!("{}job.handoff.ack.{node}", self.prefix),
            Topic::WorkerHeartbeat => format!("{}worker.heartbeat", self.prefix),
            Topic::CoordinatorHeartbeat => format!("{}coordinator.heartbeat", self.prefix),
        }
    }

    #[must_use]
    pub fn job(&self, channel: JobChannel) -> String {
        match channel {
            JobChannel::Status(task) => format!("{}job.{task}.status", self.prefix),
            JobChannel::Logs(task) => format!("{}job.{task}.logs", self.prefix),
        }
    }

    /// Covers all names, as the rights of a user are written.
    #[must_use]
    pub fn pattern(&self) -> String {
        format!("{}*", self.prefix)
    }

    /// Covers the names of all job channels, and perhaps others.
    #[must_use]
    pub fn job_pattern(&self) -> String {
        format!("{}job.[0-9]*", self.prefix)
    }

    /// The job channel that has this name.
    #[must_use]
    pub fn job_of(&self, name: &str) -> Option<JobChannel> {
        let (task, kind) = name.strip_prefix(&self.prefix)?.strip_prefix("job.")?.split_once('.')?;
        let task = TaskId(task.parse().ok()?);
        let channel = match kind {
            "status" => JobChannel::Status(task),
            "logs" => JobChannel::Logs(task),
            _ => return None,
        };
        // A number is written in one way.
        (self.job(channel) == name).then_some(channel)
    }

    /// What is written and removed to see what the user may do.
    #[must_use]
    pub fn probe(&self) -> String {
        format!("{}probe", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn all() -> Vec<Channel> {
        let name = |text| Name::new(text).unwrap();
        let mut all: Vec<Channel> = vec![Queue::Assigned.into(), Queue::Handoff.into()];
        all.extend([Topic::Cancel, Topic::WorkerHeartbeat, Topic::CoordinatorHeartbeat].map(Channel::from));
        // Names that look like parts of other channels.
        for text in ["mail", "ack", "assigned", "job.assigned", "ack.mail", "7.status", "job.dispatch.mail"] {
            all.extend([Queue::Dispatch(name(text)).into(), Topic::HandoffAck(name(text)).into()]);
        }
        all.extend([JobChannel::Status(TaskId(7)), JobChannel::Logs(TaskId(7))].map(Channel::from));
        all
    }

    #[test]
    fn the_nine_channels_have_the_names_that_workers_know() {
        let channels = Channels::default();
        let name = |text| Name::new(text).unwrap();
        let named: [(Channel, &str); 9] = [
            (Queue::Dispatch(name("mail")).into(), "orchestrix.job.dispatch.mail"),
            (Queue::Assigned.into(), "orchestrix.job.assigned"),
            (JobChannel::Status(TaskId(7)).into(), "orchestrix.job.7.status"),
            (JobChannel::Logs(TaskId(7)).into(), "orchestrix.job.7.logs"),
            (Topic::Cancel.into(), "orchestrix.job.cancel"),
            (Queue::Handoff.into(), "orchestrix.job.handoff"),
            (Topic::HandoffAck(name("node-1")).into(), "orchestrix.job.handoff.ack.node-1"),
            (Topic::WorkerHeartbeat.into(), "orchestrix.worker.heartbeat"),
            (Topic::CoordinatorHeartbeat.into(), "orchestrix.coordinator.heartbeat"),
        ];
        for (channel, text) in named {
            assert_eq!(channels.name(&channel), text);
        }
        let other = Channels::of("eu-1").unwrap();
        assert_eq!(other.queue(&Queue::Assigned), "orchestrix.eu-1.job.assigned");
    }

    #[test]
    fn no_two_channels_of_two_domains_have_the_same_name() {
        let domains = ["default", "a", "7", "jobs", "handoff", "dispatch"];
        let mut names: Vec<String> = Vec::new();
        for domain in domains {
            let channels = Channels::of(domain).unwrap();
            names.push(channels.probe());
            names.extend(all().iter().map(|channel| channels.name(channel)));
        }
        let different: BTreeSet<_> = names.iter().collect();
        assert_eq!(different.len(), names.len());
    }

    #[test]
    fn an_ambiguous_domain_is_refused() {
        for domain in ["", "a.b", "a:b", "ü", "a b", "*", "job", "worker", "coordinator", &"x".repeat(65)] {
            Channels::of(domain).unwrap_err();
        }
        Channels::of(&"x".repeat(64)).unwrap();
    }
}
