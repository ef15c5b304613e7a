//! What the loop decides about owners, asked for directly.

use std::time::{Duration, Instant};

use orchestrix_core::wire::Submit;
use orchestrix_core::wire::bus::{Handoff, HandoffReason, WorkerHeartbeat};
use orchestrix_core::{Claim, Json, LeaseId, OwnerToken, Position, Refusal};
use orchestrix_node::{
    Answer, Ask, BusAnswer, BusOptions, Caller, DispatchAsk, Node, Options, OwnerAsk, Pulled, Report,
    Reported, Storage, open,
};

use crate::rig::{LIMIT, name};

struct Loop {
    node: Node,
    after: LeaseId,
}

impl Loop {
    /// With so many leases that nobody owns.
    async fn with_offers(count: u32, options: BusOptions) -> (Self, Vec<LeaseId>) {
        let options = Options { bus: Some(options), ..Options::default() };
        let (node, _) = open(&Storage::Memory, options).unwrap();
        let mut decides = Self { node, after: LeaseId(0) };
        for _ in 0..count {
            decides.node.submit(Submit::new(name("mail"), Json::null())).await.unwrap();
        }
        decides.dispatch(DispatchAsk::Claimed { cursor: LeaseId(0) }).await;
        let (worker_id, queues) = (name("py-1"), vec![name("mail")]);
        let heartbeat =
            WorkerHeartbeat { worker_id, queues, capacity: count, jobs: Vec::new(), timestamp: None };
        decides.dispatch(DispatchAsk::Heartbeats(vec![heartbeat])).await;
        let mut leases = Vec::new();
        while leases.len() < count as usize {
            let pulled = decides.pull().await;
            leases.extend(pulled.offers.iter().map(|offer| offer.lease));
        }
        (decides, leases)
    }

    async fn ask(&self, ask: Ask) -> BusAnswer {
        let answer = self.node.ask(&Caller::default(), ask).await.unwrap();
        let Answer::Bus(answer) = answer else { panic!("{answer:?}") };
        *answer
    }

    async fn dispatch(&self, ask: DispatchAsk) -> BusAnswer {
        self.ask(Ask::Dispatch(Box::new(ask))).await
    }

    async fn owner(&self, ask: OwnerAsk) -> BusAnswer {
        self.ask(Ask::Owner(Box::new(ask))).await
    }

    async fn pull(&mut self) -> Pulled {
        // The bus answers all the time.
        self.dispatch(DispatchAsk::Heartbeats(Vec::new())).await;
        let BusAnswer::Pulled(pulled) = self.dispatch(DispatchAsk::Pull { after: self.after }).await else {
            panic!("a pull is answered in kind")
        };
        if let Some(last) = pulled.offers.last() {
            self.after = last.lease;
        }
        pulled
    }

    async fn join(&self, node: &str) -> OwnerToken {
        let (node, incarnation, address) = (name(node), "1".to_owned(), String::new());
        let BusAnswer::Joined(token) = self.owner(OwnerAsk::Join { node, incarnation, address }).await else {
            panic!("a node joins")
        };
        token
    }

    async fn own(&self, node: OwnerToken, leases: &[LeaseId], previous: Option<OwnerToken>) -> Reported {
        let own = leases.iter().map(|lease| Claim { lease: *lease, previous }).collect();
        let report = Report { node, own, items: Vec::new(), after: None };
        let answer = self.owner(OwnerAsk::Report(report)).await;
        let BusAnswer::Reported(reported) = answer else { panic!("{answer:?}") };
        reported
    }

