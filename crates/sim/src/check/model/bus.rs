//! The rules of the bus: nodes, owners of leases, and offers.

use std::collections::BTreeMap;

use orchestrix_core::{
    BusResumed, LeaseId, LeaseOffered, LeasesStarted, Name, NodeJoined, OwnerToken, OwnershipEvent, TaskId,
    Timestamp,
};

use super::{Granted, Is, Lease, Model, ensure, kept_until};
use crate::check::Violation;
use crate::coverage::Coverage;

/// The format of a journal with events of the bus.
const FORMAT: u8 = 2;
/// How long an offer lasts, in milliseconds.
const OFFER: u64 = 15_000;
/// Leases that one event names.
const LEASES: usize = 500;

/// Nodes that are there, and who was given which lease. Leases that have ended may stay.
#[derive(Debug, Default)]
pub(super) struct Owners {
    nodes: BTreeMap<OwnerToken, Node>,
    given: BTreeMap<LeaseId, OwnerToken>,
}

#[derive(Debug)]
struct Node {
    name: String,
    incarnation: String,
    address: String,
    drains: bool,
}

impl Owners {
    fn of(&self, lease: LeaseId) -> Option<OwnerToken> {
        self.given.get(&lease).copied().filter(|owner| self.nodes.contains_key(owner))
    }
}

impl Model {
    /// The node that owns a lease, if one does.
    #[cfg(test)]
    pub(in crate::check) fn owner_of(&self, lease: LeaseId) -> Option<OwnerToken> {
        self.owners.of(lease)
    }

    pub(super) fn raise(&mut self, format: u8) -> Result<(), Violation> {
        ensure(format > self.format.max(1), "W15", || format!("format {format} after {}", self.format))?;
        self.format = format;
        Ok(())
    }

    fn has_bus(&self) -> Result<(), Violation> {
        ensure(self.format >= FORMAT, "W15", || {
            format!("position {} is of the bus, in format {}", self.position, self.format)
        })
    }

    pub(super) fn own(&mut self, event: &OwnershipEvent) -> Result<(), Violation> {
        self.has_bus()?;
        let position = self.position;
        let there = |owners: &Owners, node: &OwnerToken| {
            ensure(owners.nodes.contains_key(node), "O7", || {
                format!("position {position} is about node {node}, which is not there")
            })
        };
        match event {
            OwnershipEvent::NodeJoined(event) => {
                let NodeJoined { node: name, incarnation, address } = event.clone();
                let before = self.owners.nodes.values().find(|node| node.name == name);
                let is_other = before.is_none_or(|it| it.incarnation != incarnation || it.address != address);
                ensure(is_other, "O7", || {
                    format!("process {incarnation} of {name} is there, and joins again")
                })?;
                self.owners.nodes.retain(|_, node| node.name != name);
                let node = Node { name, incarnation, address, drains: false };
                self.owners.nodes.insert(OwnerToken(position.0), node);
            }
            OwnershipEvent::NodeLeft(event) => {
                there(&self.owners, &event.node)?;
                self.owners.nodes.remove(&event.node);
            }
            OwnershipEvent::NodeDraining(event) => {
                there(&self.owners, &event.node)?;
                let node = self.owners.nodes.get_mut(&event.node);
                let first = node.is_some_and(|node| !std::mem::replace(&mut node.drains, true));
                ensure(first, "O6", || format!("node {} begins to drain twice", event.node))?;
            }
            OwnershipEvent::OwnersAssigned(event) => {
                there(&self.owners, &event.node)?;
                let drains = self.owners.nodes.get(&event.node).is_some_and(|node| node.drains);
                ensure(!drains, "O6", || format!("node {} drains and takes leases", event.node))?;
                for lease in self.of_bus(&event.leases)? {
                    ensure(self.owners.of(lease) != Some(event.node), "O1", || {
                        format!("node {} takes lease {lease}, which it owns", event.node)
                    })?;
                    self.owners.given.insert(lease, event.node);
                }
            }
            OwnershipEvent::OwnersReleased(event) => {
                there(&self.owners, &event.node)?;
                for lease in self.of_bus(&event.leases)? {
                    ensure(self.owners.of(lease) == Some(event.node), "O2", || {
                        format!("node {} gives away lease {lease}, which is not its own", event.node)
                    })?;
                    self.owners.given.remove(&lease);
                }
            }
        }
        Ok(())
    }

    /// The leases of an event about owners: some, each once, all of them of the bus and not over.
    fn of_bus(&self, leases: &[LeaseId]) -> Result<Vec<LeaseId>, Violation> {
        let position = self.position;
        let in_order = leases.windows(2).all(|two| two[0] < two[1]);
        ensure(in_order && (1..=LEASES).contains(&leases.len()), "O1", || {
            format!("position {position} names {} leases, or one of them twice", leases.len())
        })?;
        for lease in leases {
            let task = self.leases.get(lease).and_then(|granted| self.tasks.get(&granted.task));
            let live = task.and_then(|task| task.lease.as_ref()).filter(|live| live.id == *lease);
            ensure(live.is_some_and(|live| live.of_bus), "O3", || {
                format!("position {position} names lease {lease}, which is none of the bus")
            })?;
        }
        Ok(leases.to_vec())
    }

