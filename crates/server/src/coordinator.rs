//! What is served: one node on its own, or one of several on a shared engine. Here it is decided whether a question is
//! answered here or at the leader; the wires do not know.
//!
//! **Invariant:** a question is asked a second time only if it was certainly not accepted, or changes nothing.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use orchestrix_core::Position;
use orchestrix_core::wire::Cluster;
use orchestrix_engine::JournalId;
use orchestrix_leadership::Candidate;
use orchestrix_node::{Answer, Ask, Error, Events, Failure, Member, Node, NodeRole, Output, OutputOf, Stats};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::http::{App, Body, Carried, Client, Fault, NodeLink, Passed};
use crate::link::ByLink;

/// How long a question waits for a leader, and for a position that its caller has seen elsewhere.
pub(crate) const LEADER_WAIT: Duration = Duration::from_secs(5);
/// How long a question that changes nothing is asked again and again.
const READ_WAIT_MAX: Duration = Duration::from_secs(60);
/// How often it looks for a leader.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(25);

/// A question on its way to the node that decides.
pub(crate) struct Question<'a> {
    pub(crate) app: &'a Arc<App>,
    pub(crate) client: &'a Client,
    /// What the caller has seen elsewhere: it is not answered from less.
    pub(crate) position: Option<u64>,
    pub(crate) changes_nothing: bool,
    /// Whether it goes to the leader over the node link, if there is one.
    pub(crate) by_link: bool,
    /// How it reaches a leader that is another node.
    pub(crate) carried: Carried<'a>,
}

