//! Settings of `orchestrix serve`, from four layers: flag, `ORCHESTRIX_*`, the older variables, file.
//!
//! Each layer is the same [`ServeArgs`] with some values missing; a higher layer wins value by value.

mod args;
mod cluster;
mod limits;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, FromArgMatches};
use http::uri::Authority;
use orchestrix_core::{Name, Retention};
use orchestrix_node::{BusOptions, ShardTimes};

pub use self::args::{ClusterArgs, LogFormat, ServeArgs};
use self::cluster::bus_options;
use self::limits::{at_least, limits};
use crate::engine::{Address, BusAt, Engine};
use crate::http::Limits;
use crate::private::{self, Text};
use crate::units::Span;
use crate::zmq::{self, Place, host_of};

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 3000);

/// How long a worker may need to be heard by a new leader.
const CHANGE_OF_LEADER: Duration = Duration::from_secs(5);
/// Less, and a heartbeat that is late once ends a worker's time.
const SHARD_LEASE_MS_MIN: u64 = 100;

/// All settings, with defaults filled in.
#[derive(Debug)]
pub struct Settings {
    pub data: PathBuf,
    pub listen: SocketAddr,
    /// Unless given, the usual one is tried.
    pub zmq: Option<Place>,
    pub shards: ShardTimes,
    pub engine: Engine,
    pub bus: BusAt,
    /// Of the bus, if there is one.
    pub bus_options: BusOptions,
    /// Unless given, one is made.
    pub node: Option<String>,
    pub advertise: Option<String>,
    pub leadership: orchestrix_leadership::Options,
    pub accept_data_loss: bool,
    pub tokens: Option<PathBuf>,
    pub node_token: Option<PathBuf>,
    pub insecure_plaintext: bool,
    pub retention: Retention,
    /// Bytes of journal after which a snapshot is taken.
    pub snapshot_bytes: u64,
    pub port_file: Option<PathBuf>,
    pub log: String,
    pub log_format: LogFormat,
    pub limits: Limits,
    /// What an operator should know, in the log.
    pub warnings: Vec<&'static str>,
}

impl Settings {
    /// Puts the layers on top of each other.
    ///
    /// # Errors
    /// A sentence that names the layer and the value.
    pub fn resolve(flags: ServeArgs, variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let has_secret = |address: &Option<Address>| address.as_ref().is_some_and(Address::has_secret);
        let (engine_shown, bus_shown) = (has_secret(&flags.engine), has_secret(&flags.bus));
        let set = flags.over(from_variables(&variable)?)?;
        let file = set.config.clone().map(|path| from_file(&path)).transpose()?.unwrap_or_default();
        let set = set.over(from_older_variables(&variable, &file)?)?.over(file)?;
        let mut settings = Self::checked(set)?;
        let engine = "the password of the engine is in the arguments, which every account of this machine can read: give \
                      --engine-file FILE";
        let bus = "the password of the bus is in the arguments, which every account of this machine can read: give \
                   --bus-file FILE";
        let shown = [(engine_shown, engine), (bus_shown, bus)];
        settings.warnings.extend(shown.into_iter().filter_map(|(is_shown, why)| is_shown.then_some(why)));
        Ok(settings)
    }

