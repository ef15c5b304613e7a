//! How a node gives away what it owns before it ends. Seed 000 calls this `CoordinatorDrainService`, `JobHandoffPublisher` and
//! `JobHandoffAckListener`.
//!
//! - **A**: every lease has another owner: the journal says so, and the acknowledgements on the bus are a courtesy.
//! - **B**: some have not after a while: they are published again.
//! - **C**: some still have not: they are released, and the leader finds owners.
//! - **D**: there is no other node: this one leaves, and its leases wait for the next.

use std::time::Duration;

use super::BusOptions;

/// What a node that drains does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It tells the leader that it drains.
    Announce,
    /// It asks for other owners.
    Publish,
    Wait,
    /// It gives away the rest.
    Release,
    /// It owns nothing, or nobody could take it.
    Leave,
    /// It has left, or takes too long.
    End,
}

/// What is known when the next step is chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) owned: usize,
    /// Another node takes leases.
    pub(crate) has_others: bool,
    /// The leader has said what this node owns, whole, since it drains.
    pub(crate) is_known: bool,
}

#[derive(Debug)]
pub(crate) struct Drain {
    ack_timeout: Duration,
    retries: u32,
    hard_timeout: Duration,
    began: Duration,
    is_announced: bool,
    has_left: bool,
    published: Option<Duration>,
    times: u32,
}

impl Drain {
    pub(crate) fn begin(options: &BusOptions, now: Duration) -> Self {
        Self {
            ack_timeout: options.handoff_ack_timeout,
            retries: options.handoff_max_retries,
            hard_timeout: options.handoff_hard_timeout,
            began: now,
            is_announced: false,
            has_left: false,
            published: None,
            times: 0,
        }
    }

    pub(crate) fn step(&mut self, seen: Seen, now: Duration) -> Step {
        let Seen { owned, has_others, is_known } = seen;
        if self.has_left || now.saturating_sub(self.began) >= self.hard_timeout {
            return Step::End;
        }
        if !self.is_announced {
            return Step::Announce;
        }
        if !is_known {
            return Step::Wait;
        }
        if owned == 0 || !has_others {
            return Step::Leave;
        }
        let is_due = self.published.is_none_or(|at| now.saturating_sub(at) >= self.ack_timeout);
        if !is_due {
            return Step::Wait;
        }
        if self.times > self.retries {
            return Step::Release;
        }
        self.published = Some(now);
        self.times += 1;
        Step::Publish
    }

    /// How often owners were asked for.
    pub(crate) fn times(&self) -> u32 {
        self.times
    }

    pub(crate) fn is_announced(&mut self) {
        self.is_announced = true;
    }

    pub(crate) fn has_left(&mut self) {
        self.has_left = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    const OWNS: Seen = Seen { owned: 3, has_others: true, is_known: true };

    fn announced() -> Drain {
        let mut drain = Drain::begin(&BusOptions::default(), at(0));
        assert_eq!(drain.step(OWNS, at(0)), Step::Announce);
        drain.is_announced();
        drain
    }

    #[test]
    fn case_a_all_have_another_owner() {
        let mut drain = announced();
        assert_eq!(drain.step(Seen { is_known: false, ..OWNS }, at(1)), Step::Wait);
        assert_eq!(drain.step(OWNS, at(2)), Step::Publish);
        assert_eq!(drain.step(OWNS, at(3)), Step::Wait);
        assert_eq!(drain.step(Seen { owned: 0, ..OWNS }, at(4)), Step::Leave);
        drain.has_left();
        assert_eq!(drain.step(OWNS, at(5)), Step::End);
    }

    #[test]
    fn case_b_and_c_after_three_more_times_the_rest_is_released() {
        let mut drain = announced();
        for time in 0..4 {
            assert_eq!(drain.step(OWNS, at(5_000 * time)), Step::Publish);
            assert_eq!(drain.step(OWNS, at(5_000 * time + 4_999)), Step::Wait);
        }
        assert_eq!(drain.times(), 4);
        assert_eq!(drain.step(OWNS, at(20_000)), Step::Release);
    }

    #[test]
    fn case_d_without_another_node_it_leaves_at_once() {
        let mut drain = announced();
        assert_eq!(drain.step(Seen { has_others: false, ..OWNS }, at(1)), Step::Leave);
    }

    #[test]
    fn it_ends_after_the_hard_limit_whatever_happens() {
        let mut drain = announced();
        assert_eq!(drain.step(OWNS, at(59_999)), Step::Publish);
        assert_eq!(drain.step(OWNS, at(60_000)), Step::End);
    }
}
