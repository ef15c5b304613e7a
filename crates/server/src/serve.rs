//! `orchestrix serve`: one coordinator as a process, from its settings to its exit code.
//!
//! Exit codes: 0 stopped as asked, 1 could not start or had to stop, 2 settings are wrong, 130 and 143 a
//! second signal did not want to wait.

mod greeting;
mod reload;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use orchestrix_engine::file::Cut;
use orchestrix_engine::{Shared, SystemClock};
use orchestrix_leadership::{Candidate, worker_id};
use orchestrix_node::{BusOptions, Failure, HighWater, Member, Membership, Options, Storage};
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::greeting::{announce, journal_line};
use self::reload::{Reload, TokenFiles};
use crate::bus::{Found, Identity};
use crate::config::Settings;
use crate::coordinator::Coordinator;
use crate::descriptors;
use crate::engine::{BusAt, Engine, Url};
use crate::http::{self, Serving};
use crate::printing::Printing;
use crate::tokens::{Secret, Tokens};
use crate::zmq;

pub use crate::config::ServeArgs;

/// The longest that a call on a shared engine waits for its answer.
const ENGINE_TIMEOUT_MAX: Duration = Duration::from_secs(5);

/// Why the process ends with a complaint.
#[derive(Debug)]
struct Ended {
    code: u8,
    why: String,
}

fn unusable(why: String) -> Ended {
    Ended { code: 2, why }
}

fn failed(why: String) -> Ended {
    Ended { code: 1, why }
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        failed(failure.to_string())
    }
}

/// Runs a coordinator until it is stopped. Starts its own runtime: call it outside of one.
#[must_use]
pub fn run(args: ServeArgs) -> ExitCode {
    let printing = match Printing::start() {
        Ok(printing) => printing,
        Err(error) => {
            // Without a place for complaints there is still the exit code.
            let _ = writeln!(io::stderr(), "orchestrix: cannot print anything: {error}");
            return ExitCode::FAILURE;
        }
    };
    let code = match try_run(args, &printing) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Ended { code, why }) => {
            printing.complain(&why);
            ExitCode::from(code)
        }
    };
    printing.flush();
    code
}

fn try_run(args: ServeArgs, printing: &Printing) -> Result<(), Ended> {
    let settings = Settings::resolve(args, |name| std::env::var(name).ok()).map_err(unusable)?;
    printing.start_log(&settings).map_err(unusable)?;
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let tokens = settings.tokens.as_deref().map(Tokens::load).transpose().map_err(unusable)?;
    let node_token = settings.node_token.as_deref().map(Secret::load).transpose().map_err(unusable)?;
    check_exposure(&settings, tokens.is_some())?;
    check_node_token(&settings.engine, tokens.is_some(), node_token.is_some())?;
    // One core is for the loop: on two cores this serves a fifth more requests than a worker for each.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = cores.saturating_sub(1).max(1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build();
    let runtime = runtime.map_err(|error| failed(format!("cannot start the runtime: {error}")))?;
    let (limits, unprinted) = (descriptors::limits(&settings), Arc::clone(&printing.dropped));
    let node_link = http::NodeLink::default();
    let options = http::Options { limits, tokens, node_token, zmq: None, unprinted, node_link };
    runtime.block_on(serve(settings, options, printing))
}

/// Nodes that know callers by tokens know each other by one, too: the leader believes what a follower says of a caller. A node
/// that checks no tokens must not have one, because it would vouch for every caller.
fn check_node_token(engine: &Engine, with_tokens: bool, with_node_token: bool) -> Result<(), Ended> {
    let why = match (engine, with_tokens, with_node_token) {
        (Engine::Shared(_), true, false) => {
            "the nodes of a cluster with tokens show each other a token: give --node-token FILE with the text of a token \
             that has the role node"
        }
        (Engine::Shared(_), false, true) => {
            "--node-token vouches for callers, and without tokens they are not checked: give --tokens FILE, the same on all \
             nodes, or leave out --node-token"
        }
        (Engine::Shared(_), true, true)
        | (Engine::Shared(_), false, false)
        | (Engine::File | Engine::Memory, ..) => return Ok(()),
    };
    Err(unusable(why.to_owned()))
}

