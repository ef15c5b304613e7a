//! The right of a node to write: permanent if it is alone, or for the time of its leader lease.

use std::fmt;
use std::sync::Arc;

use orchestrix_core::Name;
use orchestrix_engine::Link;

/// A leader lease that a node writes under.
pub trait LeaderLease: Send + Sync {
    /// Whether the one who holds it may act at this moment. Asked before a batch is written, and again before
    /// anybody hears of it.
    fn holds(&self) -> bool;

    /// A batch has become durable under it: the journal ends here.
    fn prove(&self, end: Link);
}

/// The right under which a term is begun.
#[derive(Clone, Default)]
pub struct WriteGuard {
    /// The term gets this epoch, or a higher one if the journal has seen it.
    pub epoch: u64,
    /// `None` on an engine with a single node.
    pub leader_lease: Option<Arc<dyn LeaderLease>>,
    /// After so many milliseconds without an event there is a `Tick`.
    pub tick_ms: Option<u64>,
    /// Who asked for the change of leader, if known by name.
    pub actor: Option<Name>,
}

impl WriteGuard {
    pub(crate) fn holds(&self) -> bool {
        self.leader_lease.as_ref().is_none_or(|leader_lease| leader_lease.holds())
    }

    pub(crate) fn prove(&self, end: Link) {
        if let Some(leader_lease) = &self.leader_lease {
            leader_lease.prove(end);
        }
    }
}

impl fmt::Debug for WriteGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteGuard")
            .field("epoch", &self.epoch)
            .field("alone", &self.leader_lease.is_none())
            .field("tick_ms", &self.tick_ms)
            .finish()
    }
}