    fn checked(set: ServeArgs) -> Result<Self, String> {
        let limits = limits(&set)?;
        let mut leadership = orchestrix_leadership::Options::default();
        if let Some(ttl) = set.leader_ttl {
            leadership = orchestrix_leadership::Options::first_come(ttl.0);
        }
        leadership.leader_renew = set.leader_renew.map_or(leadership.leader_renew, |renew| renew.0);
        leadership.validate().map_err(|error| error.to_string())?;
        let node = orchestrix_node::Options::default();
        let engine = match (set.engine, set.engine_file) {
            (Some(address), _) => address.engine()?,
            (None, Some(path)) => loaded(&path, "the engine file", Address::engine)?,
            (None, None) => Engine::File,
        };
        let bus = match (set.bus, set.bus_file) {
            (Some(address), _) => address.bus()?,
            (None, Some(path)) => loaded(&path, "the bus file", Address::bus)?,
            (None, None) if engine.carries_bus() => BusAt::Engine,
            (None, None) => BusAt::Off,
        };
        let bus_options = bus_options(set.bus_lease, &set.cluster)?;
        let shards = shard_times(set.shard_lease, set.shard_check, &engine, &leadership)?;
        let kept = node.retention;
        Ok(Self {
            data: set.data.unwrap_or_else(|| PathBuf::from("./data")),
            listen: set.listen.unwrap_or(DEFAULT_LISTEN),
            zmq: set.zmq,
            shards,
            engine,
            bus,
            bus_options,
            node: set.node.map(|name| name.as_str().to_owned()),
            advertise: set.advertise.as_deref().map(advertised).transpose()?,
            leadership,
            accept_data_loss: set.accept_data_loss.unwrap_or(false),
            tokens: set.tokens,
            node_token: set.node_token,
            insecure_plaintext: set.insecure_plaintext.unwrap_or(false),
            retention: Retention {
                done_ms: set.retention.map_or(kept.done_ms, Span::millis),
                failed_ms: set.retention_failed.map_or(kept.failed_ms, Span::millis),
                count: set.retention_count.unwrap_or(kept.count),
                key_ms: set.key_retention.map_or(kept.key_ms, Span::millis),
                keys: set.keys_max.unwrap_or(kept.keys),
            },
            snapshot_bytes: at_least(
                "snapshot_after",
                set.snapshot_after.map(|size| size.0 as u64),
                4 << 10,
                node.snapshot_bytes,
            )?,
            port_file: set.port_file,
            log: set.log.unwrap_or_else(|| "info".to_owned()),
            log_format: set.log_format.unwrap_or(LogFormat::Text),
            limits,
            warnings: Vec::new(),
        })
    }
}

/// On a shared engine, a worker outlives a change of leader: it hears of the next leader before its lease ends.
fn shard_times(
    lease: Option<Span>,
    check: Option<Span>,
    engine: &Engine,
    leadership: &orchestrix_leadership::Options,
) -> Result<ShardTimes, String> {
    let usual = ShardTimes::default();
    let change = Span(leadership.leader_ttl + leadership.leader_renew + CHANGE_OF_LEADER).millis();
    let least = match engine {
        Engine::File | Engine::Memory => SHARD_LEASE_MS_MIN,
        Engine::Shared(_) => change,
    };
    let lease_ms = lease.map_or(usual.lease_ms.max(least), Span::millis);
    if lease_ms < least {
        return Err(format!(
            "shard_lease is {lease_ms} ms; at least {least} ms are needed{}",
            if least == change { ", which are leader_ttl, leader_renew and 5 s" } else { "" }
        ));
    }
    let check_ms = check.map_or(usual.check_ms.min(lease_ms), Span::millis);
    if check_ms > lease_ms {
        return Err(format!(
            "shard_check is {check_ms} ms, which is longer than shard_lease with {lease_ms} ms"
        ));
    }
    Ok(ShardTimes { lease_ms, check_ms })
}

/// An address that other nodes can use.
pub(crate) fn advertised(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
    let is_usable = |host: &str| {
        let port_fits = |authority: Authority| host == authority.host() || authority.port_u16().is_some();
        !host.contains('@') && host.parse().is_ok_and(port_fits)
    };
    match host {
        Some(host) if is_usable(host) => Ok(format!("http://{host}")),
        Some(_) | None => Err(format!(
            "advertise is {text:?}; it is http:// with a host and a port, as in http://10.0.0.5:3000"
        )),
    }
}