    pub(super) fn offered(&mut self, event: &LeaseOffered) -> Result<(), Violation> {
        self.has_bus()?;
        self.may_be_granted(event.task)?;
        let (position, at) = (self.position, self.at);
        let task = self.task(event.task)?;
        ensure(event.attempt == task.charged + 1, "T9", || format!("attempt {} is offered", event.attempt))?;
        ensure(event.expires_at >= kept_until(at, OFFER), "L3", || {
            format!("offer {position} is kept too short")
        })?;
        let id = LeaseId(position.0);
        let lease = Lease {
            id,
            worker: None,
            of_bus: true,
            length_ms: event.length_ms,
            expires_at: event.expires_at,
            timeout_at: None,
            cancel_at: None,
            prolonged: false,
        };
        let ends = vec![(position, lease.ends_at())];
        task.lease = Some(lease);
        task.was.push((position, Is::Leased(id)));
        let (task, attempt) = (event.task, event.attempt);
        let granted = Granted { task, worker: None, of_bus: true, attempt, request_id: None, held: 0, ends };
        self.leases.insert(id, granted);
        Ok(())
    }

    pub(super) fn started(&mut self, event: &LeasesStarted) -> Result<(), Violation> {
        self.has_bus()?;
        for start in &event.started {
            let task = self.leases.get(&start.lease).map_or(TaskId(0), |granted| granted.task);
            self.live(task, start.lease)?;
            self.start(task, start.lease, &start.worker)?;
            let at = self.at;
            let task = self.task(task)?;
            let timeout_at = task.timeout_ms.map(|ms| Timestamp(at.0 + ms));
            let Some(lease) = task.lease.as_mut() else { continue };
            ensure(start.expires_at >= kept_until(at, lease.length_ms), "L3", || {
                format!("lease {} is kept too short", start.lease)
            })?;
            (lease.expires_at, lease.timeout_at) = (start.expires_at, timeout_at);
            lease.prolonged = false;
            let ends = lease.ends_at();
            self.note_end(start.lease, ends);
        }
        Ok(())
    }

    /// A report says who has started a lease until now.
    pub(super) fn starts_with(
        &mut self,
        task: TaskId,
        lease: LeaseId,
        worker: Option<&Name>,
    ) -> Result<(), Violation> {
        let Some(worker) = worker else { return Ok(()) };
        self.has_bus()?;
        self.start(task, lease, worker)
    }

    fn start(&mut self, task: TaskId, id: LeaseId, worker: &Name) -> Result<(), Violation> {
        self.current(task, id)?;
        let held = self.held.entry(worker.clone()).or_default();
        *held += 1;
        let held = *held;
        let Some(lease) = self.task(task)?.lease.as_mut() else { return Ok(()) };
        ensure(lease.of_bus && lease.worker.is_none(), "L1", || {
            format!("lease {id} is started by {worker}, and has {:?}", lease.worker)
        })?;
        lease.worker = Some(worker.clone());
        if let Some(granted) = self.leases.get_mut(&id) {
            (granted.worker, granted.held) = (Some(worker.clone()), held);
        }
        Ok(())
    }

    /// T9: nobody has had what ends without a worker. It is no attempt, unless it is a cancellation of the task.
    pub(super) fn ends_uncounted(&mut self, task: TaskId, charged: bool) -> Result<(), Violation> {
        let offer = self.task(task)?.lease.as_ref().is_some_and(Lease::is_offer);
        ensure(!(offer && charged), "T9", || format!("an offer of task {task} counts as an attempt"))
    }

    /// TL1: an offer that nobody has started ends in time.
    pub(super) fn offer_ends_in_time(&mut self, task: TaskId) -> Result<(), Violation> {
        let offer = self.task(task)?.lease.clone().filter(Lease::is_offer);
        offer.map_or(Ok(()), |offer| self.in_time(Some(offer.expires_at), "offer", offer.id.0))
    }

    pub(super) fn resumed(&mut self, event: &BusResumed, coverage: &mut Coverage) -> Result<(), Violation> {
        self.has_bus()?;
        let at = self.at;
        ensure(event.silent_since <= at, "L3", || {
            format!("a silence from {:?} to {at:?}", event.silent_since)
        })?;
        self.prolong(at.since(event.silent_since), |lease| lease.of_bus, coverage);
        Ok(())
    }
}

impl Lease {
    pub(super) fn is_offer(&self) -> bool {
        self.of_bus && self.worker.is_none()
    }

    pub(super) fn lasts(&self) -> u64 {
        if self.is_offer() { OFFER } else { self.length_ms }
    }
}
