//! The HTTP interface over real sockets, in one test binary.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod access;
mod bad_input;
mod bounds;
mod bus;
mod clients;
mod cluster;
mod descriptors;
mod document;
mod examples;
mod feed;
mod idle;
mod kit;
mod limits;
mod link;
mod link_limits;
mod neighbours;
mod pages;
mod pipes;
mod played_leader;
mod process;
mod reload;
mod scopes;
mod shards;
mod signals;
mod streams;
mod tasks;
mod views;
mod zmq;
