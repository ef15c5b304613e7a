//! Settings of `orchestrix serve`, from four layers: flag, `ORCHESTRIX_*`, the older variables, file.
//!
//! Each layer is the same [`ServeArgs`] with some values missing; a higher layer wins value by value.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, FromArgMatches, ValueEnum};
use orchestrix_core::{Name, Retention};
use serde::Deserialize;

use crate::engine::{Address, Engine};
use crate::http::Limits;
use crate::units::{Size, Span};

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 3000);

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
    /// What the journal stands on: file, memory, or a server that several nodes share, as redis://HOST (rediss://
    /// with TLS), mysql://USER@HOST/DATABASE, postgres://USER@HOST/DATABASE or s3://BUCKET/PREFIX [default: file]
    #[arg(long, value_name = "ENGINE")]
    engine: Address,
    /// Name of this node; no other on the same engine has it [default: node-1, or host and port]
    #[arg(long, value_name = "NAME", value_parser = Name::new)]
    node: Name,
    /// File of tokens; without it everyone who can connect may do everything
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
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
    /// Bytes of journal after which a snapshot is taken, unless the last one was larger [default: 128MiB]
    #[arg(long, value_name = "SIZE")]
    snapshot_after: Size,
    /// Where the other nodes reach this one [default: http:// and the address that is listened on]
    #[arg(long, value_name = "URL", help_heading = "Cluster")]
    advertise: String,
    /// How long a leader holds its office without renewing it [default: 30s]
    #[arg(long, value_name = "TIME", help_heading = "Cluster", alias = "controller-ttl")]
    #[serde(alias = "controller_ttl")]
    leader_ttl: Span,
    /// How often a leader renews its office [default: a third of the above]
    #[arg(long, value_name = "TIME", help_heading = "Cluster")]
    leader_renew: Span,
    /// Go on with an engine that was wiped, rolled back or exchanged; once, and on every node
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Cluster")]
    accept_data_loss: bool,
    /// File with these settings, in TOML
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    config: PathBuf,
    /// File to write the port to, once it is served
    #[arg(long, value_name = "FILE")]
    port_file: PathBuf,
    /// What is logged: error, warn, info, debug, trace, or per module as in orchestrix_node=debug [default: info]
    #[arg(long, value_name = "LEVEL")]
    log: String,
    /// How it is logged [default: text]
    #[arg(long)]
    log_format: LogFormat,
    /// Connections at one time [default: 20000]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_connections: usize,
    /// Connections of one address at one time [default: 512]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    max_connections_per_ip: usize,
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
    /// Time in which a peer must take some of its answer [default: 30s]
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
    pub engine: Engine,
    /// Unless given, one is made.
    pub node: Option<String>,
    pub advertise: Option<String>,
    pub leadership: orchestrix_leadership::Options,
    pub accept_data_loss: bool,
    pub tokens: Option<PathBuf>,
    pub insecure_plaintext: bool,
    pub retention: Retention,
    /// Bytes of journal after which a snapshot is taken.
    pub snapshot_bytes: u64,
    pub port_file: Option<PathBuf>,
    pub log: String,
    pub log_format: LogFormat,
    pub limits: Limits,
}

impl ServeArgs {
    /// Reads the text of a settings file.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())
    }
}

