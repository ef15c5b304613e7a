//! What a leader does with an ask that came over a link.

use crate::leasing::Abandoned;
use crate::node::Node;
use crate::request::{Answer, Ask, Error};
use crate::runner::Input;

impl Node {
    /// Has an ask decided that another node vouches for. A caller who drops the future takes nothing.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn ask_from_link(&self, ask: Ask) -> Result<Answer, Error> {
        if let Ask::Batch(commands) = ask {
            return self.batch(commands).await.map(Answer::Batch);
        }
        self.ask(ask).await
    }

    /// Gives back leases of an answer that was sent and reached nobody. If the loop has too much to do, they expire.
    pub fn give_back(&self, abandoned: Abandoned) {
        // Best effort: without it, the tasks wait for the end of their leases.
        let _ = self.inputs.try_send(Input::GiveBack(abandoned));
    }
}
