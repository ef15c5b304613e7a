//! The actors of a world: clients that submit tasks, workers that do them, and workers that divide shards.

mod submitter;
mod worker;

use orchestrix_core::{LeaseId, Name, TaskId};
use orchestrix_node::Error;

use crate::actors::submitter::Submitter;
use crate::actors::worker::Worker;
use crate::coverage::Covered;
use crate::history::{Answer, Execution, Question};
use crate::plan::Plan;
use crate::rng::Rng;
use crate::shards::record::Record;
use crate::shards::worker::{ShardWorker, workers};
use crate::world::Op;

/// What actors live on: a world with one coordinator, or with several.
pub(crate) trait Ground {
    fn plan(&self) -> &Plan;

    /// Microseconds since the beginning.
    fn now(&self) -> u64;

    /// Whether things still go wrong.
    fn faulty(&self) -> bool;

    /// What was asked.
    fn op(&self, op: usize) -> &Op;

    /// Asks something; answers under which number.
    fn ask(&mut self, actor: usize, question: Question) -> usize;

    /// The connections of a process of a service are closed: its answers have no reader.
    fn close(&mut self, process: usize);

    fn wake_after(&mut self, actor: usize, us: u64);

    fn see(&mut self, happened: bool, item: Covered);

    fn executed(&mut self, execution: Execution);

    /// What workers of services did.
    fn shards(&mut self) -> &mut Record;

    /// A recent lease of another worker.
    fn lease_of_another(&self, worker: &Name) -> Option<(TaskId, LeaseId)>;
}

/// An actor; `None` while it acts.
pub(crate) enum Actor {
    Submitter(Submitter),
    Worker(Worker),
    ShardWorker(Box<ShardWorker>),
    Away,
}

/// What comes of a question.
#[derive(Clone, Debug)]
pub(crate) enum Heard {
    Answer(Result<Answer, Error>),
    /// Nothing came in time: it happened or it did not.
    Nothing,
}

impl Heard {
    /// The answer, unless it leaves open what happened.
    fn certain(self) -> Option<Result<Answer, Error>> {
        match self {
            Self::Answer(Err(Error::OutcomeUnknown)) | Self::Nothing => None,
            Self::Answer(answer) => Some(answer),
        }
    }
}

/// Everyone that a plan asks for.
pub(crate) fn actors(plan: &Plan, rng: &mut Rng) -> Vec<Actor> {
    let each = plan.tasks.div_ceil(plan.submitters as u64);
    let submitters = (0..plan.submitters).map(|n| Actor::Submitter(Submitter::new(n, each, rng.fork())));
    let mut all: Vec<Actor> = submitters.collect();
    all.extend((0..plan.workers).map(|n| Actor::Worker(Worker::new(n, plan, rng.fork()))));
    if let Some(shards) = &plan.shards {
        all.extend(workers(shards, rng).into_iter().map(|worker| Actor::ShardWorker(Box::new(worker))));
    }
    all
}

impl Actor {
    pub(crate) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Away)
    }

    pub(crate) fn wake(&mut self, world: &mut dyn Ground, me: usize) {
        match self {
            Self::Submitter(submitter) => submitter.wake(world, me),
            Self::Worker(worker) => worker.wake(world, me),
            Self::ShardWorker(worker) => worker.wake(world, me),
            Self::Away => {}
        }
    }

    pub(crate) fn hear(&mut self, world: &mut dyn Ground, me: usize, op: usize, heard: Heard) {
        match self {
            Self::Submitter(submitter) => submitter.hear(world, me, op, heard),
            Self::Worker(worker) => worker.hear(world, me, op, heard),
            Self::ShardWorker(worker) => worker.hear(world, me, op, heard),
            Self::Away => {}
        }
    }

    /// The world ends: what is under way is noted down.
    pub(crate) fn end(&mut self, world: &mut dyn Ground) {
        match self {
            Self::ShardWorker(worker) => worker.end(world),
            Self::Submitter(_) | Self::Worker(_) | Self::Away => {}
        }
    }

    /// Whether it wants nothing more and holds nothing.
    pub(crate) fn is_done(&self) -> bool {
        match self {
            Self::Submitter(submitter) => submitter.is_done(),
            Self::Worker(worker) => worker.is_done(),
            // Whether shards are at rest is seen from outside.
            Self::ShardWorker(_) => true,
            Self::Away => false,
        }
    }
}
