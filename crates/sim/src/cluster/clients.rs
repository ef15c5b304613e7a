//! Clients of the nodes of a world: they ask the node that they take for the leader, and now and then another.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use orchestrix_core::{LeaseId, Name, TaskId, Timestamp};
use orchestrix_node::Error;

use crate::actors::{Ground, Heard};
use crate::cluster::coverage::ClusterCovered;
use crate::cluster::engine::Who;
use crate::cluster::happening::{Doing, Happening, Pending};
use crate::cluster::world::ClusterWorld;
use crate::coverage::Covered;
use crate::history::{Answer, Call, Execution, Question};
use crate::network::{hangs_up, put};
use crate::plan::Plan;
use crate::shards::messages::{Copy, copies};
use crate::shards::record::Record;
use crate::world::{MS, Op, SECOND};

/// How long an actor waits for an answer beyond what it asked a node to wait.
const PATIENCE: u64 = 2 * SECOND;

impl ClusterWorld {
    /// Who is asked: most often the node that acts, else any that believes so, else none.
    fn target(&mut self) -> Option<Who> {
        let believers: Vec<usize> = (0..self.machines.len())
            .filter(|node| self.machines[*node].process.as_ref().is_some_and(|it| it.leads.is_some()))
            .collect();
        if believers.is_empty() {
            return None;
        }
        let any = believers[self.rng.index(believers.len())];
        let stale = self.faulty && self.rng.chance(self.plan.stale_target);
        let acting = believers.into_iter().find(|node| self.machines[*node].acts().is_some());
        let chosen = acting.filter(|_| !stale).unwrap_or(any);
        if self.machines[chosen].acts().is_none() {
            self.coverage.add(ClusterCovered::AskedOfAStaleLeader);
        }
        self.who(chosen)
    }

    fn message_delay(&mut self) -> Option<u64> {
        if self.faulty && self.rng.chance(self.plan.message_lost) {
            self.coverage.add(ClusterCovered::MessageLost);
            return None;
        }
        Some(self.rng.range(20, 500))
    }

    fn copies(&mut self) -> Vec<Copy> {
        copies(self.plan.actors.shards.as_ref(), self.faulty, &mut self.rng, &mut self.history.shards)
    }

    /// A quick message goes to the current leader as the client knows it, a late one to the leader when it arrives.
    fn send_copies(&mut self, op: usize) {
        for copy in self.copies() {
            match copy {
                Copy::Quick(takes) => self.send_to_leader(op, takes),
                Copy::Late(takes) => self.push(self.now + takes, Happening::Deliver(op)),
            }
        }
    }

    pub(crate) fn deliver(&mut self, op: usize) {
        self.send_to_leader(op, 1);
    }

    fn send_to_leader(&mut self, op: usize, takes: u64) {
        match self.target() {
            Some(who) => self.after(takes, who, Doing::Question(op)),
            None => self.push(self.now + MS, Happening::Refused(op)),
        }
    }

    /// A question arrives at a node.
    pub(crate) fn question(&mut self, who: Who, op: usize) {
        let Some(leads) = &self.process(who).leads else {
            let takes = self.rng.range(20, 500);
            self.push(self.now + takes, Happening::Refused(op));
            return;
        };
        let node = leads.node.clone();
        if let Question::Submit(task) = &self.ops[op].question {
            self.history.submits.push((task.clone(), 1));
        }
        let mut future: Pin<Box<dyn Future<Output = Result<Answer, Error>>>> =
            Box::pin(put(node, self.ops[op].question.clone()));
        let mut context = Context::from_waker(Waker::noop());
        // The first poll puts the question into the line of the loop.
        if let Poll::Ready(answer) = future.as_mut().poll(&mut context) {
            future = Box::pin(std::future::ready(answer));
        }
        self.next_pending += 1;
        self.pending.insert(self.next_pending, Pending { op, who, future });
        let takes = self.rng.range(1, 100);
        self.decide_after(who, takes);
    }

    pub(crate) fn answered(&mut self, op: usize, answer: Result<Answer, Error>, at: Timestamp) {
        let call = Call {
            op,
            question: self.ops[op].question.clone(),
            durable_before: self.ops[op].durable_before,
            durable_after: self.mirror.durable(),
            at,
            asked_us: self.ops[op].sent,
            answered_us: self.now,
            answer,
        };
        self.trace(format_args!("{call:?}"));
        self.tell(|| format!("  answer to op {op}: {:?} -> {:?}", call.question, call.answer));
        let about_shards = call.question.is_about_shards();
        self.history.calls.push(call);
        let number = self.history.calls.len() - 1;
        if about_shards {
            for copy in self.copies() {
                let (Copy::Quick(takes) | Copy::Late(takes)) = copy;
                self.push(self.now + takes, Happening::Answered(op, number));
            }
        } else if let Some(delay) = self.message_delay() {
            self.push(self.now + delay, Happening::Answered(op, number));
        }
    }