/// What came of a question.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and it is unpacked at once")]
pub(crate) enum Decided<T> {
    Answer(T),
    /// What the leader answered by link, and how far its journal was durable.
    Linked(T, Position),
    /// What the leader answered, in HTTP.
    Passed(Response<Body>),
}

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
            Self::Member(member) => match member.role() {
                NodeRole::Leads(node) => Some(Cow::Owned(node)),
                NodeRole::Follows => None,
            },
        }
    }

    pub(crate) fn member(&self) -> Option<&Member> {
        match self {
            Self::Alone(_) => None,
            Self::Member(member) => Some(member),
        }
    }

    /// The journal that is written here, or followed.
    pub(crate) fn journal_id(&self) -> JournalId {
        match self {
            Self::Alone(node) => node.journal_id(),
            Self::Member(member) => member.journal_id(),
        }
    }

    pub(crate) fn stats(&self) -> &Stats {
        match self {
            Self::Alone(node) => node.stats(),
            Self::Member(member) => member.stats(),
        }
    }

    pub(crate) fn shared_stats(&self) -> Arc<Stats> {
        match self {
            Self::Alone(node) => node.shared_stats(),
            Self::Member(member) => member.shared_stats(),
        }
    }

    /// Where the output of tasks of the bus is stored; not for threads of the runtime.
    pub(crate) fn output(&self, runtime: Handle) -> Arc<dyn Output> {
        match self {
            Self::Alone(node) => Arc::new(OutputOf { node: node.clone(), runtime }),
            Self::Member(member) => member.output(runtime),
        }
    }

    pub(crate) fn events(&self, after: Option<Position>) -> Events {
        match self {
            Self::Alone(node) => node.events(after),
            Self::Member(member) => member.events(after),
        }
    }

    /// Has a question answered: here, if this node leads, else by the node that does. `ask` makes the question, once for
    /// each time that it is put to a node of this process.
    pub(crate) async fn ask(
        &self,
        question: &Question<'_>,
        ask: impl Fn() -> Result<Ask, Fault>,
    ) -> Result<Decided<Answer>, Fault> {
        let ask = &ask;
        self.decide_at(
            question,
            |node| async move { Ok(node.ask(&question.client.caller, ask()?).await?) },
            |leader, epoch| async move {
                match question.by_link && question.app.node_link != NodeLink::Absent {
                    true => question.ask_by_link(ask()?, &leader, epoch).await,
                    false => Ok(ByLink::NoLink),
                }
            },
        )
        .await
    }

    /// The same for what is more than one question: `here` answers it at the node that leads.
    pub(crate) async fn decide<'c, T, H, F>(
        &'c self,
        question: &Question<'_>,
        here: H,
    ) -> Result<Decided<T>, Fault>
    where
        H: Fn(Cow<'c, Node>) -> F,
        F: Future<Output = Result<T, Fault>>,
    {
        self.decide_at(question, here, |_, _| std::future::ready(Ok(ByLink::NoLink))).await
    }

    async fn decide_at<'c, T, H, F, L, G>(
        &'c self,
        question: &Question<'_>,
        here: H,
        by_link: L,
    ) -> Result<Decided<T>, Fault>
    where
        L: Fn(Candidate, u64) -> G,
        G: Future<Output = Result<ByLink<T>, Fault>>,
        H: Fn(Cow<'c, Node>) -> F,
        F: Future<Output = Result<T, Fault>>,
    {
        let app = question.app;
        let began = Instant::now();
        let mut give_up = began + LEADER_WAIT;
        let may_go_elsewhere = || self.member().is_some() && !app.stop.is_cancelled();
        loop {
            if let Some(node) = self.decides() {
                if let Some(position) = question.position {
                    Box::pin(self.reach(position)).await?;
                }
                match here(node).await {
                    // The leader changed between the check and the ask; nothing was changed.
                    Err(Fault::Node(Error::Stopping)) if may_go_elsewhere() => {}
                    Err(Fault::Node(Error::OutcomeUnknown))
                        if question.changes_nothing && may_go_elsewhere() => {}
                    answered => return answered.map(Decided::Answer),
                }
            }
            let Some(member) = self.member() else { return Err(Fault::Node(Error::Stopping)) };
            if question.carried.is_forwarded() {
                return Err(Fault::NoLeader(format!("{} does not lead", member.name())));
            }
            if let Some((leader, epoch)) = member.leadership().leader()
                && !member.is_me(&leader)
            {
                // What is rare is put elsewhere: a future is moved with all that it may ever hold.
                let passed = match Box::pin(by_link(leader.clone(), epoch)).await? {
                    ByLink::Answer(answer, at) => return Ok(Decided::Linked(answer, at)),
                    ByLink::NotAccepted => Passed::NotAccepted,
                    ByLink::Unknown => Passed::Unknown,
                    ByLink::NoLink => {
                        Box::pin(app.leader_client.pass(question, member, &leader, epoch)).await
                    }
                };
                match passed {
                    Passed::Answer(response) => return Ok(Decided::Passed(response)),
                    Passed::NotAccepted => {}
                    // A leader that was frozen may have kept it for long; the next one gets a chance, too.
                    Passed::Unknown if question.changes_nothing => {
                        give_up = (Instant::now() + LEADER_WAIT).min(began + READ_WAIT_MAX);
                    }
                    Passed::Unknown => return Err(Fault::Node(Error::OutcomeUnknown)),
                }
            }
            if app.stop.is_cancelled() {
                return Err(Fault::Node(Error::Stopping));
            }
            if Instant::now() >= give_up {
                return Err(Fault::NoLeader("the cluster has no leader now".to_owned()));
            }
            let mut roles = member.roles();
            roles.mark_unchanged();
            // The leader may have changed, here or elsewhere; the look says which.
            let _ = Box::pin(tokio::time::timeout(LOOK_EVERY, roles.changed())).await;
        }
    }

    /// Waits, but not for ever, until this node is so far.
    pub(crate) async fn reach(&self, position: u64) -> Result<(), Fault> {
        if self.reaches(Position(position), LEADER_WAIT).await {
            return Ok(());
        }
        Err(Fault::Behind { asked: position, at: self.stats().durable.get() })
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
