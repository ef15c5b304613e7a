//! Free ports for private servers.
//!
//! A port that the kernel picks (`bind` to port 0) is one that it also gives to connections: between the drawing and
//! the start of a server, any connection of anybody may have it, most often one that the server itself makes while it
//! starts. The ports from here lie below those, and no two calls of a program get the same one.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Below are ports that well-known services have by default.
const FIRST: u16 = 10_240;

/// A port without a listener.
///
/// # Panics
///
/// When every port is taken: there is no way on for a test or a measurement.
pub fn free_port() -> u16 {
    static NEXT: OnceLock<AtomicU64> = OnceLock::new();
    // Programs that run at the same time begin at different places.
    let next = NEXT.get_or_init(|| AtomicU64::new(RandomState::new().hash_one(FIRST) >> 1));
    let count = u64::from(first_of_the_kernel() - FIRST);
    (0..count)
        .map(|_| next.fetch_add(1, Ordering::Relaxed) % count)
        .map(|n| FIRST + u16::try_from(n).expect("it is less than a port"))
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("a port is free")
}

/// Where the ports begin that the kernel gives to connections.
fn first_of_the_kernel() -> u16 {
    /// What Linux has unless it is told otherwise.
    const USUAL: u16 = 32_768;
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let first = range.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(USUAL);
    // Where the kernel gives nearly all of them, some of those must do.
    if first < FIRST + 1_000 { USUAL } else { first }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_port_is_given_twice_or_from_the_kernels_range() {
        let ports: Vec<u16> = (0..1_000).map(|_| free_port()).collect();
        assert_eq!(ports.iter().collect::<HashSet<_>>().len(), ports.len());
        assert!(ports.iter().all(|port| (FIRST..first_of_the_kernel()).contains(port)), "{ports:?}");
    }

    #[test]
    fn a_port_in_use_is_not_given() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, free_port())).unwrap();
        let port = taken.local_addr().unwrap().port();
        let count = usize::from(first_of_the_kernel() - FIRST);
        assert!((0..count).all(|_| free_port() != port), "{port} was given although it is taken");
    }
}
