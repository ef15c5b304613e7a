//! What time asks for: workers that fell silent, rounds, and answers to those who wait for one.
//!
//! **Invariant:** a look at services is short: after so many shards the loop decides something else first.

use orchestrix_core::limits::{SERVICE_KEPT_MS, SHARD_GRANTS_MAX};
use orchestrix_core::shards::ShardCommand;
use orchestrix_core::wire::Assignment;
use orchestrix_core::{LeaveReason, Name, Timestamp, is_planted};

use super::soft::{Soft, Waiting};
use crate::decision_loop::DecisionLoop;
use crate::request::{Answer, Recipient};

/// Withdrawals of one round. More are for the next, so that never most of a service is on its way.
const MOVES_MAX: usize = 1_000;
/// Shards of the services that are looked at in one go. Bounds the pause of the loop.
const SLICE_SHARDS: usize = 20_000;

impl<R: Recipient> DecisionLoop<R> {
    /// Does what time asks for: ends what is over, makes a round, answers those whose round has settled.
    pub(crate) fn tick_shards(&mut self, now: Timestamp) {
        let mut looked_at = 0;
        while let Some((_, service)) = self.sharding.due.first().filter(|(at, _)| *at <= now).cloned() {
            if self.is_full() || looked_at >= SLICE_SHARDS {
                return;
            }
            looked_at += self.state.service(&service).map_or(0, |known| known.shards.len());
            self.expire_idle(&service, now);
            self.end_silent(&service, now);
            let round = self.sharding.services.get(&service).and_then(|soft| soft.round);
            if round.is_some_and(|round| round <= now) {
                self.round(&service, now);
            }
            self.press(&service, now);
            self.answer_waiting(&service, now);
            self.schedule(&service);
        }
    }

    fn end_silent(&mut self, service: &Name, now: Timestamp) {
        let over =
            |soft: &Soft<R>| soft.ends.first().filter(|(at, _)| *at <= now).map(|(_, worker)| worker.clone());
        while let Some(worker) = self.sharding.services.get(service).and_then(over) {
            let soft = self.sharding.services.get_mut(service).expect("it was just looked at");
            // Nobody is let in who does not wait any more.
            soft.waiting.retain(|waiting| waiting.worker != worker || !waiting.to.is_gone());
            let next = soft.waiting.iter().position(|waiting| waiting.worker == worker);
            let known = soft.workers.get(&worker);
            let replaced = known.is_some_and(|known| known.replaced);
            let speaks = known.and_then(|known| known.session.clone());
            if is_planted("silent-worker-kept") {
                self.promise(service, &worker, now);
                continue;
            }
            let reason = if replaced { LeaveReason::Fenced } else { LeaveReason::Silent };
            let next = next.map(|place| soft.waiting.remove(place));
            // A worker whose call still waits is alive.
            if let Some(waiting) = next {
                if !replaced && speaks.is_none_or(|speaks| speaks == waiting.session) {
                    soft.waiting.push(waiting);
                    self.promise(service, &worker, now);
                    continue;
                }
                let left = self.leave(service, &worker, reason, now);
                debug_assert!(left.is_ok(), "a worker can always leave");
                self.wait(service, waiting, now);
                continue;
            }
            let left = self.leave(service, &worker, reason, now);
            debug_assert!(left.is_ok(), "a worker can always leave");
            self.stats.shard_workers_lost.add(1);
            self.want_round(service, 0, now);
        }
    }

    fn round(&mut self, service: &Name, now: Timestamp) {
        let Some(soft) = self.sharding.services.get_mut(service) else { return };
        soft.round = None;
        soft.last_round = now;
        let command = ShardCommand::Move { service: service.clone(), most: MOVES_MAX };
        let granted = self.stats.shards_granted.get();
        if let Ok(Some(_)) = self.shard_command(command, now) {
            self.stats.shard_rounds.add(1);
            // There may be more of the same round, which goes on when others had their turn.
            if self.stats.shards_granted.get() - granted >= SHARD_GRANTS_MAX as u64
                && let Some(soft) = self.sharding.services.get_mut(service)
            {
                soft.round = Some(now);
            }
        }
    }

    /// Forgets a service that had no workers for long.
    fn expire_idle(&mut self, service: &Name, now: Timestamp) {
        let Some(soft) = self.sharding.services.get_mut(service) else { return };
        if soft.idle_since.is_none_or(|since| now.since(since) < SERVICE_KEPT_MS) {
            return;
        }
        soft.idle_since = None;
        if let Ok(Some(_)) = self.shard_command(ShardCommand::Expire { service: service.clone() }, now) {
            self.stats.services_expired.add(1);
        }
    }

    /// Answers those who came, when nothing is on its way any more or their patience is over.
    fn answer_waiting(&mut self, service: &Name, now: Timestamp) {
        let moving = self.state.service(service).is_some_and(|known| known.on_their_way() > 0);
        let Some(soft) = self.sharding.services.get_mut(service) else { return };
        let settled = soft.round.is_none() && !moving;
        let speaks = |soft: &Soft<R>, waiting: &Waiting<R>| {
            let known = soft.workers.get(&waiting.worker);
            known.is_some_and(|known| known.session.as_ref() == Some(&waiting.session) && !known.replaced)
        };
        let (mut ready, mut later) = (Vec::new(), Vec::new());
        // Whoever has gone is promised nothing.
        soft.waiting.retain(|waiting| !waiting.to.is_gone());
        for waiting in std::mem::take(&mut soft.waiting) {
            let over = waiting.until <= now;
            let let_in = speaks(soft, &waiting);
            if over || (settled && let_in) { ready.push((waiting, let_in)) } else { later.push(waiting) }
        }
        soft.waiting = later;
        for (waiting, let_in) in ready {
            let answer = if let_in {
                self.promise(service, &waiting.worker, now);
                self.promised(service, &waiting.worker, waiting.body.seq)
            } else {
                Assignment { seq: waiting.body.seq, ..Assignment::default() }
            };
            self.reply(waiting.to, Ok(Answer::Assignment(answer)));
        }
    }
}
