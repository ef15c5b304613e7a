//! Settings of `orchestrix serve`, from four layers: flag, `ORCHESTRIX_*`, the older variables, file.
//!
//! Each layer is the same [`ServeArgs`] with some values missing; a higher layer wins value by value.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, FromArgMatches, ValueEnum};
use http::uri::Authority;
use orchestrix_core::{Name, Retention};
use orchestrix_node::ShardTimes;
use serde::Deserialize;

use crate::engine::{Address, Engine};
use crate::http::Limits;
use crate::private::{self, Repeat, Text, toml_mistake};
use crate::units::{Size, Span};
use crate::zmq::{self, Place, host_of};

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 3000);

/// How long a worker may need to be heard by a new leader.
const CHANGE_OF_LEADER: Duration = Duration::from_secs(5);
/// Less, and a heartbeat that is late once ends a worker's time.
const SHARD_LEASE_MS_MIN: u64 = 100;

/// Defines the settings once: as flags, as keys of the file, and as layers.
macro_rules! settings {
    ($($(#[$meta:meta])* $name:ident: $type:ty,)*) => {
        /// What can be set on the command line, by variables and in the file.
        #[derive(Clone, Debug, Default, PartialEq, Args, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct ServeArgs {
            $($(#[$meta])* pub $name: Option<$type>,)*
        }

        impl ServeArgs {
            /// Names of all settings, as in the file.
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];

            /// These values, and for the missing ones those of the layer below.
            #[must_use]
            pub fn or(self, below: Self) -> Self {
                Self { $($name: self.$name.or(below.$name),)* }
            }
        }
    };
}

settings! {
    /// Folder of the journal, its snapshots and the logs [default: ./data]
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Address to serve HTTP on; port 0 takes a free one [default: 127.0.0.1:3000]
    #[arg(long, value_name = "ADDR")]
    listen: SocketAddr,
    /// ZeroMQ address for shard workers, or off [default: tcp://127.0.0.1:5555, if it is free]
    #[arg(long, value_name = "ADDR|off")]
    zmq: Place,
    /// Engine of the journal: file, memory, or a server that several nodes share, as redis://HOST (rediss://
    /// with TLS), mysql://USER@HOST/DATABASE, postgres://USER@HOST/DATABASE or s3://BUCKET/PREFIX [default: file]
    #[arg(long, value_name = "ENGINE")]
    engine: Address,
    /// File with the value of --engine: a password in it is not in the arguments, which every account on the machine can read
    #[arg(long, value_name = "FILE")]
    engine_file: PathBuf,
    /// Name of this node, unique on its engine [default: node-1, or host and port]
    #[arg(long, value_name = "NAME", value_parser = Name::new)]
    node: Name,
    /// Tokens file; without it every client that can connect may do everything
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
    /// File with the token that this node sends to the leader; it needs the role node
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    node_token: PathBuf,
    /// Serve other machines without encryption; for networks that you trust
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    insecure_plaintext: bool,
    /// How long completed and cancelled tasks are kept [default: 24h]
    #[arg(long, value_name = "TIME")]
    retention: Span,
    /// How long failed tasks are kept [default: 7d]
    #[arg(long, value_name = "TIME")]
    retention_failed: Span,
    /// How many ended tasks of each of the two kinds are kept [default: 250000]
    #[arg(long, value_name = "N")]
    retention_count: usize,
    /// How long after the end of a task its key is remembered, if the task is purged before [default: 24h]
    #[arg(long, value_name = "TIME")]
    key_retention: Span,
    /// How many keys of purged tasks are remembered; above that, the oldest are forgotten [default: 10000000]
    #[arg(long, value_name = "N")]
    keys_max: usize,
    /// Bytes of journal after which a snapshot is taken; at least twice the last one [default: 128MiB]
    #[arg(long, value_name = "SIZE")]
    snapshot_after: Size,
    /// How long a worker may serve its shards after its last heartbeat; on a shared engine at least leader-ttl +
    /// leader-renew + 5s [default: 15s, or as long as that]
    #[arg(long, value_name = "TIME", help_heading = "Shards")]
    shard_lease: Span,
    /// Minimum time between the two heartbeats by which a plain worker (without generations) releases a shard
    /// [default: 5s]
    #[arg(long, value_name = "TIME", help_heading = "Shards")]
    shard_check: Span,
    /// Address at which the other nodes reach this one [default: http:// and the listen address]
    #[arg(long, value_name = "URL", help_heading = "Cluster")]
    advertise: String,
    /// How long a leader lease lasts without renewal [default: 30s]
    #[arg(long, value_name = "TIME", help_heading = "Cluster", alias = "controller-ttl")]
    #[serde(alias = "controller_ttl")]
    leader_ttl: Span,
    /// How often the leader renews its lease [default: a third of the above]
    #[arg(long, value_name = "TIME", help_heading = "Cluster")]
    leader_renew: Span,
    /// Continue on an engine that was wiped, rolled back or exchanged; once, on every node
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Cluster")]
    accept_data_loss: bool,
    /// File with these settings, in TOML
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    config: PathBuf,
    /// File to write the port to, once it is open
    #[arg(long, value_name = "FILE")]
    port_file: PathBuf,
    /// Log level: error, warn, info, debug, trace, or per module as in orchestrix_node=debug [default: info]
    #[arg(long, value_name = "LEVEL")]
    log: String,
    /// Log format [default: text]
    #[arg(long)]
    log_format: LogFormat,
    /// Connections at one time [default: 20000, or fewer if the limit of open files is low]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_connections: usize,
    /// Connections of one address at one time [default: 512]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_connections_per_ip: usize,
    /// ZeroMQ connections at one time [default: 10000, or fewer in the same way]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_zmq_connections: usize,
    /// ZeroMQ connections of one address at one time [default: 5000]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_zmq_connections_per_ip: usize,
    /// Unsent bytes of long answers [default: 256MiB]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    max_unsent: Size,
    /// The same of one token, or of one address [default: 32MiB]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    max_unsent_per_client: Size,
    /// Bytes of long bodies of requests at one time [default: 256MiB]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    max_incoming: Size,
    /// The same of one token, or of one address [default: 32MiB]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    max_incoming_per_client: Size,
    /// Requests of one token at one time, waiting lease calls included [default: 10000]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_in_flight_per_token: usize,
    /// Requests of one token per second [default: 10000]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_rate_per_token: u32,
    /// Event and log streams at one time [default: 1000]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_streams: usize,
    /// Event and log streams of one token, or of one address, at one time [default: 64]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_streams_per_client: usize,
    /// Bytes of the headers of a request [default: 16KiB]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    max_header: Size,
    /// Bytes of path and query of a request [default: 8KiB]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    max_url: Size,
    /// Bytes of the body of a request [default: 1MiB]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    max_body: Size,
    /// Time for the headers of a request to arrive [default: 10s]
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    header_timeout: Span,
    /// Time for the body of a request to arrive [default: 30s]
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    body_timeout: Span,
    /// Time between two requests of a connection [default: 75s]
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    idle_timeout: Span,
    /// Time in which a peer must read some of its answer [default: 30s]
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    write_timeout: Span,
}

/// How lines are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}

/// All settings, with defaults filled in.
#[derive(Debug)]
pub struct Settings {
    pub data: PathBuf,
    pub listen: SocketAddr,
    /// Unless given, the usual one is tried.
    pub zmq: Option<Place>,
    pub shards: ShardTimes,
    pub engine: Engine,
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

impl ServeArgs {
    /// As [`ServeArgs::or`]; but the engine and its file say the same thing, so a layer that has one hides the other of
    /// those below.
    fn over(self, mut below: Self) -> Result<Self, String> {
        for layer in [&self, &below] {
            if layer.engine.is_some() && layer.engine_file.is_some() {
                return Err("both engine and engine_file are given; give one of them".to_owned());
            }
        }
        if self.engine.is_some() || self.engine_file.is_some() {
            (below.engine, below.engine_file) = (None, None);
        }
        Ok(self.or(below))
    }

    /// Reads the text of a settings file.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| toml_mistake(text, &error, Repeat::Fields))
    }
}

impl Settings {
    /// Puts the layers on top of each other.
    ///
    /// # Errors
    /// A sentence that names the layer and the value.
    pub fn resolve(flags: ServeArgs, variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let in_arguments = flags.engine.as_ref().is_some_and(Address::has_secret);
        let set = flags.over(from_variables(&variable)?)?;
        let file = set.config.clone().map(|path| from_file(&path)).transpose()?.unwrap_or_default();
        let set = set.over(from_older_variables(&variable, &file)?)?.over(file)?;
        let mut settings = Self::checked(set)?;
        if in_arguments {
            settings.warnings.push(
                "the password of the engine is in the arguments, which every account of this machine can read: give \
                 --engine-file FILE",
            );
        }
        Ok(settings)
    }

    fn checked(set: ServeArgs) -> Result<Self, String> {
        let usual = Limits::default();
        let limits = Limits {
            connections: at_least("max_connections", set.max_connections, 1, usual.connections)?,
            connections_per_ip: at_least(
                "max_connections_per_ip",
                set.max_connections_per_ip,
                1,
                usual.connections_per_ip,
            )?,
            zmq_connections: at_least(
                "max_zmq_connections",
                set.max_zmq_connections,
                1,
                usual.zmq_connections,
            )?,
            zmq_connections_per_ip: at_least(
                "max_zmq_connections_per_ip",
                set.max_zmq_connections_per_ip,
                1,
                usual.zmq_connections_per_ip,
            )?,
            unsent_bytes: at_least(
                "max_unsent",
                set.max_unsent.map(|size| size.0),
                1 << 20,
                usual.unsent_bytes,
            )?,
            unsent_bytes_per_client: at_least(
                "max_unsent_per_client",
                set.max_unsent_per_client.map(|size| size.0),
                1 << 20,
                usual.unsent_bytes_per_client,
            )?,
            incoming_bytes: at_least(
                "max_incoming",
                set.max_incoming.map(|size| size.0),
                1 << 20,
                usual.incoming_bytes,
            )?,
            incoming_bytes_per_client: at_least(
                "max_incoming_per_client",
                set.max_incoming_per_client.map(|size| size.0),
                1 << 20,
                usual.incoming_bytes_per_client,
            )?,
            in_flight_per_token: at_least(
                "max_in_flight_per_token",
                set.max_in_flight_per_token,
                1,
                usual.in_flight_per_token,
            )?,
            requests_per_second_per_token: at_least(
                "max_rate_per_token",
                set.max_rate_per_token,
                1,
                usual.requests_per_second_per_token,
            )?,
            streams: at_least("max_streams", set.max_streams, 0, usual.streams)?,
            streams_per_client: at_least(
                "max_streams_per_client",
                set.max_streams_per_client,
                0,
                usual.streams_per_client,
            )?,
            header_bytes: at_least(
                "max_header",
                set.max_header.map(|size| size.0),
                1 << 10,
                usual.header_bytes,
            )?,
            url_bytes: at_least("max_url", set.max_url.map(|size| size.0), 256, usual.url_bytes)?,
            body_bytes: at_least("max_body", set.max_body.map(|size| size.0), 1 << 10, usual.body_bytes)?,
            header_timeout: set.header_timeout.map_or(usual.header_timeout, |span| span.0),
            body_timeout: set.body_timeout.map_or(usual.body_timeout, |span| span.0),
            idle_timeout: set.idle_timeout.map_or(usual.idle_timeout, |span| span.0),
            write_timeout: set.write_timeout.map_or(usual.write_timeout, |span| span.0),
            ..usual
        };
        let mut leadership = orchestrix_leadership::Options::default();
        if let Some(ttl) = set.leader_ttl {
            leadership = orchestrix_leadership::Options::first_come(ttl.0);
        }
        leadership.leader_renew = set.leader_renew.map_or(leadership.leader_renew, |renew| renew.0);
        leadership.validate().map_err(|error| error.to_string())?;
        let node = orchestrix_node::Options::default();
        let engine = match (set.engine, set.engine_file) {
            (Some(address), _) => address.engine()?,
            (None, Some(path)) => Address::load(&path)?,
            (None, None) => Engine::File,
        };
        let shards = shard_times(set.shard_lease, set.shard_check, &engine, &leadership)?;
        let kept = node.retention;
        Ok(Self {
            data: set.data.unwrap_or_else(|| PathBuf::from("./data")),
            listen: set.listen.unwrap_or(DEFAULT_LISTEN),
            zmq: set.zmq,
            shards,
            engine,
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

fn at_least<N: PartialOrd + fmt::Display>(name: &str, set: Option<N>, min: N, usual: N) -> Result<N, String> {
    match set {
        Some(value) if value < min => Err(format!("{name} is {value}; at least {min} is needed")),
        Some(value) => Ok(value),
        None => Ok(usual),
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

fn from_file(path: &std::path::Path) -> Result<ServeArgs, String> {
    let Text { text, private } = private::read(path, "the settings file")?;
    let shown = path.display();
    let set = ServeArgs::parse(&text);
    let set = set.map_err(|why| format!("the settings file {shown} cannot be used: {why}"))?;
    if set.engine.as_ref().is_some_and(Address::has_secret) {
        private.map_err(|why| format!("{why}: it holds the password of the engine"))?;
    }
    Ok(set)
}

#[cfg(test)]
mod tests;
