//! Messages between actors and the server: late, lost, doubled.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use orchestrix_core::Json;
use orchestrix_core::wire::{Complete, Fail, Heartbeat, LeaseQueues, Release, ServiceChange};
use orchestrix_node::{Error, Node};

use crate::coverage::Covered;
use crate::history::{Answer, Question};
use crate::plan::Plan;
use crate::rng::Rng;
use crate::shards::messages::{Copy, copies};
use crate::world::{Happening, MS, Op, Pending, SECOND, World};

/// How long an actor waits for an answer beyond what it asked the server to wait.
const PATIENCE: u64 = 2 * SECOND;

impl World {
    /// An actor asks something; every message may be lost, doubled or late.
    pub(crate) fn send(&mut self, actor: usize, question: Question) -> usize {
        let op = self.ops.len();
        let waits = question.waits_ms(&self.plan) * MS;
        let durable_before = self.mirror.durable();
        let about_shards = question.is_about_shards();
        let hangs_up = hangs_up(&self.plan, &question, &mut self.impatience).filter(|_| self.faulty);
        self.ops.push(Op { actor, question, sent: self.now, durable_before, done: false });
        self.push(self.now + waits + PATIENCE, Happening::GiveUp(op));
        if let Some(after) = hangs_up {
            self.push(self.now + after, Happening::HangUp(op));
        }
        if about_shards {
            self.copies().into_iter().for_each(|delay| self.push(self.now + delay, Happening::Arrive(op)));
            return op;
        }
        let copies = if self.faulty && self.rng.chance(self.plan.doubled) { 2 } else { 1 };
        self.see(copies == 2, Covered::MessageDoubled);
        for _ in 0..copies {
            if let Some(delay) = self.delay() {
                self.push(self.now + delay, Happening::Arrive(op));
            }
        }
        op
    }

    /// How long each copy of a message about shards takes.
    pub(crate) fn copies(&mut self) -> Vec<u64> {
        let (plan, record) = (self.plan.shards.as_ref(), &mut self.history.shards);
        let copies = copies(plan, self.faulty, &mut self.rng, record).into_iter();
        copies
            .map(|copy| match copy {
                Copy::Quick(takes) | Copy::Late(takes) => takes,
            })
            .collect()
    }

    /// How long a message takes, unless it is lost.
    pub(crate) fn delay(&mut self) -> Option<u64> {
        if self.faulty && self.rng.chance(self.plan.lost) {
            self.coverage.add(Covered::MessageLost);
            return None;
        }
        let slow = self.faulty && self.rng.chance(self.plan.slow);
        Some(if slow { self.rng.range(MS, 5 * SECOND) } else { self.rng.range(20, 500) })
    }

    pub(crate) fn arrive(&mut self, op: usize) {
        let Some(server) = &self.server else { return };
        let node = server.node.clone();
        if let Question::Submit(task) = &self.ops[op].question {
            self.history.submits.push((task.clone(), 1));
        }
        let mut future: Pin<Box<dyn Future<Output = Result<Answer, Error>>>> =
            Box::pin(put(node, self.ops[op].question.clone()));
        let mut context = Context::from_waker(Waker::noop());
        // The first poll puts the question into the line of the loop. An answer at once is taken at the next look.
        match future.as_mut().poll(&mut context) {
            Poll::Ready(answer) => {
                let id = self.next_pending();
                self.pending.insert(id, Pending { op, future: Box::pin(std::future::ready(answer)) });
            }
            Poll::Pending => {
                let id = self.next_pending();
                self.pending.insert(id, Pending { op, future });
            }
        }
        let takes = self.rng.range(1, 100);
        self.decide_after(takes);
    }

    pub(crate) fn next_pending(&mut self) -> u64 {
        self.next_pending += 1;
        self.next_pending
    }
}

/// When the caller hangs up to ask again under the same name, if it does: often while its call has been decided and is
/// not durable.
pub(crate) fn hangs_up(plan: &Plan, question: &Question, rng: &mut Rng) -> Option<u64> {
    let named = matches!(question, Question::Lease { request_id: Some(_), .. });
    (named && rng.chance(plan.hang_ups)).then(|| rng.skewed(MS / 2, 300 * MS))
}

/// Puts a question to a node.
pub(crate) async fn put(node: Node, question: Question) -> Result<Answer, Error> {
    match question {
        Question::Submit(task) => {
            let (outcome, seen) = node.submit(task).await?;
            Ok(Answer::Submitted(outcome, seen))
        }
        Question::Lease { queues, worker, max, lease_ms, wait_ms, request_id, capacity } => {
            let request = LeaseQueues { queues, worker, max, lease_ms, wait_ms, request_id, capacity };
            node.lease(request).await.map(Answer::Leases)
        }
        Question::Heartbeat { task, lease, worker } => {
            let body = Heartbeat { lease_id: lease, worker: Some(worker), progress: None, note: None };
            node.heartbeat(task, body).await.map(Answer::Extended)
        }
        Question::HeartbeatAll { worker, leases } => {
            node.heartbeat_worker(worker, leases).await.map(Answer::WorkerExtended)
        }
        Question::Complete { task, lease, worker, result } => {
            let result = Json::parse(&result).ok();
            let body = Complete { lease_id: lease, worker: Some(worker), result };
            node.complete(task, body).await.map(Answer::Outcome)
        }
        Question::Fail { task, lease, worker, retry } => {
            let body = Fail { lease_id: lease, worker: Some(worker), error: "it broke".to_owned(), retry };
            node.fail(task, body).await.map(Answer::Outcome)
        }
        Question::Release { task, lease, worker } => {
            node.release(task, Release { lease_id: lease, worker: Some(worker) }).await.map(Answer::Outcome)
        }
        Question::Cancel { task } => node.cancel(task, None).await.map(Answer::Outcome),
        Question::Retry { task } => node.retry(task, None).await.map(Answer::Outcome),
        Question::Get { task } => node.task(task).await.map(|view| Answer::Task(Box::new(view))),
        Question::Queues => node.queues().await.map(Answer::Queues),
        Question::Shards { ask, .. } => node.shards(*ask).await.map(Answer::Assignment),
        Question::ChangeService { service, count } => {
            let change = ServiceChange { shard_count: Some(count), weights: None };
            node.change_service(service, change).await.map(|_| Answer::ServiceChanged)
        }
    }
}
