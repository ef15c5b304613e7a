//! A network of its own for each node: namespaces with a switch between them, whose wires can be pulled.

use std::net::Ipv4Addr;
use std::process::Command;

use super::{Checked, failed};

/// A switch in a namespace of its own, and a namespace for each node. Gone when its owner is.
pub(crate) struct Wires {
    /// Tells the names of this one from those of others.
    tag: String,
    nodes: usize,
}

/// The third part of the addresses; the last names the host.
const NET: [u8; 3] = [10, 213, 77];

impl Wires {
    /// Lays wires for so many nodes, for the switch, and for this program.
    pub(crate) fn lay(nodes: usize) -> Checked<Self> {
        let wires = Self { tag: format!("orx{}", std::process::id() % 100_000), nodes };
        wires.clear();
        wires.lay_all()?;
        Ok(wires)
    }

    fn lay_all(&self) -> Checked {
        let hub = self.hub();
        ip(&["netns", "add", &hub])?;
        ip(&["-n", &hub, "link", "add", "switch", "type", "bridge"])?;
        ip(&["-n", &hub, "link", "set", "switch", "up"])?;
        ip(&["-n", &hub, "link", "set", "lo", "up"])?;
        ip(&["-n", &hub, "addr", "add", &format!("{}/24", Self::hub_address()), "dev", "switch"])?;
        let own = format!("{}h", self.tag);
        ip(&["link", "add", &own, "type", "veth", "peer", "name", "host", "netns", &hub])?;
        ip(&["-n", &hub, "link", "set", "host", "master", "switch", "up"])?;
        ip(&["addr", "add", &format!("{}/24", address(254)), "dev", &own])?;
        ip(&["link", "set", &own, "up"])?;
        for node in 0..self.nodes {
            let (name, wire) = (self.namespace(node), Self::wire(node));
            ip(&["netns", "add", &name])?;
            ip(&["-n", &hub, "link", "add", &wire, "type", "veth", "peer", "name", "up0", "netns", &name])?;
            ip(&["-n", &hub, "link", "set", &wire, "master", "switch", "up"])?;
            ip(&["-n", &name, "addr", "add", &format!("{}/24", self.address(node)), "dev", "up0"])?;
            ip(&["-n", &name, "link", "set", "up0", "up"])?;
            ip(&["-n", &name, "link", "set", "lo", "up"])?;
        }
        Ok(())
    }

    /// Cuts a node off from all others.
    pub(crate) fn pull(&self, node: usize) -> Checked {
        ip(&["-n", &self.hub(), "link", "set", &Self::wire(node), "down"])
    }

    pub(crate) fn plug_in(&self, node: usize) -> Checked {
        ip(&["-n", &self.hub(), "link", "set", &Self::wire(node), "up"])
    }

    pub(crate) fn address(&self, node: usize) -> Ipv4Addr {
        address(1 + u8::try_from(node).unwrap_or(200))
    }

    /// The address of services at the switch, for every node.
    pub(crate) fn hub_address() -> Ipv4Addr {
        address(253)
    }

    /// Begins a command that runs at a node.
    pub(crate) fn at(&self, node: usize) -> Command {
        inside(&self.namespace(node))
    }

    /// Begins a command that runs at the switch.
    pub(crate) fn at_hub(&self) -> Command {
        inside(&self.hub())
    }

    fn hub(&self) -> String {
        format!("{}-hub", self.tag)
    }

    fn namespace(&self, node: usize) -> String {
        format!("{}-{node}", self.tag)
    }

    fn wire(node: usize) -> String {
        format!("wire{node}")
    }

    fn clear(&self) {
        // With a namespace goes what is in it; what is not there need not go.
        for node in 0..self.nodes {
            let _ = ip(&["netns", "del", &self.namespace(node)]);
        }
        let _ = ip(&["netns", "del", &self.hub()]);
        let _ = ip(&["link", "del", &format!("{}h", self.tag)]);
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        self.clear();
    }
}

fn address(last: u8) -> Ipv4Addr {
    let [a, b, c] = NET;
    Ipv4Addr::new(a, b, c, last)
}

fn inside(namespace: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]);
    command
}

fn ip(arguments: &[&str]) -> Checked {
    let done = Command::new("ip").args(arguments).output().map_err(failed("run ip"))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(format!("ip {} said: {}; wires need root", arguments.join(" "), said.trim()))
}
