//! What every campaign stands on: a coordinator with its folder, and the ledger of what it said.

use std::sync::Arc;

use super::ledger::Ledger;
use super::load::Actor;
use super::oracle::{Found, hold};
use super::process::Coordinator;
use super::strace::{Injection, Tracer};
use super::{Checked, Round};

/// A coordinator, and what it is held to.
pub(crate) struct Ground {
    pub(crate) coordinator: Coordinator,
    pub(crate) ledger: Arc<Ledger>,
    /// Bytes of the payload of each task.
    payload: usize,
    /// What the ledger had when it was last counted.
    acknowledged: u64,
}

impl Ground {
    /// An empty ledger, and nobody there yet.
    pub(crate) fn new(coordinator: Coordinator, payload: usize) -> Checked<Self> {
        let ledger = Arc::new(Ledger::create(coordinator.file("ledger"))?);
        Ok(Self { coordinator, ledger, payload, acknowledged: 0 })
    }

    /// Somebody who uses the coordinator as it runs now.
    pub(crate) fn actor(&self, name: &str) -> Checked<Actor> {
        Ok(Actor {
            client: self.coordinator.client()?,
            ledger: Arc::clone(&self.ledger),
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

    /// Starts it again, and holds it to every word.
    pub(crate) fn launch_and_hold(&mut self, round: &mut Round<'_>) -> Checked<Found> {
        self.coordinator.launch()?;
        self.hold(round)
    }

    /// Holds it as it runs now to every word, and counts what is new.
    pub(crate) fn hold(&mut self, round: &mut Round<'_>) -> Checked<Found> {
        let client = self.coordinator.client()?;
        let found = round.runtime.block_on(hold(&client, &self.ledger, self.payload))?;
        found.tell(round.tried);
        round.tried.acknowledged += found.said.acknowledged - self.acknowledged;
        self.acknowledged = found.said.acknowledged;
        Ok(found)
    }
}