/// Other machines are served only with tokens, and without encryption only when that was asked for.
fn check_exposure(settings: &Settings, with_tokens: bool) -> Result<(), Ended> {
    if let Some(zmq::Place::At(address)) = settings.zmq
        && !address.ip().is_loopback()
    {
        return Err(unusable(format!(
            "ZeroMQ on {address} could be reached from other machines, and nothing there is encrypted: give --zmq \
             tcp://127.0.0.1:{}, and let workers on other machines speak HTTP",
            address.port()
        )));
    }
    let listen = settings.listen;
    if listen.ip().is_loopback() {
        return Ok(());
    }
    if !with_tokens {
        return Err(unusable(format!(
            "{listen} can be reached from other machines, and without tokens everyone could do everything: \
             give --tokens FILE, or listen on 127.0.0.1"
        )));
    }
    if !settings.insecure_plaintext {
        return Err(unusable(format!(
            "{listen} can be reached from other machines, and tokens would travel unencrypted: put a proxy with \
             TLS in front and listen on 127.0.0.1, or give --insecure-plaintext if you trust the network"
        )));
    }
    Ok(())
}

async fn serve(settings: Settings, mut options: http::Options, printing: &Printing) -> Result<(), Ended> {
    let mut signals = Signals::take()?;
    let listening =
        http::listen(settings.listen).map_err(|error| cannot_listen(settings.listen, &error, "--listen"))?;
    let shards;
    (options.zmq, shards) = listen_zmq(settings.zmq)?;
    let opened = tokio::select! {
        opened = open(&settings, listening.address()) => opened?,
        // Nothing has been promised yet: a start that is broken off is as good as one that never was.
        name = signals.stops.next() => leave(name, printing),
    };
    let port = listening.address().port();
    announce(&opened, &listening, &shards, options.tokens.is_some(), printing);
    let Opened { coordinator, found, identity, .. } = opened;
    let serving = listening.serve(coordinator.clone(), options);
    serving.attach(found, identity);
    if let Some(path) = &settings.port_file {
        write_port(path, port)?;
    }
    let files = TokenFiles { tokens: settings.tokens, node_token: settings.node_token };
    run_until_stopped(&mut signals, &coordinator, serving, Reload::new(files), printing).await
}

/// A coordinator, and the lines that describe it at the start.
struct Opened {
    coordinator: Coordinator,
    node: String,
    /// Where everything is.
    place: String,
    /// How much there is.
    journal: String,
    cut: Option<Cut>,
    /// The bus, and who this process is there.
    found: Found,
    identity: Identity,
}

/// The bus of the settings.
struct Bus {
    at: BusAt,
    options: BusOptions,
}

impl Bus {
    /// Looks for it, so that a node which is refused has opened nothing yet.
    fn look(self, engine: Option<&Arc<dyn Shared>>, node: &mut Options) -> Result<Found, Ended> {
        let found = Found::look(&self.at, engine).map_err(|error| failed(error.to_string()))?;
        node.bus = found.is_wanted().then_some(self.options);
        Ok(found)
    }
}

/// Recovery reads the whole journal, so it runs where blocking is allowed.
async fn open(settings: &Settings, address: SocketAddr) -> Result<Opened, Ended> {
    let node = settings.node.clone().unwrap_or_else(|| match settings.engine {
        Engine::File | Engine::Memory => "node-1".to_owned(),
        Engine::Shared(_) => format!("{}-{}", host_name(), address.port()),
    });
    let options = Options {
        node,
        retention: settings.retention,
        snapshot_bytes: settings.snapshot_bytes,
        shards: settings.shards,
        ..Options::default()
    };
    let bus = Bus { at: settings.bus.clone(), options: settings.bus_options.clone() };
    let alone = format!("http://{address}");
    let open: Box<dyn FnOnce() -> Result<Opened, Ended> + Send> = match &settings.engine {
        Engine::File => {
            let (data, place) =
                (settings.data.clone(), format!("{} (engine: file)", settings.data.display()));
            Box::new(move || open_alone(&Storage::File(data), place, (bus, alone), options))
        }
        Engine::Memory => {
            let place = "memory (nothing survives the process)".to_owned();
            Box::new(move || open_alone(&Storage::Memory, place, (bus, alone), options))
        }
        Engine::Shared(url) => {
            let joining = Joining {
                url: url.clone(),
                data: settings.data.clone(),
                advertise: advertise(settings, address)?,
                leadership: settings.leadership.clone(),
                accept_data_loss: settings.accept_data_loss,
                bus,
            };
            Box::new(move || open_member(joining, options))
        }
    };
    let opened = tokio::task::spawn_blocking(open).await;
    opened.map_err(|error| failed(format!("opening the journal stopped because of a bug: {error}")))?
}

