//! The ZeroMQ address in settings.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};

/// An address for workers that speak ZeroMQ, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Off,
    At(SocketAddr),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let how =
            || format!("{text:?} is not an address for ZeroMQ; write off, or one as in tcp://127.0.0.1:5555");
        let (host, port) = text.strip_prefix("tcp://").unwrap_or(text).rsplit_once(':').ok_or_else(how)?;
        let port = port.parse().map_err(|_| how())?;
        Ok(Self::At(SocketAddr::new(host_of(host).ok_or_else(how)?, port)))
    }
}

/// A host as ZeroMQ writes it, with or without `tcp://`.
pub(crate) fn host_of(text: &str) -> Option<IpAddr> {
    match text.strip_prefix("tcp://").unwrap_or(text) {
        "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        "*" => Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        host => host.trim_start_matches('[').trim_end_matches(']').parse().ok(),
    }
}

impl<'de> Deserialize<'de> for Place {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_zeromq_writes_it() {
        let at = |address: &str| Ok(Place::At(address.parse().unwrap()));
        for (text, read) in [
            ("off", Ok(Place::Off)),
            ("tcp://127.0.0.1:5555", at("127.0.0.1:5555")),
            ("127.0.0.1:0", at("127.0.0.1:0")),
            ("tcp://localhost:7", at("127.0.0.1:7")),
            ("tcp://*:5555", at("0.0.0.0:5555")),
            ("tcp://[::1]:5555", at("[::1]:5555")),
        ] {
            assert_eq!(text.parse(), read, "{text}");
        }
        for text in ["", "on", "tcp://127.0.0.1", "127.0.0.1:65536", "ipc:///tmp/x", "tcp://worker:5555"] {
            assert!(text.parse::<Place>().unwrap_err().contains("tcp://127.0.0.1:5555"), "{text}");
        }
    }
}
