//! The contract of an engine that several nodes use at once.

use std::sync::Arc;

use crate::bus::Bus;
use crate::{Error, Journal, Logs, Register};

/// A connection to an engine, and the handles that a node needs. Every node has its own.
pub trait Shared: Send + Sync {
    /// A handle of the journal, at its current end. The first call ever creates the journal.
    ///
    /// # Errors
    /// When the engine cannot answer.
    fn journal(&self) -> Result<Box<dyn Journal>, Error>;

    fn register(&self) -> Arc<dyn Register>;

    fn logs(&self) -> Arc<dyn Logs>;

    /// The bus that this engine carries, if it can carry one.
    ///
    /// # Errors
    /// When the engine cannot answer, or the user lacks a right that a bus needs.
    fn bus(&self) -> Result<Option<Arc<dyn Bus>>, Error> {
        Ok(None)
    }

    /// The kind and the place of the engine, for operators; never contains a secret.
    fn place(&self) -> String;

    /// What weakens the promises of this engine, found when connecting, as sentences.
    fn warnings(&self) -> Vec<String>;
}
