//! The contract of an engine that several nodes use at once.

use std::sync::Arc;

use crate::{Error, Journal, Logs, Register};

/// A connection to an engine, and the handles of it that a node needs. Every node has its own.
pub trait Shared: Send + Sync {
    /// A handle of the journal, at its present end. The first one ever makes the journal.
    ///
    /// # Errors
    /// Whatever keeps the engine from answering.
    fn journal(&self) -> Result<Box<dyn Journal>, Error>;

    fn register(&self) -> Arc<dyn Register>;

    fn logs(&self) -> Arc<dyn Logs>;

    /// What it is, for people: the kind and the place, never a secret.
    fn place(&self) -> String;

    /// What was found at the start that makes it promise less than it could, as sentences.
    fn warnings(&self) -> Vec<String>;
}
