//! Limits of callers: every limit of the sockets, with its unit and its reason.

use std::time::Duration;

/// Limits of connections and requests. A value at the limit is accepted, one more is refused.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at one time. Bounds memory and file descriptors.
    pub connections: usize,
    /// Connections of one address. One neighbour cannot take all.
    pub connections_per_ip: usize,
    /// ZeroMQ connections at one time.
    pub zmq_connections: usize,
    /// ZeroMQ connections of one address.
    pub zmq_connections_per_ip: usize,
    /// Bytes of long ZeroMQ messages of all peers together that have not shown an accepted token. Bounds memory by strangers.
    pub zmq_stranger_bytes: usize,
    /// Bytes of long answers that peers have not taken yet. Bounds memory under many slow readers.
    pub unsent_bytes: usize,
    /// The same of one token, or of one address without tokens.
    pub unsent_bytes_per_client: usize,
    /// Bytes of bodies longer than 64 KiB that are being read or decided. Bounds memory under many slow senders.
    pub incoming_bytes: usize,
    /// The same of one token, or of one address without tokens.
    pub incoming_bytes_per_client: usize,
    /// From the first byte of a request to the end of its headers. Ends slow readers.
    pub header_timeout: Duration,
    /// From the end of the headers to the end of the body.
    pub body_timeout: Duration,
    /// Between two requests of a connection.
    pub idle_timeout: Duration,
    /// How long a peer may take no byte of an answer. Ends stuck watchers.
    pub write_timeout: Duration,
    /// Bytes of request line and headers.
    pub header_bytes: usize,
    /// Bytes of path and query.
    pub url_bytes: usize,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Requests of one token at one time, waiting lease calls included. One careless client cannot take all.
    pub in_flight_per_token: usize,
    /// Requests of one token per second, with one second's worth at once after a silence. At least 1.
    pub requests_per_second_per_token: u32,
    /// Streams (events, followed logs, batches for other nodes) at one time.
    pub streams: usize,
    /// Streams of one token, or of one address without tokens.
    pub streams_per_client: usize,
    /// Between two signs of life on a stream.
    pub keep_alive: Duration,
    /// How long a stop waits for answers to be taken.
    pub stop_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 20_000,
            connections_per_ip: 512,
            zmq_connections: 10_000,
            zmq_connections_per_ip: 5_000,
            zmq_stranger_bytes: 8 << 20,
            unsent_bytes: 256 << 20,
            unsent_bytes_per_client: 32 << 20,
            incoming_bytes: 256 << 20,
            incoming_bytes_per_client: 32 << 20,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_secs(30),
            header_bytes: 16 << 10,
            url_bytes: 8 << 10,
            body_bytes: 1 << 20,
            in_flight_per_token: 10_000,
            requests_per_second_per_token: 10_000,
            streams: 1_000,
            streams_per_client: 64,
            keep_alive: Duration::from_secs(15),
            stop_grace: Duration::from_secs(10),
        }
    }
}
