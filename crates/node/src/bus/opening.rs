//! Opens the bus, once for all services of a node, and again when it has lost something.
//!
//! **Invariant:** only who has found that the bus was rolled back has it opened again: opening forgets what this process has seen,
//! by which others would find it.

use std::sync::{Arc, Mutex, PoisonError};

use orchestrix_core::Name;
use orchestrix_engine::bus::Bus;
use orchestrix_engine::{Error, JournalId};

pub(crate) struct Opening {
    bus: Arc<dyn Bus>,
    journal: JournalId,
    node: Name,
    is_open: Mutex<bool>,
}

impl Opening {
    pub(crate) fn new(bus: Arc<dyn Bus>, journal: JournalId, node: Name) -> Arc<Self> {
        Arc::new(Self { bus, journal, node, is_open: Mutex::new(false) })
    }

    pub(crate) fn bus(&self) -> &Arc<dyn Bus> {
        &self.bus
    }

    /// Makes what is missing, unless that was done.
    pub(crate) fn open(&self) -> Result<(), Error> {
        let mut is_open = self.is_open.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_open {
            self.bus.open(self.journal, &self.node)?;
            *is_open = true;
        }
        Ok(())
    }

    /// The bus was rolled back: it is opened again before it is used.
    pub(crate) fn is_lost(&self) {
        *self.is_open.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }
}
