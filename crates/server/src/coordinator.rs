//! What is served: one node on its own, or one of several on a shared engine.

use std::borrow::Cow;
use std::time::Duration;

use orchestrix_core::Position;
use orchestrix_core::wire::Cluster;
use orchestrix_node::{Error, Events, Failure, Member, Node, Seat, Stats};

/// A coordinator, as the wires see it.
#[derive(Clone, Debug)]
pub enum Coordinator {
    Alone(Node),
    Member(Member),
}

impl From<Node> for Coordinator {
    fn from(node: Node) -> Self {
        Self::Alone(node)
    }
}

impl From<Member> for Coordinator {
    fn from(member: Member) -> Self {
        Self::Member(member)
    }
}

impl Coordinator {
    /// The node that decides, if it is in this process.
    pub(crate) fn decides(&self) -> Option<Cow<'_, Node>> {
        match self {
            Self::Alone(node) => Some(Cow::Borrowed(node)),
            Self::Member(member) => match member.seat() {
                Seat::Leads(node) => Some(Cow::Owned(node)),
                Seat::Follows => None,
            },
        }
    }

    pub(crate) fn member(&self) -> Option<&Member> {
        match self {
            Self::Alone(_) => None,
            Self::Member(member) => Some(member),
        }
    }

    pub(crate) fn stats(&self) -> &Stats {
        match self {
            Self::Alone(node) => node.stats(),
            Self::Member(member) => member.stats(),
        }
    }

    pub(crate) fn events(&self, after: Option<Position>) -> Events {
        match self {
            Self::Alone(node) => node.events(after),
            Self::Member(member) => member.events(after),
        }
    }

    /// Whether what stands at a position is here within some time.
    pub(crate) async fn reaches(&self, position: Position, within: Duration) -> bool {
        let here = async {
            match self {
                Self::Alone(node) => node.applied(position).await,
                Self::Member(member) => member.applied(position).await,
            }
        };
        tokio::time::timeout(within, here).await.is_ok()
    }

    /// Why this process stands still, if it does.
    pub(crate) fn stalled(&self) -> Option<String> {
        match self {
            Self::Alone(node) => node.stalled(),
            Self::Member(member) => member.stalled(),
        }
    }

    /// Why what decides in this process can write nothing, if so.
    pub(crate) fn unwritten(&self) -> Option<String> {
        match self {
            Self::Alone(node) => node.unwritten(),
            Self::Member(member) => member.unwritten(),
        }
    }

    pub(crate) async fn cluster(&self) -> Result<Cluster, Error> {
        match self {
            Self::Alone(node) => node.cluster().await,
            Self::Member(member) => Ok(member.cluster()),
        }
    }

    pub(crate) async fn stopped(&self) -> Result<(), Failure> {
        match self {
            Self::Alone(node) => node.stopped().await,
            Self::Member(member) => member.stopped().await,
        }
    }

    pub(crate) async fn stop(&self) -> Result<(), Failure> {
        match self {
            Self::Alone(node) => node.stop().await,
            Self::Member(member) => member.stop().await,
        }
    }
}
