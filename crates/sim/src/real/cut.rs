//! `nodes-cut`: three nodes, each in a network of its own. The wire of the leader is pulled, or of a follower, and put
//! back.

use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use orchestrix_testbed::Store;
use tempfile::TempDir;

use super::nodes::{NODES, Nodes, prepare};
use super::process::{Under, eventually};
use super::wires::Wires;
use super::{Checked, Round, Trial, Tried, failed};

const TTL: Duration = Duration::from_millis(1_500);

const MUST: &[&str] = &["leaders cut off", "followers cut off", "completions"];

pub(super) const ENOUGH: u64 = 3;

pub(super) fn run(trial: &Trial<'_>) -> Tried {
    let mut net: Option<Net> = None;
    trial.rounds(ENOUGH, MUST, |round| {
        let here = match net.take() {
            Some(net) => net,
            None => Net::start(trial)?,
        };
        net.insert(here).round(round)
    })
}

/// Nodes at the ends of wires.
struct Net {
    cluster: Nodes,
    wires: Arc<Wires>,
    _tokens: TempDir,
}

impl Net {
    fn start(trial: &Trial<'_>) -> Checked<Self> {
        let wires = Arc::new(Wires::lay(NODES)?);
        let (tokens, token) = tokens(trial)?;
        let file = |name: &str| tokens.path().join(name).display().to_string();
        let (known, shown) = (file("tokens"), file("node-token"));
        let hub = Arc::clone(&wires);
        let engine = Store::start_redis_at(IpAddr::V4(Wires::hub_address()), move || hub.at_hub())?;
        let mut nodes = Vec::new();
        for n in 0..NODES {
            let more = ["--tokens", &known, "--node-token", &shown, "--insecure-plaintext"];
            let under: Under = Box::new({
                let wires = Arc::clone(&wires);
                move || wires.at(n)
            });
            let host = IpAddr::V4(wires.address(n));
            nodes.push(prepare(trial, &engine, n, TTL, &more)?.at(host, token.clone(), under));
        }
        Ok(Self { cluster: Nodes::launch(engine, TTL, nodes)?, wires, _tokens: tokens })
    }

    fn round(&mut self, round: &mut Round<'_>) -> Checked {
        let leader = self.cluster.leader(round, None)?;
        let load = self.cluster.start_load(round)?;
        std::thread::sleep(Duration::from_millis(round.rng.range(50, 300)));
        let cuts_leader = round.number % 2 == 1;
        let node = if cuts_leader { leader } else { (leader + 1) % NODES };
        self.wires.pull(node)?;
        let pulled = Instant::now();
        round.tried.faults += 1;
        if cuts_leader {
            round.tried.see("leaders cut off", 1);
            self.cluster.replaced(round, node, pulled, self.cluster.ttl)?;
        } else {
            round.tried.see("followers cut off", 1);
            std::thread::sleep(Duration::from_millis(round.rng.range(500, 4_000)));
        }
        self.wires.plug_in(node)?;
        // The node that was cut off follows again.
        let reached = self.cluster.nodes[(node + 1) % NODES].metric("orchestrix_durable_position")?;
        eventually("the node that was cut off has caught up", || {
            let at = self.cluster.nodes[node].metric("orchestrix_durable_position");
            Ok(at.is_ok_and(|at| at >= reached).then_some(()))
        })?;
        load.end(round)?;
        self.cluster.hold(round)
    }
}

/// A folder with the tokens that are known and the one that nodes show, and a token that may do everything.
fn tokens(trial: &Trial<'_>) -> Checked<(TempDir, String)> {
    let ((admin, known), (shown, of_nodes)) = (token(trial, "admin")?, token(trial, "node")?);
    let folder = TempDir::new().map_err(failed("make a folder"))?;
    for (name, text) in [("tokens", known + "\n" + &of_nodes), ("node-token", shown)] {
        let path = folder.path().join(name);
        std::fs::write(&path, text).map_err(failed("write the tokens"))?;
        let owner_only = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, owner_only).map_err(failed("keep the tokens from others"))?;
    }
    Ok((folder, admin))
}

/// A new token with a role, and the lines of the tokens file that know it.
fn token(trial: &Trial<'_>, role: &str) -> Checked<(String, String)> {
    let made = Command::new(trial.binary).args(["token", "new", "--name", role, "--role", role]).output();
    let made = made.map_err(failed("make a token"))?;
    let said = String::from_utf8_lossy(&made.stdout).into_owned();
    let token = said.split_whitespace().find(|word| word.starts_with("orx_"));
    let lines = said.split_once("[[token]]").map(|(_, lines)| format!("[[token]]{lines}"));
    let (Some(token), Some(lines)) = (token, lines) else { return Err(format!("no token was made: {said}")) };
    Ok((token.to_owned(), lines))
}