    /// The next leases that should move.
    async fn handoffs(&mut self) -> Vec<Handoff> {
        let began = Instant::now();
        loop {
            let pulled = self.pull().await;
            if !pulled.handoffs.is_empty() {
                return pulled.handoffs;
            }
            assert!(began.elapsed() < LIMIT, "nothing is handed off");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_100_and_20_leases_exactly_40_move_once() {
    let (mut decides, leases) = Loop::with_offers(120, BusOptions::default()).await;
    let (much, little) = (decides.join("node-2").await, decides.join("node-3").await);
    assert!(decides.own(much, &leases[..100], None).await.own.iter().all(Result::is_ok));
    assert!(decides.own(little, &leases[100..], None).await.own.iter().all(Result::is_ok));
    let handoffs = decides.handoffs().await;
    assert_eq!(handoffs.len(), 40);
    let is_so = |handoff: &Handoff| {
        (handoff.reason, handoff.owner, handoff.node_id.as_str())
            == (HandoffReason::Rebalance, Position(much.0), "node-2")
    };
    assert!(handoffs.iter().all(is_so), "{handoffs:?}");
    let moved: Vec<LeaseId> = handoffs.iter().map(|handoff| handoff.history_id).collect();
    // Who names another owner than the one that it has does not get it.
    let refused = decides.own(little, &moved[..1], None).await;
    assert!(matches!(refused.own[..], [Err(Refusal::NotOwner { .. })]), "{refused:?}");
    assert!(decides.own(little, &moved, Some(much)).await.own.iter().all(Result::is_ok));
    assert_eq!(decides.own(much, &[], None).await.owned.len(), 60);
    for _ in 0..3 {
        assert_eq!(decides.pull().await.handoffs, [], "they move once");
    }
    decides.node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_are_close_keep_what_they_have() {
    let (mut decides, leases) = Loop::with_offers(13, BusOptions::default()).await;
    let (much, little) = (decides.join("node-2").await, decides.join("node-3").await);
    decides.own(much, &leases[..11], None).await;
    decides.own(little, &leases[11..], None).await;
    // Five times as much, and 9 apart.
    for _ in 0..3 {
        assert_eq!(decides.pull().await.handoffs, []);
    }
    decides.node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_node_is_dead_and_may_join_again() {
    let soon = BusOptions { dead_node_timeout: Duration::from_millis(1_200), ..BusOptions::default() };
    let (mut decides, leases) = Loop::with_offers(3, soon).await;
    let (silent, other) = (decides.join("node-2").await, decides.join("node-3").await);
    decides.own(silent, &leases, None).await;
    let began = Instant::now();
    let handoffs = loop {
        decides.own(other, &[], None).await;
        let handoffs = decides.pull().await.handoffs;
        if !handoffs.is_empty() {
            break handoffs;
        }
        assert!(began.elapsed() < LIMIT, "it is dead");
    };
    assert!(began.elapsed() >= Duration::from_millis(1_000));
    let of_dead =
        |handoff: &Handoff| (handoff.reason, handoff.owner) == (HandoffReason::NodeCrash, Position(silent.0));
    assert!(handoffs.len() == 3 && handoffs.iter().all(of_dead), "{handoffs:?}");
    assert_eq!(handoffs[0].node_id.as_str(), "node-2");
    // It wakes, and its word does not count.
    let late = Report { node: silent, own: Vec::new(), items: Vec::new(), after: None };
    assert!(matches!(decides.owner(OwnerAsk::Report(late)).await, BusAnswer::Gone));
    assert!(decides.join("node-2").await > silent);
    assert!(decides.own(other, &leases, Some(silent)).await.own.iter().all(Result::is_ok));
    decides.node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_released_is_handed_off_at_once() {
    let (mut decides, leases) = Loop::with_offers(2, BusOptions::default()).await;
    let (gives, takes) = (decides.join("node-2").await, decides.join("node-3").await);
    decides.own(gives, &leases, None).await;
    decides.owner(OwnerAsk::Drain { node: gives }).await;
    let refused = decides.own(gives, &leases, None).await;
    assert!(refused.own.iter().all(Result::is_ok), "what it owns it owns: {refused:?}");
    // Times are in milliseconds: until the next one, a lease that was given away looks like a fresh offer.
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(5) {
        decides.own(takes, &[], None).await;
    }
    let release = OwnerAsk::Release { node: gives, leases: leases.clone() };
    assert!(matches!(decides.owner(release).await, BusAnswer::Done));
    let handoffs = decides.handoffs().await;
    assert_eq!(handoffs.iter().map(|handoff| handoff.history_id).collect::<Vec<_>>(), leases);
    assert!(matches!(decides.own(gives, &leases[..1], None).await.own[..], [Err(_)]), "it drains");
    assert!(decides.own(takes, &leases, None).await.own.iter().all(Result::is_ok));
    decides.node.stop().await.unwrap();
}
