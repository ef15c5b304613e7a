//! How a worker handles answers and pushes.

use std::collections::BTreeMap;

use orchestrix_core::Position;
use orchestrix_core::wire::Assignment;
use orchestrix_node::ShardAsk;

use super::{Serving, ShardWorker, Standing};
use crate::actors::{Ground, Heard};
use crate::history::{Answer, Question};
use crate::shards::coverage::ShardCovered;
use crate::shards::record::Kind;
use crate::world::{MS, SECOND};

impl ShardWorker {
    pub(crate) fn hear(&mut self, world: &mut dyn Ground, me: usize, op: usize, heard: Heard) {
        if world.now() < self.frozen_until && world.faulty() {
            self.inbox.push((op, heard));
            return;
        }
        self.stop_in_time(world);
        self.listen(world, op, heard);
        self.wake_again(world, me);
    }

    pub(super) fn listen(&mut self, world: &mut dyn Ground, op: usize, heard: Heard) {
        let (sent, question) = (world.op(op).sent, world.op(op).question.clone());
        let Question::Shards { process, ask } = question else { return };
        if process != self.number || self.is_down() {
            return;
        }
        let answered = match heard {
            Heard::Answer(Ok(Answer::Assignment(assignment))) => Some(assignment),
            Heard::Answer(_) | Heard::Nothing => None,
        };
        let Some(assignment) = answered else {
            if self.standing == (Standing::Coming { op }) {
                self.standing = Standing::Out;
            }
            return;
        };
        if sent < self.since {
            world.shards().coverage.add(ShardCovered::AnswerOfBeforeIgnored);
            return;
        }
        match *ask {
            ShardAsk::Register { .. } | ShardAsk::Heartbeat { .. } => {
                self.answered(world, op, sent, &assignment)
            }
            ShardAsk::Assignment { .. } => self.look_at(world, &assignment),
            ShardAsk::Deregister { .. }
            | ShardAsk::Change { .. }
            | ShardAsk::Service(_)
            | ShardAsk::Services { .. } => {}
        }
    }

    fn answered(&mut self, world: &mut dyn Ground, op: usize, sent: u64, assigned: &Assignment) {
        if self.is_deaf() && std::mem::replace(&mut self.heard, true) {
            // It does not learn that it is fenced; its operator sees it, and restarts it.
            if assigned.fenced && !world.faulty() {
                self.die(world);
            }
            return;
        }
        if assigned.fenced {
            return self.fenced(world);
        }
        if assigned.lease_ms == 0 && !self.is_deaf() {
            world.shards().coverage.add(ShardCovered::NotLetIn);
            if self.standing == (Standing::Coming { op }) {
                self.standing = Standing::Out;
            }
            return;
        }
        self.standing = Standing::In;
        if assigned.lease_ms > 0 {
            self.promised_ms = Some(assigned.lease_ms);
        }
        let until = match self.process.kind {
            Kind::Aware => sent + self.process.world_us(assigned.lease_ms),
            Kind::Plain | Kind::Deaf => u64::MAX,
        };
        self.trusted_until = self.trusted_until.max(until);
        self.take(world, assigned);
    }

    /// Stops everything, and comes again with nothing. Of two processes of one name, one gives up now and then.
    fn fenced(&mut self, world: &mut dyn Ground) {
        world.shards().coverage.add(ShardCovered::Fenced);
        let now = world.now();
        for shard in self.serves.keys().copied().collect::<Vec<u32>>() {
            self.stop(world, shard);
        }
        (self.standing, self.since, self.trusted_until) = (Standing::Out, now, 0);
        self.next_beat = now + self.rng.range(MS, SECOND);
        if self.is_twin && self.rng.chance(500_000) {
            self.die(world);
        }
    }

    /// Hears what it should serve without having said anything: that promises no time, so it counts only within what it
    /// was promised before.
    fn look_at(&mut self, world: &mut dyn Ground, assigned: &Assignment) {
        if assigned.fenced {
            return self.fenced(world);
        }
        let says_something = assigned.generation > Position(0);
        if says_something && world.now() < self.trusted_until {
            self.take(world, assigned);
        }
    }

    /// Serves its assignment, unless it has got a newer one.
    fn take(&mut self, world: &mut dyn Ground, assigned: &Assignment) {
        let now = world.now();
        if self.process.kind == Kind::Aware && assigned.generation < self.generation {
            world.shards().coverage.add(ShardCovered::LowerGenerationIgnored);
            return;
        }
        self.generation = assigned.generation;
        let new: BTreeMap<u32, Position> =
            assigned.assigned_shards.iter().copied().zip(assigned.tokens.iter().copied()).collect();
        for (shard, serving) in self.serves.clone() {
            let token = new.get(&shard);
            if token.is_some_and(|token| *token != serving.token) {
                self.stop(world, shard);
                self.next_beat = now;
            } else if token.is_none() && serving.stops_at.is_none() {
                // To stop takes a while, now and then.
                let takes = if self.rng.chance(300_000) { self.rng.range(MS, SECOND) } else { 0 };
                if let Some(serving) = self.serves.get_mut(&shard) {
                    serving.stops_at = Some(now + takes);
                }
            }
        }
        if now < self.trusted_until {
            for (shard, token) in new {
                self.serves.entry(shard).or_insert(Serving { token, from: now, stops_at: None });
            }
        }
        self.stop_in_time(world);
    }
}
