//! Processes that no longer represent their worker: each was replaced, left, expired, or another one was seen.

use std::collections::BTreeMap;

use orchestrix_core::Name;

/// Processes that are remembered, those of all services together. Bounds memory: one that ended before so many others is
/// taken for a new connection of its worker when it is plain, as after a change of leader.
const ENDED_MAX: usize = 20_000;

/// A service, a worker of it, and the session of a process.
type Process = (Name, Name, Name);

#[derive(Debug, Default)]
pub(super) struct Ended {
    /// Each with its number.
    numbers: BTreeMap<Process, u64>,
    by_number: BTreeMap<u64, Process>,
    last: u64,
}

impl Ended {
    pub(super) fn add(&mut self, service: &Name, worker: &Name, session: &Name) {
        self.remove(service, worker, session);
        let process = (service.clone(), worker.clone(), session.clone());
        self.last += 1;
        self.numbers.insert(process.clone(), self.last);
        self.by_number.insert(self.last, process);
        if self.numbers.len() > ENDED_MAX
            && let Some((_, oldest)) = self.by_number.pop_first()
        {
            self.numbers.remove(&oldest);
        }
    }

    /// It has come anew.
    pub(super) fn remove(&mut self, service: &Name, worker: &Name, session: &Name) {
        let process = (service.clone(), worker.clone(), session.clone());
        if let Some(number) = self.numbers.remove(&process) {
            self.by_number.remove(&number);
        }
    }

    pub(super) fn contains(&self, service: &Name, worker: &Name, session: &Name) -> bool {
        self.numbers.contains_key(&(service.clone(), worker.clone(), session.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    #[test]
    fn the_last_so_many_are_remembered_and_no_more() {
        let (service, worker) = (name("s"), name("w"));
        let session = |number: usize| name(&format!("p{number}"));
        let mut ended = Ended::default();
        for number in 0..ENDED_MAX {
            ended.add(&service, &worker, &session(number));
        }
        assert!(ended.contains(&service, &worker, &session(0)));
        ended.add(&service, &worker, &session(0));
        ended.add(&service, &worker, &session(ENDED_MAX));
        assert!(!ended.contains(&service, &worker, &session(1)), "it was the oldest");
        assert!(ended.contains(&service, &worker, &session(0)), "it ended again");
        assert_eq!((ended.numbers.len(), ended.by_number.len()), (ENDED_MAX, ENDED_MAX));
        ended.remove(&service, &worker, &session(0));
        assert!(!ended.contains(&service, &worker, &session(0)));
    }
}
