//! Lists the presence cells and removes those of nodes that are long gone, on its own thread: a slow listing delays no
//! renewal of the leader lease.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use orchestrix_engine::{Cell, Error, Register, Version};

/// The prefix of the keys of presence cells; the name of the candidate follows.
pub const NODES: &str = "nodes/";

/// Presence cells by the ids of their candidates.
pub(crate) type Listed = Vec<(String, Cell)>;

/// A thread that lists on request. It ends with this handle, after the last request.
pub(crate) struct Lister {
    /// Requests a listing. First the named cells are removed, if they still have these versions.
    asked: Sender<Vec<(String, Version)>>,
    found: Receiver<Result<Listed, Error>>,
    is_asked: bool,
}

impl Lister {
    /// # Errors
    /// When the thread cannot be started.
    pub(crate) fn start(register: Arc<dyn Register>) -> std::io::Result<Self> {
        let ((asked, asks), (finds, found)) = (channel::<Vec<(String, Version)>>(), channel());
        let list = move || {
            for gone in asks {
                for (id, version) in gone {
                    match register.remove(&format!("{NODES}{id}"), &version) {
                        Ok(()) => tracing::debug!(id, "removed the cell of a node that is long gone"),
                        Err(error) => tracing::debug!(id, %error, "cannot remove a cell"),
                    }
                }
                let named = |(key, cell): (String, Cell)| (key.trim_start_matches(NODES).to_owned(), cell);
                let listed = register.list(NODES);
                if finds.send(listed.map(|cells| cells.into_iter().map(named).collect())).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("leadership-list".to_owned()).spawn(list)?;
        Ok(Self { asked, found, is_asked: false })
    }

    /// Requests a listing, unless one is under way.
    pub(crate) fn ask(&mut self, gone: Vec<(String, Version)>) {
        if !self.is_asked {
            self.is_asked = self.asked.send(gone).is_ok();
        }
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// The finished listing, once.
    pub(crate) fn found(&mut self) -> Option<Result<Listed, Error>> {
        match self.found.try_recv() {
            Ok(found) => {
                self.is_asked = false;
                Some(found)
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }
}
