//! Lists who is present, and removes the cells of those that are long gone, on a thread of its own: however long a register
//! takes for it, no renewal waits.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use orchestrix_engine::{Cell, Error, Register, Version};

/// Where the cells of candidates are.
pub(crate) const NODES: &str = "nodes/";

/// Candidates by their ids.
pub(crate) type Listed = Vec<(String, Cell)>;

/// A thread that lists when it is asked to. It ends with this handle, after what it was asked last.
pub(crate) struct Lister {
    /// Asks for a listing; first these cells are removed, if they are still as they were seen.
    asked: Sender<Vec<(String, Version)>>,
    found: Receiver<Result<Listed, Error>>,
    is_asked: bool,
}

impl Lister {
    /// # Errors
    /// When there can be no thread.
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

    /// Asks for a listing, unless one is under way.
    pub(crate) fn ask(&mut self, gone: Vec<(String, Version)>) {
        if !self.is_asked {
            self.is_asked = self.asked.send(gone).is_ok();
        }
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// What was listed, once.
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
