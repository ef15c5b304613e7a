//! Reads the channels of all leases that a node owns, some at a time, and stores the lines of output.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::LeaseId;
use orchestrix_core::wire::bus::{JobLogs, JobStatus, read};
use orchestrix_core::wire::{LogAppend, LogText};
use orchestrix_engine::bus::{
    Budget, Bus, Channel, Content, Entry, EntryId, Found, JobChannel, READ_CHANNELS_MAX,
};
use orchestrix_engine::{Clock, Error};

use super::complaints::Complaints;
use super::job::{Job, Spoken};
use super::output::Output;
use crate::request;

const BUDGET: Budget = Budget { entries: 2_000, bytes: 4 << 20 };

pub(crate) struct Sweep {
    clock: Arc<dyn Clock>,
    output: Arc<dyn Output>,
}

impl Sweep {
    pub(crate) fn new(clock: Arc<dyn Clock>, output: Arc<dyn Output>) -> Self {
        Self { clock, output }
    }

    /// Reads all channels once. Answers how long that took.
    pub(crate) fn run(
        &self,
        bus: &dyn Bus,
        jobs: &mut BTreeMap<LeaseId, Job>,
        complaints: &mut Complaints,
        now: Duration,
    ) -> Result<Duration, Error> {
        let began = self.clock.boot();
        let mut channels: Vec<(Channel, EntryId)> = Vec::with_capacity(2 * jobs.len());
        let mut of: Vec<LeaseId> = Vec::with_capacity(2 * jobs.len());
        for (lease, job) in jobs.iter_mut() {
            forget_old(bus, *lease, job)?;
            // What is said last comes after all lines before it, so lines are read after what is said.
            if job.has_room() {
                channels.push((JobChannel::Status(job.task).into(), job.status));
                of.push(*lease);
            }
            channels.push((JobChannel::Logs(job.task).into(), job.lines));
            of.push(*lease);
        }
        let mut at = 0;
        while at < channels.len() {
            let end = channels.len().min(at + READ_CHANNELS_MAX);
            let found = bus.read(&channels[at..end], BUDGET)?;
            let read_to_end = found.channels;
            self.take(jobs, &channels[at..end], &of[at..end], found, complaints, now);
            // The channel that spent the budget is read again in the next sweep, so that the others are not kept waiting.
            at = (at + read_to_end + 1).min(end).max(at + 1);
        }
        Ok(self.clock.boot().saturating_sub(began))
    }

    fn take(
        &self,
        jobs: &mut BTreeMap<LeaseId, Job>,
        channels: &[(Channel, EntryId)],
        of: &[LeaseId],
        found: Found,
        complaints: &mut Complaints,
        now: Duration,
    ) {
        let mut unstored = BTreeSet::new();
        for (place, entry) in found.entries {
            let lease = of[place];
            let Some(job) = jobs.get_mut(&lease) else { continue };
            if is_status(&channels[place].0) {
                take_status(job, lease, entry, complaints, now);
            } else if !unstored.contains(&lease) && !self.store(job, lease, entry, complaints, now) {
                unstored.insert(lease);
            }
        }
        for place in 0..found.channels {
            let lease = of[place];
            if !is_status(&channels[place].0)
                && !unstored.contains(&lease)
                && let Some(job) = jobs.get_mut(&lease)
            {
                job.has_lines();
            }
        }
    }

    /// Stores the lines of one entry. Answers false when they must be read again.
    fn store(
        &self,
        job: &mut Job,
        lease: LeaseId,
        entry: Entry,
        complaints: &mut Complaints,
        now: Duration,
    ) -> bool {
        let Entry { id, content } = entry;
        // The first entry says whose channel it is.
        if id == EntryId::from(lease) {
            job.lines = id;
            return true;
        }
        let logs = match content {
            Content::Data(data) => read::<JobLogs>(&data),
            Content::Malformed { bytes } => Err(format!("{bytes} bytes that are no message")),
        };
        let stored = match logs {
            Ok(logs) if logs.history_id != lease => Err("HistoryId is not that of the channel".to_owned()),
            Ok(logs) => match self.store_lines(job, lease, id, logs) {
                Ok(()) => Ok(()),
                Err(request::Error::Refused(refusal)) => Err(refusal.to_string()),
                Err(error) => {
                    tracing::debug!(%lease, %error, "cannot store lines of output; they are read again");
                    return false;
                }
            },
            Err(why) => Err(why),
        };
        if let Err(why) = stored {
            complaints.about("job.logs", None, &why, now);
        }
        job.lines = id;
        job.old_lines.push(id);
        true
    }

    fn store_lines(
        &self,
        job: &Job,
        lease: LeaseId,
        entry: EntryId,
        logs: JobLogs,
    ) -> Result<(), request::Error> {
        let lines: Vec<LogText> = logs
            .lines
            .into_iter()
            .map(|line| LogText { text: line.text, stream: line.stream.unwrap_or_default() })
            .collect();
        // Whatever is missing before these lines is marked.
        let (offset, skipped) = (logs.offset, logs.offset.unwrap_or(0));
        let body = LogAppend { lease_id: lease, lines, offset, skipped };
        self.output.append(job.task, job.attempt, body, entry).map(drop)
    }
}

fn is_status(channel: &Channel) -> bool {
    matches!(channel, Channel::Job(JobChannel::Status(_)))
}

fn take_status(job: &mut Job, lease: LeaseId, entry: Entry, complaints: &mut Complaints, now: Duration) {
    let Entry { id, content } = entry;
    if !job.has_room() {
        return;
    }
    job.status = id;
    if id == EntryId::from(lease) {
        return;
    }
    let status = match content {
        Content::Data(data) => read::<JobStatus>(&data),
        Content::Malformed { bytes } => Err(format!("{bytes} bytes that are no message")),
    };
    match status {
        Ok(status) if status.history_id != lease => {
            let why = "HistoryId is not that of the channel";
            complaints.about("job.status", Some(&status.worker_id), why, now);
            job.old_status.push(id);
        }
        Ok(status) => job.hear(Spoken::of(id, status)),
        Err(why) => {
            complaints.about("job.status", None, &why, now);
            job.old_status.push(id);
        }
    }
}

/// Removes what is done with from the channels of a lease.
fn forget_old(bus: &dyn Bus, lease: LeaseId, job: &mut Job) -> Result<(), Error> {
    for (channel, old) in [
        (JobChannel::Status(job.task), &mut job.old_status),
        (JobChannel::Logs(job.task), &mut job.old_lines),
    ] {
        if !old.is_empty() {
            let some = old.len().min(orchestrix_engine::bus::ENTRIES_MAX);
            bus.delete(channel, lease, &old[..some])?;
            old.drain(..some);
        }
    }
    Ok(())
}
