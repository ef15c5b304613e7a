//! A loop whose clock is a number, and callers who can leave.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use orchestrix_core::wire::{LeaseQueues, Leased, Leases, Submit};
use orchestrix_core::{Command, Json, Name, Records, State, TaskId, Timestamp};
use orchestrix_node::{Abandoned, Answer, Ask, DecisionLoop, Error, Options, Recipient, Stats};

/// A caller who can leave.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) name: &'static str,
    pub(crate) gone: Arc<Mutex<BTreeSet<&'static str>>>,
}

impl Recipient for Caller {
    fn is_gone(&self) -> bool {
        self.gone.lock().unwrap().contains(self.name)
    }

    fn send(self, answer: Result<Answer, Error>) -> Result<(), Result<Answer, Error>> {
        if self.is_gone() { Err(answer) } else { Ok(()) }
    }
}

/// Who was answered, and what.
pub(crate) type Answered = (&'static str, Result<Answer, Error>);

pub(crate) struct World {
    pub(crate) decisions: DecisionLoop<Caller>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) now: Timestamp,
    pub(crate) gone: Arc<Mutex<BTreeSet<&'static str>>>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(Options::default())
    }

    pub(crate) fn with(options: Options) -> Self {
        let stats = Arc::new(Stats::default());
        let decisions = DecisionLoop::new(State::new(), options, Arc::clone(&stats));
        Self { decisions, stats, now: Timestamp(1_000_000), gone: Arc::default() }
    }

    pub(crate) fn ask(&mut self, name: &'static str, ask: Ask) {
        self.ask_within(name, ask, None);
    }

    /// Asks as somebody who is limited to some queues, if any are given.
    pub(crate) fn ask_within(&mut self, name: &'static str, ask: Ask, own: Option<&[Name]>) {
        let caller = Caller { name, gone: Arc::clone(&self.gone) };
        self.decisions.ask(ask, own, caller, self.now);
    }

    pub(crate) fn submit(&mut self, queue: &str) -> TaskId {
        self.ask("submitter", Ask::Command(submit(queue)));
        let (answers, _) = self.commit();
        let submitted = answers.into_iter().find(|(name, _)| *name == "submitter");
        match submitted.expect("a submit is answered").1 {
            Ok(Answer::Outcome { outcome, .. }) => outcome.id,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn poll(&mut self, name: &'static str, queue: &str, wait_ms: u64) {
        self.ask(name, Ask::Lease(request(name, queue, wait_ms)));
    }

    pub(crate) fn wait(&mut self, millis: u64) {
        self.now = self.now.plus(millis);
        self.decisions.tick(self.now);
    }

    /// What comes of the last questions when it is durable: the answers, and the names of the events before them.
    pub(crate) fn commit(&mut self) -> (Vec<Answered>, Vec<&'static str>) {
        let written = self.unwritten_turn();
        self.decisions.is_durable(self.decisions.state().position());
        written
    }

    /// The same, on its way to a disk that takes its time.
    pub(crate) fn unwritten_turn(&mut self) -> (Vec<Answered>, Vec<&'static str>) {
        let group = self.decisions.take_group();
        let events = Records::new(&group.records).map(|record| record.unwrap().1.name()).collect();
        (group.replies.into_iter().map(|(caller, answer)| (caller.name, answer)).collect(), events)
    }

    /// The turn is durable, and nobody took the answer to this caller.
    pub(crate) fn lost(&mut self, answers: &[Answered], name: &str) {
        self.lost_all(answers, &[name]);
    }

    /// The turn is durable, and nobody took the answers to these callers.
    pub(crate) fn lost_all(&mut self, answers: &[Answered], names: &[&str]) {
        let lost = answers.iter().filter(|(name, _)| names.contains(name));
        let abandoned: Vec<Abandoned> = lost.map(|(_, answer)| abandoned(answer)).collect();
        let durable = self.decisions.state().position();
        self.decisions.abandon(&abandoned, durable, self.now);
    }

    /// Who was answered with leases, and which tasks.
    pub(crate) fn leased(&mut self) -> Vec<(&'static str, Vec<u64>)> {
        let (answers, _) = self.commit();
        answers.into_iter().map(|(name, answer)| (name, tasks(&leases(answer)))).collect()
    }
}

pub(crate) fn submit(queue: &str) -> Command {
    Command::submit(Submit::new(Name::new(queue).unwrap(), Json::parse("1").unwrap()))
}

pub(crate) fn request(worker: &str, queue: &str, wait_ms: u64) -> LeaseQueues {
    LeaseQueues {
        queues: vec![Name::new(queue).unwrap()],
        worker: Name::new(worker).unwrap(),
        max: 1,
        lease_ms: 10_000,
        wait_ms,
        request_id: None,
        capacity: None,
    }
}

pub(crate) fn leases(answer: Result<Answer, Error>) -> Vec<Leased> {
    match answer {
        Ok(Answer::Leases { leases: Leases { leases, .. }, .. }) => leases,
        Ok(Answer::Outcome { .. }) => Vec::new(),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn abandoned(answer: &Result<Answer, Error>) -> Abandoned {
    let Ok(Answer::Leases { leases, at }) = answer else { panic!("{answer:?}") };
    let leases = leases.leases.iter().map(|leased| (leased.task_id, leased.lease_id)).collect();
    Abandoned { at: *at, leases }
}

pub(crate) fn tasks(leases: &[Leased]) -> Vec<u64> {
    leases.iter().map(|leased| leased.task_id.0).collect()
}

pub(crate) fn first_lease(answers: Vec<Answered>, name: &str) -> Leased {
    let answer = answers.into_iter().find(|(answered, _)| *answered == name).unwrap().1;
    leases(answer).remove(0)
}
