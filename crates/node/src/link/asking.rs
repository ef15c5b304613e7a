//! What a leader does with leases that a follower gives back.

use crate::node::Node;
use crate::runner::Input;
use crate::tasks::Abandoned;

impl Node {
    /// Gives back leases of an answer that was sent and not delivered. If the loop has too much to do, they expire.
    pub fn give_back(&self, abandoned: Abandoned) {
        // Best effort: without it, the tasks wait for the end of their leases.
        let _ = self.inputs.put(Input::GiveBack(abandoned));
    }
}