impl Settings {
    /// Puts the layers on top of each other.
    ///
    /// # Errors
    /// A sentence that names the layer and the value.
    pub fn resolve(flags: ServeArgs, variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let set = flags.or(from_variables(&variable)?);
        let file = set.config.clone().map(|path| from_file(&path)).transpose()?.unwrap_or_default();
        let set = set.or(from_older_variables(&variable, &file)?).or(file);
        Self::checked(set)
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
        let kept = node.retention;
        Ok(Self {
            data: set.data.unwrap_or_else(|| PathBuf::from("./data")),
            listen: set.listen.unwrap_or(DEFAULT_LISTEN),
            engine: set.engine.map_or(Ok(Engine::File), |address| address.engine())?,
            node: set.node.map(|name| name.as_str().to_owned()),
            advertise: set.advertise.as_deref().map(advertised).transpose()?,
            leadership,
            accept_data_loss: set.accept_data_loss.unwrap_or(false),
            tokens: set.tokens,
            insecure_plaintext: set.insecure_plaintext.unwrap_or(false),
            retention: Retention {
                done_ms: set.retention.map_or(kept.done_ms, Span::millis),
                failed_ms: set.retention_failed.map_or(kept.failed_ms, Span::millis),
                count: set.retention_count.unwrap_or(kept.count),
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
        })
    }
}

/// An address that the courier between nodes can use.
pub(crate) fn advertised(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
    match host {
        Some(host) if !host.is_empty() && !host.contains(['/', '?', '#', '@']) => {
            Ok(format!("http://{host}"))
        }
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
    set.log = given("LOG_LEVEL");
    if given("NODE_ENV").as_deref() == Some("production") {
        set.log_format = Some(LogFormat::Json);
    }
    Ok(set)
}

fn from_file(path: &std::path::Path) -> Result<ServeArgs, String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| format!("cannot read the settings file {shown}: {error}"))?;
    ServeArgs::parse(&text).map_err(|why| format!("the settings file {shown} cannot be used: {why}"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn flags(arguments: &[&str]) -> ServeArgs {
        let parser = ServeArgs::augment_args(clap::Command::new("serve").no_binary_name(true));
        ServeArgs::from_arg_matches(&parser.try_get_matches_from(arguments).unwrap()).unwrap()
    }

    fn resolve(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Settings, String> {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        Settings::resolve(flags(arguments), variable)
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn a_flag_beats_a_variable_beats_an_older_variable_beats_the_file_beats_the_default() {
        let file = file("listen = \"127.0.0.1:5\"\nnode = \"file\"\nmax_body = \"2MiB\"\n");
        let path = file.path().to_str().unwrap();
        let port = |arguments: &[&str], variables: &[(&str, &str)]| {
            let settings = resolve(arguments, variables).unwrap();
            (settings.listen.port(), settings.node.unwrap_or_default(), settings.limits.body_bytes)
        };
        let (own, older) = (("ORCHESTRIX_LISTEN", "127.0.0.1:3"), ("PORT", "4"));
        let config = ("ORCHESTRIX_CONFIG", path);
        assert_eq!(port(&["--listen", "127.0.0.1:2"], &[own, older, config]), (2, "file".into(), 2 << 20));
        assert_eq!(port(&[], &[own, older, config]).0, 3);
        assert_eq!(port(&[], &[older, config, ("PROCESS_NAME", "older")]), (4, "older".into(), 2 << 20));
        assert_eq!(port(&["--config", path], &[]).0, 5);
        assert_eq!(port(&[], &[]), (3000, String::new(), 1 << 20));
    }

    #[test]
    fn every_setting_can_be_given_in_every_layer() {
        for name in ServeArgs::NAMES {
            let text = match *name {
                "listen" => "127.0.0.1:9",
                "engine" => "memory",
                "log_format" => "json",
                "insecure_plaintext" | "accept_data_loss" => "true",
                name if name.contains("max_") || ["retention_count", "snapshot_after"].contains(&name) => {
                    "5000"
                }
                name if name.contains("timeout")
                    || name.starts_with("retention")
                    || name.starts_with("leader") =>
                {
                    "5s"
                }
                "config" => continue,
                _ => "text",
            };
            let flag = flags(&[&format!("--{}", name.replace('_', "-")), text]);
            let variable = from_variables(&|asked: &str| {
                (asked == format!("ORCHESTRIX_{}", name.to_uppercase())).then(|| text.to_owned())
            });
            let quoted = if ["5000", "true"].contains(&text) { text.to_owned() } else { format!("{text:?}") };
            let file: ServeArgs = toml::from_str(&format!("{name} = {quoted}")).unwrap();
            assert_ne!(flag, ServeArgs::default(), "{name}");
            assert_eq!(variable.unwrap(), flag, "{name}");
            assert_eq!(file, flag, "{name}");
        }
    }

    #[test]
    fn a_mistake_is_told_with_its_place() {
        let told =
            |arguments: &[&str], variables: &[(&str, &str)]| resolve(arguments, variables).unwrap_err();
        let unknown = file("listne = \"127.0.0.1:5\"");
        let told_of_file = told(&["--config", unknown.path().to_str().unwrap()], &[]);
        assert!(
            told_of_file.contains("unknown field `listne`") && told_of_file.contains("line 1"),
            "{told_of_file}"
        );
        assert!(told(&["--config", "/nowhere/x.toml"], &[]).contains("/nowhere/x.toml"));
        assert!(told(&[], &[("ORCHESTRIX_LISTEN", "here")]).contains("ORCHESTRIX_LISTEN"));
        assert!(told(&[], &[("ORCHESTRIX_RETENTION", "5")]).contains("30s"));
        assert!(told(&[], &[("PORT", "http")]).contains("PORT is \"http\""));
        assert!(told(&["--max-body", "1"], &[]).contains("max_body is 1"));
        assert!(told(&["--snapshot-after", "1"], &[]).contains("snapshot_after is 1"));
    }

    #[test]
    fn leadership_is_checked_before_anything_is_opened() {
        let told = |arguments: &[&str]| resolve(arguments, &[]).unwrap_err();
        assert!(told(&["--leader-ttl", "50ms"]).contains("leader_ttl (50ms)"));
        assert!(told(&["--leader-ttl", "2s", "--leader-renew", "1001ms"]).contains("leader_renew (1.001s)"));
        let settings = resolve(&["--controller-ttl", "9s"], &[]).unwrap();
        assert_eq!(settings.leadership.leader_renew, std::time::Duration::from_secs(3));
        for wrong in ["10.0.0.5:3000", "https://h", "http://", "http://h/x", "http://u@h"] {
            assert!(told(&["--advertise", wrong]).contains("http://10.0.0.5:3000"), "{wrong}");
        }
        assert_eq!(resolve(&["--advertise", "http://h:1/"], &[]).unwrap().advertise.unwrap(), "http://h:1");
    }

    #[test]
    fn a_mistake_in_the_address_of_an_engine_does_not_show_its_password() {
        let wrong = "radish://user:canary@host";
        let file = file(&format!("engine = \"{wrong}\""));
        let path = file.path().to_str().unwrap();
        for told in [
            resolve(&["--engine", wrong], &[]).unwrap_err(),
            resolve(&[], &[("ORCHESTRIX_ENGINE", wrong)]).unwrap_err(),
            resolve(&["--config", path], &[]).unwrap_err(),
        ] {
            assert!(told.contains("redis://") && !told.contains("canary"), "{told}");
        }
        assert!(!format!("{:?}", flags(&["--engine", wrong])).contains("canary"));
    }

    #[test]
    fn production_logs_in_json_unless_told_otherwise() {
        let format =
            |arguments: &[&str]| resolve(arguments, &[("NODE_ENV", "production")]).unwrap().log_format;
        assert_eq!(format(&[]), LogFormat::Json);
        assert_eq!(format(&["--log-format", "text"]), LogFormat::Text);
    }
}
