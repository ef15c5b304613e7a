//! What a leader pays for clients of its followers: life cycles through two followers beside the same at the leader itself, and
//! thousands of waiting lease calls at one follower.
//!
//! Both are offered the same number of life cycles per second, which the slower way can do with ease, so what is compared is
//! processor time of the leader and not how busy the machine is. What the leader pays in any case (deciding, appending, telling
//! its followers) is in both.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use orchestrix_testbed::{Server, Store};
use serde::Serialize;
use serde_json::Value;

use crate::figures::{Goal, Unit, median, thousands};
use crate::http::{self, Http, QUEUE, get, metric};
use crate::load::{Shape, run_cycles, run_paced};
use crate::process::start_node;
use crate::setup::Setup;
use crate::stores::Kind;

const NODES: usize = 3;
/// One task per call, one call at a time on each connection.
const SHAPE: Shape = Shape { connections: 256, lanes: 1, batch: 1 };
/// The share of what one follower can do that is offered.
const OFFERED: f64 = 0.5;
/// A load that falls behind by more does not show the offered rate.
const DONE_MIN: f64 = 0.9;
const WAITING: usize = 5_000;
/// Connections that a node takes: those calls, and a few more.
const CONNECTIONS: &str = "6000";
/// Tasks of one call.
const BATCH: usize = 500;
const COST_WANTED: f64 = 0.35;
const CONNECTIONS_WANTED: u64 = 8;
/// The beginning of a term, and a little more.
const TERM_BEGINS: Duration = Duration::from_secs(6);
/// Nothing takes so long.
const GIVE_UP: Duration = Duration::from_secs(60);

/// What a run came to.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LinkFigures {
    pub(crate) offered_per_second: f64,
    pub(crate) turns: usize,
    /// Processor time of the leader per life cycle, in microseconds.
    pub(crate) at_leader_us: f64,
    pub(crate) at_followers_us: f64,
    pub(crate) ratio: f64,
    pub(crate) waiting: usize,
    /// Waiting calls that were refused.
    pub(crate) refused: usize,
    /// Connections that the leader had of its followers meanwhile.
    pub(crate) connections: u64,
}

