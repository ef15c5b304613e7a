//! Redis.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use crate::{Place, Recipe};

/// Every command is on the disk before its answer.
pub const SYNCED: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// A server with these settings, without snapshots.
#[must_use]
pub fn redis(settings: &[&str]) -> Recipe {
    let launch = |place: &Place| {
        let (host, port) = (place.address.ip(), place.address.port().to_string());
        let mut redis = Command::new("redis-server");
        redis.args(["--bind", &host.to_string(), "--port", &port, "--save", "", "--dir"]).arg(&place.folder);
        redis.args(["--protected-mode", if host.is_loopback() { "yes" } else { "no" }]);
        Ok(redis)
    };
    Recipe::new("Redis", launch, answers).set(settings)
}

/// Whether a server has read what it keeps and takes commands, if perhaps not without a password.
fn answers(place: &Place) -> bool {
    let Ok(mut stream) = TcpStream::connect(place.address) else { return false };
    let mut answer = [0; 5];
    stream.write_all(b"PING\r\n").is_ok()
        && stream.read_exact(&mut answer).is_ok()
        && [b"+PONG", b"-NOAU"].contains(&&answer)
}