fn open_alone(
    storage: &Storage,
    place: String,
    (bus, address): (Bus, String),
    mut options: Options,
) -> Result<Opened, Ended> {
    let name = options.node.clone();
    let found = bus.look(None, &mut options)?;
    let on_bus = options.bus.clone().unwrap_or_default();
    let opened = orchestrix_node::open(storage, options);
    let (node, recovered) = opened.map_err(|failure| cannot_open(storage, failure))?;
    let journal = journal_line(&recovered);
    let cut = recovered.journal.cut;
    let incarnation = worker_id(&SystemClock);
    let identity = Identity { node: name.clone(), incarnation, address, options: on_bus };
    Ok(Opened { coordinator: node.into(), node: name, place, journal, cut, found, identity })
}

/// Damage is for people to repair: nothing that was acknowledged is dropped without them.
fn cannot_open(storage: &Storage, failure: Failure) -> Ended {
    match storage {
        Storage::File(folder) if failure.is_damage() => failed(format!(
            "{failure}\n  the journal was left as it is; see what can be read with `orchestrix journal verify {}`, and restore the \
             folder from a backup: docs/operating.md, \"A damaged journal\", has the steps",
            folder.display()
        )),
        Storage::File(_) | Storage::Memory => failure.into(),
    }
}

/// How a node joins the others on an engine.
struct Joining {
    url: Url,
    data: PathBuf,
    advertise: String,
    leadership: orchestrix_leadership::Options,
    accept_data_loss: bool,
    bus: Bus,
}

fn open_member(joining: Joining, mut options: Options) -> Result<Opened, Ended> {
    let Joining { url, data, advertise, leadership, accept_data_loss, bus } = joining;
    // Two tries fit into the time in which a leader that cannot renew still trusts itself.
    let timeout = (leadership.leader_ttl / 4).min(ENGINE_TIMEOUT_MAX);
    let engine = url.connect_when_it_answers(timeout).map_err(|error| failed(error.to_string()))?;
    for warning in engine.warnings() {
        tracing::warn!(engine = engine.place(), "{warning}");
    }
    let found = bus.look(Some(&engine), &mut options)?;
    let on_bus = options.bus.clone().unwrap_or_default();
    let high_water = HighWater::open(data)?;
    if accept_data_loss {
        high_water.accept_loss();
    }
    let (place, name) = (engine.place(), options.node.clone());
    let incarnation = worker_id(&SystemClock);
    let (node, own, address) = (name.clone(), incarnation.clone(), advertise.clone());
    let identity = Identity { node, incarnation: own, address, options: on_bus };
    let me = Candidate { name: name.clone(), incarnation, address: advertise };
    let member = Member::open(Membership { engine, me, leadership, node: options, high_water })?;
    let events = member.stats().durable.get();
    let journal = if events == 0 { "new".to_owned() } else { format!("{events} events") };
    Ok(Opened { coordinator: member.into(), node: name, place, journal, cut: None, found, identity })
}

/// Where the other nodes reach this one.
fn advertise(settings: &Settings, address: SocketAddr) -> Result<String, Ended> {
    match &settings.advertise {
        Some(given) => Ok(given.clone()),
        None if address.ip().is_unspecified() => Err(unusable(format!(
            "the other nodes cannot reach this one at {address}: give --advertise with its own address, as in \
             http://10.0.0.5:{}",
            address.port()
        ))),
        None => Ok(format!("http://{address}")),
    }
}

fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    // Names are letters, digits and a few marks.
    name.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect()
}

async fn run_until_stopped(
    signals: &mut Signals,
    coordinator: &Coordinator,
    serving: Serving,
    mut reload: Reload,
    printing: &Printing,
) -> Result<(), Ended> {
    loop {
        tokio::select! {
            name = signals.stops.next() => {
                tracing::info!(signal = name, "stopping");
                break;
            }
            _ = signals.hang_up.recv() => reload.start(),
            read = reload.read() => reload.finish(read, &serving),
            ended = coordinator.stopped() => {
                let why = ended.map_or_else(|failure| failure.to_string(), |()| "for no known reason".to_owned());
                tracing::error!(%why, "the node has stopped");
                return Err(failed(format!("the node has stopped: {why}")));
            }
        }
    }
    tokio::select! {
        stopped = serving.stop() => {
            stopped?;
            tracing::info!("stopped");
            Ok(())
        }
        name = signals.stops.next() => {
            tracing::warn!(signal = name, "second signal, exiting at once");
            leave(name, printing)
        }
    }
}

