//! The names of all keys in Redis.

use orchestrix_core::{Position, TaskId};

use crate::Error;
use crate::fault::invalid;

/// Bounds the length of keys, of which there is one for each task with output.
const DOMAIN_BYTES_MAX: usize = 64;
const DEFAULT: &str = "default";
/// The cell that has a name of its own, because people look for it.
const LEADER: &str = "leader";

/// The names of one domain.
#[derive(Debug)]
pub(super) struct Keys {
    domain: String,
}

impl Default for Keys {
    fn default() -> Self {
        Self { domain: DEFAULT.to_owned() }
    }
}

impl Keys {
    pub(super) fn of(domain: &str) -> Result<Self, Error> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        // These two stand where a domain stands, in the names of the default domain's cells.
        let taken = ["coordinator", "register"].contains(&domain);
        if domain.is_empty() || domain.len() > DOMAIN_BYTES_MAX || !domain.bytes().all(plain) || taken {
            let why = format!(
                "a domain is named by 1 to {DOMAIN_BYTES_MAX} letters, digits, '-', '_' or '.', and is not \
                 called coordinator or register"
            );
            return Err(invalid("choose the domain", why));
        }
        Ok(Self { domain: domain.to_owned() })
    }

    pub(super) fn domain(&self) -> &str {
        &self.domain
    }

    /// The patterns that cover all names of the domain, each with one that it has to cover.
    pub(super) fn patterns(&self) -> Vec<(String, String)> {
        let own = (self.name("*"), self.probe());
        if self.domain != DEFAULT {
            return vec![own];
        }
        let cells = self.cell_prefix();
        vec![own, (format!("{cells}*"), format!("{cells}probe")), (self.leader(), self.leader())]
    }

    fn name(&self, rest: &str) -> String {
        format!("orchestrix:{}:{rest}", self.domain)
    }

    /// A stream with one entry for each batch.
    pub(super) fn journal(&self) -> String {
        self.name("journal")
    }

    /// A hash: the id of the journal, its end and its floor.
    pub(super) fn meta(&self) -> String {
        self.name("meta")
    }

    /// A hash: whose the bus is, and its claims.
    pub(super) fn bus(&self) -> String {
        if self.domain == DEFAULT { "orchestrix:bus".to_owned() } else { self.name("bus") }
    }

    /// What is written and removed to see what the user may do.
    pub(super) fn probe(&self) -> String {
        self.name("probe")
    }

    /// A hash from positions to the manifests of complete snapshots.
    pub(super) fn snapshots(&self) -> String {
        self.name("snapshots")
    }

    /// A set of the names of unfinished snapshots.
    pub(super) fn unfinished(&self) -> String {
        self.name("snapshots:unfinished")
    }

    /// A hash from numbers to the chunks of one snapshot.
    pub(super) fn snapshot(&self, at: Position, nonce: &str) -> String {
        self.name(&format!("snapshot:{}:{nonce}", at.0))
    }

    /// A set of the tasks with output.
    pub(super) fn logs(&self) -> String {
        self.name("logs")
    }

    /// A hash: the chunks of one task by number, and their numbers by place.
    pub(super) fn log(&self, task: TaskId) -> String {
        self.name(&format!("log:{}", task.0))
    }

    /// Counts the writings of all cells.
    pub(super) fn writings(&self) -> String {
        self.name("writings")
    }

    /// A sorted set of the keys of all cells.
    pub(super) fn cells(&self) -> String {
        self.name("cells")
    }

    /// The hash of one cell.
    pub(super) fn cell(&self, key: &str) -> String {
        if key == LEADER { self.leader() } else { format!("{}{key}", self.cell_prefix()) }
    }

    /// The cell of the leader, with the same key on every node.
    pub(super) fn leader(&self) -> String {
        if self.domain == DEFAULT {
            "orchestrix:coordinator:leader".to_owned()
        } else {
            self.name("coordinator:leader")
        }
    }

    pub(super) fn cell_prefix(&self) -> String {
        if self.domain == DEFAULT { "orchestrix:register:".to_owned() } else { self.name("register:") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_things_of_two_domains_have_the_same_name() {
        let mut all = Vec::new();
        for keys in [Keys::default(), Keys::of("other").unwrap()] {
            all.extend([keys.journal(), keys.meta(), keys.snapshots(), keys.unfinished(), keys.logs()]);
            all.extend([
                keys.writings(),
                keys.cells(),
                keys.probe(),
                keys.bus(),
                keys.log(TaskId(1)),
                keys.snapshot(Position(1), "a"),
            ]);
            all.extend(["leader", "journal", "nodes/a", "coordinator:leader"].map(|key| keys.cell(key)));
        }
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
        assert!(all.contains(&"orchestrix:coordinator:leader".to_owned()));
        assert!(all.contains(&"orchestrix:register:nodes/a".to_owned()));
    }

    #[test]
    fn an_ambiguous_domain_is_refused() {
        for domain in ["", "a:b", "register", "coordinator", "ü", "a b", &"x".repeat(65)] {
            Keys::of(domain).unwrap_err();
        }
        Keys::of(&"x".repeat(64)).unwrap();
    }
}
