//! The limits in settings.

use std::fmt;

use super::ServeArgs;
use crate::http::Limits;

pub(super) fn limits(set: &ServeArgs) -> Result<Limits, String> {
    let usual = Limits::default();
    Ok(Limits {
        connections: at_least("max_connections", set.max_connections, 1, usual.connections)?,
        connections_per_ip: at_least(
            "max_connections_per_ip",
            set.max_connections_per_ip,
            1,
            usual.connections_per_ip,
        )?,
        zmq_connections: at_least("max_zmq_connections", set.max_zmq_connections, 1, usual.zmq_connections)?,
        zmq_connections_per_ip: at_least(
            "max_zmq_connections_per_ip",
            set.max_zmq_connections_per_ip,
            1,
            usual.zmq_connections_per_ip,
        )?,
        unsent_bytes: at_least("max_unsent", set.max_unsent.map(|size| size.0), 1 << 20, usual.unsent_bytes)?,
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
        header_bytes: at_least("max_header", set.max_header.map(|size| size.0), 1 << 10, usual.header_bytes)?,
        url_bytes: at_least("max_url", set.max_url.map(|size| size.0), 256, usual.url_bytes)?,
        body_bytes: at_least("max_body", set.max_body.map(|size| size.0), 1 << 10, usual.body_bytes)?,
        header_timeout: set.header_timeout.map_or(usual.header_timeout, |span| span.0),
        body_timeout: set.body_timeout.map_or(usual.body_timeout, |span| span.0),
        idle_timeout: set.idle_timeout.map_or(usual.idle_timeout, |span| span.0),
        write_timeout: set.write_timeout.map_or(usual.write_timeout, |span| span.0),
        ..usual
    })
}

pub(super) fn at_least<N: PartialOrd + fmt::Display>(
    name: &str,
    set: Option<N>,
    min: N,
    usual: N,
) -> Result<N, String> {
    match set {
        Some(value) if value < min => Err(format!("{name} is {value}; at least {min} is needed")),
        Some(value) => Ok(value),
        None => Ok(usual),
    }
}
