//! Timed work: expired workers, rebalances, and answers to waiting registrations.
//!
//! **Invariant:** a look at services is short: after so many shards the loop decides something else first.

use orchestrix_core::limits::{SERVICE_KEPT_MS, SHARD_GRANTS_MAX};
use orchestrix_core::shards::ShardCommand;
use orchestrix_core::wire::Assignment;
use orchestrix_core::{LeaveReason, Name, Timestamp, is_planted};

use super::soft::{ShardDecisions, Soft, Waiting};
use crate::decider::Decider;
use crate::request::{Answer, Recipient};

/// Withdrawals of one rebalance. More are for the next, so that never most of a service is on its way.
const MOVES_MAX: usize = 1_000;
/// Shards of the services that are looked at in one go. Bounds the pause of the loop.
const SLICE_SHARDS: usize = 20_000;

impl<R: Recipient> ShardDecisions<R> {
    /// Does what time asks for: ends what is over, makes a rebalance, answers those whose rebalance has settled.
    pub(super) fn tick_services(&mut self, decider: &mut Decider<R>, now: Timestamp) {
        let mut looked_at = 0;
        while let Some((_, service)) = self.due.first().filter(|(at, _)| *at <= now).cloned() {
            if decider.is_full() || looked_at >= SLICE_SHARDS {
                return;
            }
            looked_at += decider.state.service(&service).map_or(0, |known| known.shards.len());
            self.expire_idle(decider, &service, now);
            self.end_silent(decider, &service, now);
            let due = self.services.get(&service).and_then(|soft| soft.rebalance_at);
            if due.is_some_and(|due| due <= now) {
                self.rebalance(decider, &service, now);
            }
            self.press(decider, &service, now);
            self.answer_waiting(decider, &service, now);
            self.schedule(decider, &service);
        }
    }

    fn end_silent(&mut self, decider: &mut Decider<R>, service: &Name, now: Timestamp) {
        let over =
            |soft: &Soft<R>| soft.ends.first().filter(|(at, _)| *at <= now).map(|(_, worker)| worker.clone());
        while let Some(worker) = self.services.get(service).and_then(over) {
            let soft = self.services.get_mut(service).expect("it was just looked at");
            // A caller that has disconnected is not accepted.
            soft.waiting.retain(|waiting| waiting.worker != worker || !waiting.to.is_gone());
            let next = soft.waiting.iter().position(|waiting| waiting.worker == worker);
            let known = soft.workers.get(&worker);
            let replaced = known.is_some_and(|known| known.replaced);
            let speaks = known.and_then(|known| known.session.clone());
            if is_planted("silent-worker-kept") {
                self.promise(decider, service, &worker, now);
                continue;
            }
            let reason = if replaced { LeaveReason::Fenced } else { LeaveReason::Silent };
            let next = next.map(|place| soft.waiting.remove(place));
            // A worker whose call still waits is alive.
            if let Some(waiting) = next {
                if !replaced && speaks.is_none_or(|speaks| speaks == waiting.session) {
                    soft.waiting.push(waiting);
                    self.promise(decider, service, &worker, now);
                    continue;
                }
                let left = self.leave(decider, service, &worker, reason, now);
                debug_assert!(left.is_ok(), "a worker can always leave");
                self.wait(decider, service, waiting, now);
                continue;
            }
            let left = self.leave(decider, service, &worker, reason, now);
            debug_assert!(left.is_ok(), "a worker can always leave");
            decider.stats.shard_workers_lost.add(1);
            self.want_rebalance(service, 0, now);
        }
    }

    fn rebalance(&mut self, decider: &mut Decider<R>, service: &Name, now: Timestamp) {
        let Some(soft) = self.services.get_mut(service) else { return };
        soft.rebalance_at = None;
        soft.last_rebalance = now;
        let command = ShardCommand::Move { service: service.clone(), most: MOVES_MAX };
        let granted = decider.stats.shards_granted.get();
        if let Ok(Some(_)) = self.shard_command(decider, command, now) {
            decider.stats.shard_rounds.add(1);
            // There may be more of the same rebalance, which goes on when others had their turn.
            if decider.stats.shards_granted.get() - granted >= SHARD_GRANTS_MAX as u64
                && let Some(soft) = self.services.get_mut(service)
            {
                soft.rebalance_at = Some(now);
            }
        }
    }

    /// Forgets a service that had no workers for long.
    fn expire_idle(&mut self, decider: &mut Decider<R>, service: &Name, now: Timestamp) {
        let Some(soft) = self.services.get_mut(service) else { return };
        if soft.idle_since.is_none_or(|since| now.since(since) < SERVICE_KEPT_MS) {
            return;
        }
        soft.idle_since = None;
        if let Ok(Some(_)) =
            self.shard_command(decider, ShardCommand::Expire { service: service.clone() }, now)
        {
            decider.stats.services_expired.add(1);
        }
    }

    /// Answers registrations when no shard is moving any more, or when they must be answered.
    fn answer_waiting(&mut self, decider: &mut Decider<R>, service: &Name, now: Timestamp) {
        let moving = decider.state.service(service).is_some_and(|known| known.on_their_way() > 0);
        let Some(soft) = self.services.get_mut(service) else { return };
        let settled = soft.rebalance_at.is_none() && !moving;
        let speaks = |soft: &Soft<R>, waiting: &Waiting<R>| {
            let known = soft.workers.get(&waiting.worker);
            known.is_some_and(|known| known.session.as_ref() == Some(&waiting.session) && !known.replaced)
        };
        let (mut ready, mut later) = (Vec::new(), Vec::new());
        // A caller that has disconnected is promised nothing.
        soft.waiting.retain(|waiting| !waiting.to.is_gone());
        for waiting in std::mem::take(&mut soft.waiting) {
            let over = waiting.until <= now;
            let let_in = speaks(soft, &waiting);
            if over || (settled && let_in) { ready.push((waiting, let_in)) } else { later.push(waiting) }
        }
        soft.waiting = later;
        for (waiting, let_in) in ready {
            let answer = if let_in {
                self.promise(decider, service, &waiting.worker, now);
                self.promised(decider, service, &waiting.worker, waiting.body.seq)
            } else {
                Assignment { seq: waiting.body.seq, ..Assignment::default() }
            };
            decider.reply(waiting.to, Ok(Answer::Assignment(answer)));
        }
    }
}