    /// The answers to these are dropped.
    pub(crate) fn unanswered(&mut self, ops: impl IntoIterator<Item = usize>) {
        let asked = ops.into_iter().map(|op| (self.ops[op].question.clone(), self.ops[op].sent));
        self.history.unanswered.extend(asked);
    }

    /// The node of this life answers no call any more.
    pub(crate) fn forget_pending(&mut self, who: Who) {
        self.output.forget(who);
        let open: Vec<u64> =
            self.pending.iter().filter(|(_, pending)| pending.who == who).map(|(id, _)| *id).collect();
        let ops: Vec<usize> =
            open.into_iter().filter_map(|id| self.pending.remove(&id)).map(|pending| pending.op).collect();
        self.unanswered(ops);
    }

    pub(crate) fn answer_arrives(&mut self, op: usize, call: usize) {
        // A worker of a service gets every answer, however late.
        if !self.ops[op].done || self.ops[op].question.is_about_shards() {
            self.ops[op].done = true;
            let heard = Heard::Answer(self.history.calls[call].answer.clone());
            self.tell_actor(op, heard);
        }
    }

    /// "I do not lead": nothing was done, and the actor comes again later.
    pub(crate) fn refusal_arrives(&mut self, op: usize) {
        if !self.ops[op].done {
            self.ops[op].done = true;
            self.tell_actor(op, Heard::Answer(Err(Error::Stopping)));
        }
    }

    pub(crate) fn give_up(&mut self, op: usize) {
        if !self.ops[op].done {
            self.ops[op].done = true;
            self.tell_actor(op, Heard::Nothing);
        }
    }

    /// The connection is closed: an answer to it cannot be delivered.
    pub(crate) fn hang_up(&mut self, op: usize) {
        if !self.faulty || self.ops[op].done {
            return;
        }
        self.coverage.add(ClusterCovered::HungUp);
        self.ops[op].done = true;
        let before = self.pending.len();
        self.pending.retain(|_, pending| pending.op != op);
        self.unanswered(std::iter::repeat_n(op, before - self.pending.len()));
        self.tell_actor(op, Heard::Nothing);
    }

    fn tell_actor(&mut self, op: usize, heard: Heard) {
        let actor = self.ops[op].actor;
        let mut acting = self.actors[actor].take();
        acting.hear(self, actor, op, heard);
        self.actors[actor] = acting;
    }

    pub(crate) fn wake(&mut self, actor: usize) {
        // One that was put off is not this one.
        if self.wakes[actor].is_some_and(|at| at <= self.now) {
            self.wakes[actor] = None;
            let mut acting = self.actors[actor].take();
            acting.wake(self, actor);
            self.actors[actor] = acting;
        }
    }
}

impl Ground for ClusterWorld {
    fn plan(&self) -> &Plan {
        &self.plan.actors
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn faulty(&self) -> bool {
        self.faulty
    }

    fn op(&self, op: usize) -> &Op {
        &self.ops[op]
    }

    fn ask(&mut self, actor: usize, question: Question) -> usize {
        let op = self.ops.len();
        let waits = question.waits_ms(&self.plan.actors) * MS;
        let durable_before = self.mirror.durable();
        let about_shards = question.is_about_shards();
        let hangs_up = hangs_up(&self.plan.actors, &question, &mut self.impatience).filter(|_| self.faulty);
        self.ops.push(Op { actor, question, sent: self.now, durable_before, done: false });
        if about_shards {
            self.push(self.now + waits + PATIENCE, Happening::GiveUp(op));
            self.send_copies(op);
            return op;
        }
        match self.target() {
            Some(who) => {
                if let Some(delay) = self.message_delay() {
                    self.after(delay, who, Doing::Question(op));
                }
            }
            None => self.push(self.now + MS, Happening::Refused(op)),
        }
        self.push(self.now + waits + PATIENCE, Happening::GiveUp(op));
        if let Some(after) = hangs_up {
            self.push(self.now + after, Happening::HangUp(op));
        }
        op
    }

    fn close(&mut self, process: usize) {
        let is_its = |op: usize| self.ops[op].question.is_of(process);
        let closed: Vec<u64> =
            self.pending.iter().filter(|(_, pending)| is_its(pending.op)).map(|(id, _)| *id).collect();
        let ops: Vec<usize> =
            closed.into_iter().filter_map(|id| self.pending.remove(&id)).map(|pending| pending.op).collect();
        self.unanswered(ops);
    }

    fn wake_after(&mut self, actor: usize, us: u64) {
        let at = self.now + us.max(1);
        if self.wakes[actor].is_none_or(|planned| at < planned) {
            self.wakes[actor] = Some(at);
            self.push(at, Happening::Wake(actor));
        }
    }

    fn see(&mut self, happened: bool, item: Covered) {
        if happened {
            self.task_coverage.add(item);
        }
    }

    fn executed(&mut self, execution: Execution) {
        self.history.executions.push(execution);
    }

    fn shards(&mut self) -> &mut Record {
        &mut self.history.shards
    }

    fn lease_of_another(&self, worker: &Name) -> Option<(TaskId, LeaseId)> {
        self.mirror.lease_of_another(worker)
    }
}
