//! One lease that a node owns, with what its worker has said and nobody has answered yet.

use orchestrix_core::limits::NOTE_BYTES_MAX;
use orchestrix_core::wire::bus::{JobStatus, Status};
use orchestrix_core::{Name, TaskId};
use orchestrix_engine::bus::EntryId;

use super::Said;

/// What is kept unanswered of one worker. What follows stays in its channel.
const SPOKEN_MAX: usize = 64;

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) task: TaskId,
    /// Of the output; known as soon as the leader has said what this node owns.
    pub(crate) attempt: u32,
    /// How far each channel is read.
    pub(crate) status: EntryId,
    pub(crate) lines: EntryId,
    /// There may be lines that came before the last words.
    lacks_lines: bool,
    spoken: Vec<Spoken>,
    /// Done with, and still in the channels.
    pub(crate) old_status: Vec<EntryId>,
    pub(crate) old_lines: Vec<EntryId>,
}

/// What a worker said in one entry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spoken {
    pub(crate) entry: EntryId,
    pub(crate) worker: Name,
    pub(crate) said: Said,
}

impl Spoken {
    pub(crate) fn of(entry: EntryId, status: JobStatus) -> Self {
        let JobStatus { worker_id: worker, status, progress, note, result, error, retry, .. } = status;
        let said = match status {
            Status::Running => Said::Running { progress, note },
            Status::Completed => Said::Completed { result },
            Status::Failed => Said::Failed { error: error.unwrap_or_default(), retry: retry.unwrap_or(true) },
            Status::Released => Said::Released,
        };
        Self { entry, worker, said }
    }

    pub(crate) fn bytes(&self) -> usize {
        match &self.said {
            Said::Completed { result } => result.as_ref().map_or(0, |result| result.as_str().len()),
            Said::Failed { error, .. } => error.len(),
            Said::Running { note, .. } => note.as_ref().map_or(0, String::len),
            Said::Released => 0,
        }
    }
}

impl Job {
    pub(crate) fn new(task: TaskId, attempt: u32) -> Self {
        Self {
            task,
            attempt,
            status: EntryId::ZERO,
            lines: EntryId::ZERO,
            lacks_lines: false,
            spoken: Vec::new(),
            old_status: Vec::new(),
            old_lines: Vec::new(),
        }
    }

    /// Whether more is to be read of what its worker says.
    pub(crate) fn has_room(&self) -> bool {
        self.spoken.len() < SPOKEN_MAX
    }

    pub(crate) fn hear(&mut self, spoken: Spoken) {
        self.lacks_lines |= spoken.said.is_last();
        // Last words are repeated until they are heard.
        if self.spoken.iter().any(|earlier| earlier.said == spoken.said && earlier.worker == spoken.worker) {
            return self.old_status.push(spoken.entry);
        }
        self.spoken.push(spoken);
    }

    /// All lines up to now are stored.
    pub(crate) fn has_lines(&mut self) {
        self.lacks_lines = false;
    }

    /// What can be said to the leader.
    pub(crate) fn to_report(&self) -> impl Iterator<Item = &Spoken> {
        self.spoken.iter().take_while(|spoken| !self.lacks_lines || !spoken.said.is_last())
    }

    pub(crate) fn is_reported(&mut self, entry: EntryId) {
        self.spoken.retain(|spoken| spoken.entry != entry);
        self.old_status.push(entry);
    }

    /// What was said cannot be taken. If these were last words, the task fails for it: the worker would say them for ever.
    pub(crate) fn is_refused(&mut self, entry: EntryId, why: &str) {
        let at = self.spoken.iter().position(|spoken| spoken.entry == entry);
        let Some(spoken) = at.and_then(|at| self.spoken.get_mut(at)) else { return };
        let was_refused = matches!(spoken.said, Said::Failed { retry: false, .. });
        if !spoken.said.is_last() || was_refused {
            return self.is_reported(entry);
        }
        let mut error = format!("what the worker said last cannot be taken: {why}");
        while error.len() > NOTE_BYTES_MAX {
            error.pop();
        }
        spoken.said = Said::Failed { error, retry: false };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(n: u64) -> EntryId {
        EntryId { major: n, minor: 1 }
    }

    fn spoken(n: u64, said: Said) -> Spoken {
        Spoken { entry: entry(n), worker: Name::new("w").unwrap(), said }
    }

    fn said(job: &Job) -> Vec<Said> {
        job.to_report().map(|spoken| spoken.said.clone()).collect()
    }

    #[test]
    fn last_words_wait_for_the_lines_before_them() {
        let mut job = Job::new(TaskId(1), 1);
        let running = Said::Running { progress: None, note: None };
        job.hear(spoken(1, running.clone()));
        job.hear(spoken(2, Said::Released));
        assert_eq!(said(&job), std::slice::from_ref(&running));
        job.has_lines();
        assert_eq!(said(&job), [running, Said::Released]);
    }

    #[test]
    fn what_is_said_twice_is_reported_once() {
        let mut job = Job::new(TaskId(1), 1);
        job.hear(spoken(1, Said::Released));
        job.hear(spoken(2, Said::Released));
        job.has_lines();
        assert_eq!(said(&job).len(), 1);
        assert_eq!(job.old_status, [entry(2)]);
        job.is_reported(entry(1));
        assert_eq!(said(&job), []);
    }

    #[test]
    fn last_words_that_cannot_be_taken_fail_the_task_once() {
        let mut job = Job::new(TaskId(1), 1);
        job.hear(spoken(1, Said::Completed { result: None }));
        job.has_lines();
        job.is_refused(entry(1), "result has 300000 bytes");
        let [Said::Failed { error, retry: false }] = &said(&job)[..] else { panic!("it should fail") };
        assert!(error.contains("300000 bytes"));
        job.is_refused(entry(1), "again");
        assert_eq!(said(&job), []);
    }
}