/// Every setting has a variable, and its text means what it means after the flag.
fn from_variables(variable: &impl Fn(&str) -> Option<String>) -> Result<ServeArgs, String> {
    let mut all = ServeArgs::default();
    for name in ServeArgs::NAMES {
        let variable_name = format!("ORCHESTRIX_{}", name.to_uppercase());
        let Some(text) = variable(&variable_name).filter(|text| !text.is_empty()) else { continue };
        let flag = format!("--{}={text}", name.replace('_', "-"));
        let parser = ServeArgs::augment_args(clap::Command::new("orchestrix").no_binary_name(true));
        let parsed =
            parser.try_get_matches_from([flag]).and_then(|found| ServeArgs::from_arg_matches(&found));
        let parsed = parsed.map_err(|error| {
            let error = error.to_string();
            let why = error.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
            format!("the variable {variable_name} cannot be used: {why}")
        })?;
        all = all.or(parsed);
    }
    Ok(all)
}

/// Variables that other coordinators are configured with.
fn from_older_variables(
    variable: &impl Fn(&str) -> Option<String>,
    file: &ServeArgs,
) -> Result<ServeArgs, String> {
    let given = |name: &str| variable(name).filter(|text| !text.is_empty());
    let mut set = ServeArgs::default();
    if let Some(port) = given("PORT") {
        let port = port.parse().map_err(|_| format!("the variable PORT is {port:?}, which is not a port"))?;
        let host = file.listen.unwrap_or(DEFAULT_LISTEN).ip();
        set.listen = Some(SocketAddr::new(host, port));
    }
    if let Some(name) = given("PROCESS_NAME") {
        let name = Name::new(&name).map_err(|why| format!("the variable PROCESS_NAME is {name:?}: {why}"))?;
        set.node = Some(name);
    }
    set.zmq = older_zmq(given("SHARD_COORDINATOR_BIND_HOST"), given("SHARD_COORDINATOR_BIND_PORT"), file)?;
    let seconds = |name: &str| match given(name).map(|text| (text.parse::<u32>(), text)) {
        Some((Ok(seconds), _)) => Ok(Some(Span(Duration::from_secs(seconds.into())))),
        Some((Err(_), text)) => {
            Err(format!("the variable {name} is {text:?}, which is not a number of seconds"))
        }
        None => Ok(None),
    };
    set.shard_lease = seconds("HEARTBEAT_TIMEOUT_SECONDS")?;
    set.shard_check = seconds("HEARTBEAT_CHECK_INTERVAL_SECONDS")?;
    set.log = given("LOG_LEVEL");
    if given("NODE_ENV").as_deref() == Some("production") {
        set.log_format = Some(LogFormat::Json);
    }
    Ok(set)
}

fn older_zmq(host: Option<String>, port: Option<String>, file: &ServeArgs) -> Result<Option<Place>, String> {
    if host.is_none() && port.is_none() {
        return Ok(None);
    }
    let mut address = match file.zmq {
        Some(Place::At(address)) => address,
        Some(Place::Off) | None => zmq::DEFAULT,
    };
    if let Some(host) = host {
        let ip = host_of(&host).ok_or_else(|| {
            format!("the variable SHARD_COORDINATOR_BIND_HOST is {host:?}; it is one as in tcp://127.0.0.1")
        })?;
        address.set_ip(ip);
    }
    if let Some(port) = port {
        let number = port.parse();
        address.set_port(number.map_err(|_| {
            format!("the variable SHARD_COORDINATOR_BIND_PORT is {port:?}, which is not a port")
        })?);
    }
    Ok(Some(Place::At(address)))
}

/// What a file says that has only an address in it.
fn loaded<T>(path: &Path, what: &str, read: impl Fn(&Address) -> Result<T, String>) -> Result<T, String> {
    read(&Address::load(path, what)?)
        .map_err(|why| format!("{what} {} cannot be used: {why}", path.display()))
}

fn from_file(path: &Path) -> Result<ServeArgs, String> {
    let Text { text, private } = private::read(path, "the settings file")?;
    let shown = path.display();
    let set = ServeArgs::parse(&text);
    let set = set.map_err(|why| format!("the settings file {shown} cannot be used: {why}"))?;
    for (address, owner) in [(&set.engine, "the engine"), (&set.bus, "the bus")] {
        if address.as_ref().is_some_and(Address::has_secret) {
            private.clone().map_err(|why| format!("{why}: it holds the password of {owner}"))?;
        }
    }
    Ok(set)
}

#[cfg(test)]
mod tests;
