//! What can be set, once for all layers.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use orchestrix_core::Name;
use serde::Deserialize;

use crate::engine::Address;
use crate::private::{Repeat, toml_mistake};
use crate::units::{Size, Span};
use crate::zmq::Place;

/// Defines the settings once: as flags, as keys of the file, and as layers. Those behind `[cluster]` are in a table of that
/// name in the file.
macro_rules! settings {
    ($($(#[$meta:meta])* $name:ident: $type:ty,)* [cluster] $($(#[$of_key:meta])* $key:ident: $kind:ty,)*) => {
        /// What can be set on the command line, by variables and in the file.
        #[derive(Clone, Debug, Default, PartialEq, Args, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct ServeArgs {
            $($(#[$meta])* pub $name: Option<$type>,)*
            #[command(flatten)]
            pub cluster: ClusterArgs,
        }

        /// The table `[cluster]`.
        #[derive(Clone, Debug, Default, PartialEq, Args, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct ClusterArgs {
            $($(#[$of_key])* pub $key: Option<$kind>,)*
        }

        impl ServeArgs {
            /// Names of all settings, as in the file; those of the table `[cluster]` begin with `cluster_` here.
            pub const NAMES: &[&str] =
                &[$(stringify!($name),)* $(concat!("cluster_", stringify!($key)),)*];

            /// These values, and for the missing ones those of the layer below.
            #[must_use]
            pub fn or(self, below: Self) -> Self {
                Self { $($name: self.$name.or(below.$name),)* cluster: self.cluster.or(below.cluster) }
            }
        }

        impl ClusterArgs {
            fn or(self, below: Self) -> Self {
                Self { $($key: self.$key.or(below.$key),)* }
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
    /// Bus for workers that know only Redis: redis://HOST, rediss://HOST with TLS, or off [default: the engine, if that is
    /// Redis, else off]
    #[arg(long, value_name = "ADDR|off")]
    bus: Address,
    /// File with the value of --bus, as --engine-file
    #[arg(long, value_name = "FILE")]
    bus_file: PathBuf,
    /// How long a lease of the bus lasts after a heartbeat that names it [default: 60s]
    #[arg(long, value_name = "TIME")]
    bus_lease: Span,
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

    [cluster]

    /// How often a node on a bus sends a heartbeat to the others [default: 10s]
    #[arg(long = "cluster-heartbeat-interval", value_name = "TIME", help_heading = "Cluster")]
    heartbeat_interval: Span,
    /// Silence after which a node on a bus is dead, and others take its leases; at least two heartbeats [default: 30s]
    #[arg(long = "cluster-dead-node-timeout", value_name = "TIME", help_heading = "Cluster")]
    dead_node_timeout: Span,
    /// How long a node that stops waits for others to take its leases before it asks again [default: 5s]
    #[arg(long = "cluster-handoff-ack-timeout", value_name = "TIME", help_heading = "Cluster")]
    handoff_ack_timeout: Span,
    /// How often it asks again [default: 3]
    #[arg(long = "cluster-handoff-max-retries", value_name = "N", help_heading = "Cluster")]
    handoff_max_retries: u32,
    /// How long all of this takes at most [default: 60s]
    #[arg(long = "cluster-handoff-hard-timeout", value_name = "TIME", help_heading = "Cluster")]
    handoff_hard_timeout: Span,
    /// How often the leader looks for leases without an owner [default: 30s]
    #[arg(long = "cluster-orphan-check-interval", value_name = "TIME", help_heading = "Cluster")]
    orphan_check_interval: Span,
}

/// How lines are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}

impl ServeArgs {
    /// As [`ServeArgs::or`]; but an address and its file say the same thing, so a layer that has one hides the other of
    /// those below.
    pub(super) fn over(self, mut below: Self) -> Result<Self, String> {
        for layer in [&self, &below] {
            let engine = ("engine", layer.engine.is_some(), layer.engine_file.is_some());
            let bus = ("bus", layer.bus.is_some(), layer.bus_file.is_some());
            for (name, address, file) in [engine, bus] {
                if address && file {
                    return Err(format!("both {name} and {name}_file are given; give one of them"));
                }
            }
        }
        if self.engine.is_some() || self.engine_file.is_some() {
            (below.engine, below.engine_file) = (None, None);
        }
        if self.bus.is_some() || self.bus_file.is_some() {
            (below.bus, below.bus_file) = (None, None);
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