/// # Errors
/// When a server is not there, refuses something or goes away.
pub(crate) fn measure(setup: &Setup) -> Result<LinkFigures> {
    setup.step("links: starting Redis and 3 nodes");
    let folder = setup.data.join("links");
    let store = Kind::Redis.start(&folder)?;
    let nodes = (0..NODES).map(|n| launch(setup, &store, n)).collect::<Result<Vec<_>>>()?;
    let leader = leader(&nodes)?;
    let followers: Vec<SocketAddr> =
        (0..NODES).filter(|n| *n != leader).map(|n| nodes[n].address()).collect();
    let leader = &nodes[leader];
    // A new leader lets few lease calls in at first, and sends those home that do not wait.
    thread::sleep(TERM_BEGINS);
    setup.step("links: what one follower can do");
    let most = run_cycles(followers[0], SHAPE, setup.window, Http::new)?;
    let offered = most.per_second * OFFERED;
    let (mut here, mut there, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 1..=setup.rounds {
        setup.step(&format!("links: processor time of the leader, turn {turn}"));
        let at_leader = cost(setup, leader, &[leader.address()], offered)?;
        let at_followers = cost(setup, leader, &followers, offered)?;
        here.push(at_leader);
        there.push(at_followers);
        ratios.push(at_followers / at_leader);
    }
    setup.step(&format!("links: {} waiting calls at one follower", thousands(WAITING as f64)));
    let (refused, connections) = wait(leader.address(), followers[0])?;
    Ok(LinkFigures {
        offered_per_second: offered,
        turns: ratios.len(),
        at_leader_us: median(&mut here),
        at_followers_us: median(&mut there),
        ratio: median(&mut ratios),
        waiting: WAITING,
        refused,
        connections,
    })
}

fn launch(setup: &Setup, store: &Store, n: usize) -> Result<Server> {
    let (name, url) = (format!("n{n}"), store.url());
    let folder = setup.data.join("links").with_extension(&name);
    let mut options = vec!["--engine", &url, "--node", &name, "--leader-ttl", "10s"];
    // All clients come from one address. More connections than a process may open files would be lowered, and halved for it.
    options.extend(["--max-connections", CONNECTIONS, "--max-connections-per-ip", CONNECTIONS]);
    options.extend(["--max-zmq-connections", "1", "--max-zmq-connections-per-ip", "1"]);
    start_node(&setup.program, &folder, &options)
}

/// The place of the node that all nodes report as leader.
fn leader(nodes: &[Server]) -> Result<usize> {
    let start = Instant::now();
    loop {
        let views = nodes.iter().map(|node| {
            let view: Value = serde_json::from_str(&get(node.address(), "/v1/cluster")?)?;
            Ok(view["leader"].as_str().and_then(|name| name.strip_prefix('n')?.parse::<usize>().ok()))
        });
        let views = views.collect::<Result<Vec<_>>>()?;
        if let Some(leader) = views[0].filter(|_| views.iter().all(|view| *view == views[0])) {
            return Ok(leader);
        }
        ensure!(start.elapsed() < GIVE_UP, "the nodes do not agree on a leader: {views:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Processor time of the leader per life cycle, in microseconds, under load at some nodes.
fn cost(setup: &Setup, leader: &Server, at: &[SocketAddr], offered: f64) -> Result<f64> {
    let before = leader.cpu()?;
    let done = run_paced(at, SHAPE, offered, setup.window, Http::new)?;
    let spent = leader.cpu()? - before;
    let share = done as f64 / (offered * setup.window.as_secs_f64());
    ensure!(share >= DONE_MIN, "only {:.0} % of the offered load was done", share * 100.0);
    Ok(spent.as_secs_f64() * 1e6 / done as f64)
}

/// Lets thousands of calls wait at a follower, and then gives each a task: how many were refused, and how many connections the
/// leader had meanwhile.
fn wait(leader: SocketAddr, follower: SocketAddr) -> Result<(usize, u64)> {
    let mut calls = Vec::with_capacity(WAITING);
    for n in 0..WAITING {
        let body = format!(r#"{{"worker":"waits-{n}","wait_ms":60000}}"#);
        let mut call = TcpStream::connect(follower)?;
        call.set_read_timeout(Some(GIVE_UP))?;
        let head = "host: localhost\r\nconnection: close\r\ncontent-type: application/json";
        write!(
            call,
            "POST /v1/queues/{QUEUE}/lease HTTP/1.1\r\n{head}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )?;
        calls.push(call);
    }
    let (start, all) = (Instant::now(), WAITING as f64);
    while metric(&get(leader, "/metrics")?, "orchestrix_polls")? < all {
        ensure!(start.elapsed() < GIVE_UP, "not all calls wait at the leader");
        thread::sleep(Duration::from_millis(10));
    }
    let page = get(leader, "/metrics")?;
    // The one that asks is not one of them.
    let requests = metric(&page, "orchestrix_http_connections")? - 1.0;
    let connections = metric(&page, "orchestrix_link_followers")? + requests;
    let mut client = http::Alone::connect(follower)?;
    let task = format!(r#"{{"queue":"{QUEUE}","payload":1}}"#);
    let body = format!(r#"{{"tasks":[{}]}}"#, vec![task; BATCH].join(","));
    for _ in 0..WAITING / BATCH {
        let (status, text) = client.ask("POST", "/v1/tasks/batch", body.as_bytes())?;
        ensure!(status < 300, "tasks are refused with {status}: {text}");
    }
    let mut refused = 0;
    for mut call in calls {
        let mut answer = String::new();
        call.read_to_string(&mut answer).context("a call that waits is not answered")?;
        refused += usize::from(!answer.starts_with("HTTP/1.1 200"));
    }
    Ok((refused, connections as u64))
}

impl LinkFigures {
    pub(crate) fn goals(&self) -> Vec<Goal> {
        let waiting = thousands(self.waiting as f64);
        vec![
            Goal {
                what: format!(
                    "processor time of the leader per life cycle, clients at two followers, relative to clients at the \
                     leader, median of {}",
                    self.turns
                ),
                measured: Unit::Times.show(self.ratio),
                wanted: format!("≤ {}", Unit::Times.show(COST_WANTED)),
                reached: self.ratio <= COST_WANTED,
            },
            Goal {
                what: format!("{waiting} lease calls that wait at one follower: calls refused"),
                measured: self.refused.to_string(),
                wanted: "0".to_owned(),
                reached: self.refused == 0,
            },
            Goal {
                what: format!("{waiting} lease calls that wait at one follower: connections to the leader"),
                measured: self.connections.to_string(),
                wanted: format!("≤ {CONNECTIONS_WANTED}"),
                reached: self.connections <= CONNECTIONS_WANTED,
            },
        ]
    }

    /// The table of this part, its head included.
    pub(crate) fn rows(&self) -> Vec<Vec<String>> {
        let row = |what: &str, value: String| vec![what.to_owned(), value];
        let micros = |value| Unit::Microseconds.show(value);
        vec![
            row("what", "value".to_owned()),
            row("life cycles offered", Unit::PerSecond.show(self.offered_per_second)),
            row(
                "processor time of the leader per life cycle, clients at the leader",
                micros(self.at_leader_us),
            ),
            row("the same, clients at two followers", micros(self.at_followers_us)),
            row("connections to the leader while calls wait", self.connections.to_string()),
        ]
    }
}
