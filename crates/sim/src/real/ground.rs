//! The common part of all campaigns: a coordinator with its folder, and the log of its acknowledgements.

use std::sync::Arc;

use super::ack_log::AckLog;
use super::load::Actor;
use super::oracle::{Found, hold};
use super::process::Coordinator;
use super::strace::{Injection, Tracer};
use super::{Checked, Round};

/// A coordinator, and what it is held to.
pub(crate) struct Ground {
    pub(crate) coordinator: Coordinator,
    pub(crate) ack_log: Arc<AckLog>,
    /// Bytes of the payload of each task.
    payload: usize,
    /// What the acknowledgement log had when it was last counted.
    acknowledged: u64,
}

impl Ground {
    /// An empty acknowledgement log, and no process yet.
    pub(crate) fn new(coordinator: Coordinator, payload: usize) -> Checked<Self> {
        let ack_log = Arc::new(AckLog::create(coordinator.file("ack-log"))?);
        Ok(Self { coordinator, ack_log, payload, acknowledged: 0 })
    }

    /// A client of the coordinator as it runs now.
    pub(crate) fn actor(&self, name: &str) -> Checked<Actor> {
        Ok(Actor {
            client: self.coordinator.client()?,
            ack_log: Arc::clone(&self.ack_log),
            name: name.to_owned(),
            payload: self.payload,
        })
    }

    /// Starts it, waits until it has prepared all that it prepares at a start, and puts the fault in.
    pub(crate) fn launch_under(&mut self, injection: &Injection<'_>) -> Checked<Tracer> {
        self.coordinator.launch()?;
        self.coordinator.await_reserve()?;
        injection.attach(&self.coordinator)
    }

    /// Starts it again, and checks it against every acknowledgement.
    pub(crate) fn launch_and_hold(&mut self, round: &mut Round<'_>) -> Checked<Found> {
        self.coordinator.launch()?;
        self.hold(round)
    }

    /// Checks the running coordinator against every acknowledgement, and counts the new ones.
    pub(crate) fn hold(&mut self, round: &mut Round<'_>) -> Checked<Found> {
        let client = self.coordinator.client()?;
        let found = round.runtime.block_on(hold(&client, &self.ack_log, self.payload))?;
        found.tell(round.tried);
        round.tried.acknowledged += found.acked.acknowledged - self.acknowledged;
        self.acknowledged = found.acked.acknowledged;
        Ok(found)
    }
}