fn leave(signal: &str, printing: &Printing) -> ! {
    printing.flush();
    std::process::exit(if signal == SIGTERM { 143 } else { 130 })
}

const SIGTERM: &str = "SIGTERM";
const SIGINT: &str = "SIGINT";

struct Signals {
    stops: Stops,
    /// Asks to read the tokens again. One that comes during the start is not lost.
    hang_up: Signal,
}

struct Stops {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn take() -> Result<Self, Ended> {
        let take = |kind| signal(kind).map_err(|error| failed(format!("cannot listen to signals: {error}")));
        let stops =
            Stops { terminate: take(SignalKind::terminate())?, interrupt: take(SignalKind::interrupt())? };
        Ok(Self { stops, hang_up: take(SignalKind::hangup())? })
    }
}

impl Stops {
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => SIGTERM,
            _ = self.interrupt.recv() => SIGINT,
        }
    }
}

fn cannot_listen(address: SocketAddr, error: &io::Error, option: &str) -> Ended {
    if error.kind() == io::ErrorKind::AddrInUse {
        return failed(format!(
            "cannot listen on {address}: the address is in use; stop what runs there or choose another with {option}"
        ));
    }
    failed(format!("cannot listen on {address}: {error}; choose another address with {option}"))
}

/// Takes the address for ZeroMQ, and returns its line for the start. Another coordinator on this machine may have the
/// usual one.
fn listen_zmq(place: Option<zmq::Place>) -> Result<(Option<zmq::Listening>, String), Ended> {
    let address = match place {
        Some(zmq::Place::Off) => return Ok((None, "over HTTP".to_owned())),
        Some(zmq::Place::At(address)) => address,
        None => zmq::DEFAULT,
    };
    match zmq::listen(address) {
        Ok(listening) => {
            let told = format!("over HTTP, and ZeroMQ on tcp://{}", listening.address());
            Ok((Some(listening), told))
        }
        Err(error) if place.is_none() => Ok((
            None,
            format!("over HTTP; no ZeroMQ, because {address} cannot be used ({error}): choose with --zmq"),
        )),
        Err(error) => Err(cannot_listen(address, &error, "--zmq")),
    }
}

fn write_port(path: &Path, port: u16) -> Result<(), Ended> {
    let written = std::fs::write(path, format!("{port}\n"));
    written.map_err(|error| failed(format!("cannot write the port to {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_the_token_of_the_node_come_together() {
        let shared = Engine::parse("redis://127.0.0.1:1").unwrap();
        let refused = |engine: &Engine, tokens, node_token| {
            check_node_token(engine, tokens, node_token).err().map(|ended| (ended.code, ended.why))
        };
        let (code, why) = refused(&shared, true, false).unwrap();
        assert!(code == 2 && why.contains("--node-token FILE"), "{why}");
        let (code, why) = refused(&shared, false, true).unwrap();
        assert!(code == 2 && why.contains("--tokens FILE"), "{why}");
        assert_eq!(refused(&shared, true, true), None);
        assert_eq!(refused(&shared, false, false), None);
        assert_eq!(refused(&Engine::File, true, false), None);
    }

    #[tokio::test]
    async fn a_node_that_stops_by_itself_ends_the_process() {
        let (node, _) = orchestrix_node::open(&Storage::Memory, Options::default()).unwrap();
        let serving =
            http::start(([127, 0, 0, 1], 0).into(), node.clone(), http::Options::default()).unwrap();
        let mut signals = Signals::take().unwrap();
        node.stop().await.unwrap();
        let printing = Printing::start().unwrap();
        let files = TokenFiles::default();
        let ended = run_until_stopped(&mut signals, &node.into(), serving, Reload::new(files), &printing)
            .await
            .unwrap_err();
        assert_eq!(ended.code, 1);
        assert!(ended.why.contains("the node has stopped"), "{}", ended.why);
    }
}
