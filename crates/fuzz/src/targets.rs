//! The table of all targets. `docs/testing.md` shows it to readers.

mod address;
mod commands;
mod http;
pub(crate) mod journal;
mod link;
pub(crate) mod logs;
mod records;
mod settings;
mod stream;
mod text;
mod wire;
mod zmq;

use crate::Target;

const fn target(name: &'static str, about: &'static str, run: fn(&[u8])) -> Target {
    Target { name, about, bytes_per_byte: 256, bytes_at_once: 0, run }
}

/// Every decoder.
pub const TARGETS: &[Target] = &[
    Target {
        bytes_at_once: 3 << 20,
        ..target(
            "journal",
            "a folder of segments, snapshots and floor, changed; opened, gone on with, opened again",
            journal::folder,
        )
    },
    Target {
        bytes_at_once: 1 << 20,
        ..target("segment", "a segment of any bytes, with checksums put right or not", journal::segment)
    },
    Target {
        bytes_at_once: 1 << 20,
        ..target(
            "logs",
            "a folder of task logs, changed; opened, read, gone on with, opened again",
            logs::folder,
        )
    },
    target("records", "event records; what is read is written as the same event", records::events),
    target(
        "snapshot",
        "chunks of a snapshot; what is loaded is captured as the same state",
        records::snapshot,
    ),
    target(
        "json",
        "JSON values; kept byte for byte, their canonical hash blind to spaces and order",
        text::json,
    ),
    target("names", "names and keys, from text and JSON", text::names),
    target("units", "durations and sizes", text::units),
    target("bodies", "the JSON body of every route; what is understood is understood again", wire::bodies),
    target("answers", "answers and problems as the client reads them", wire::answers),
    target("messages", "messages of the bus, as nodes and workers read them", wire::messages),
    target("stream", "server-sent events, the same wherever they are cut", stream::frames),
    target("zmtp", "bytes of a ZeroMQ peer, the same frames wherever they are cut", zmq::frames),
    target(
        "zmq",
        "what workers say over ZeroMQ; what is understood is a request that its route reads",
        zmq::messages,
    ),
    Target {
        bytes_per_byte: 1 << 10,
        ..target(
            "link",
            "bytes of another node, the same asks and answers wherever they are cut",
            link::bytes,
        )
    },
    target("address", "paths, queries and cursors", address::address),
    target("headers", "host, origin and what browsers say of themselves", address::headers),
    target("tokens", "the tokens file", settings::tokens),
    target("config", "the settings file, and a variable for each setting", settings::config),
    Target {
        bytes_at_once: 8 << 20,
        ..target(
            "http",
            "bytes on a connection, served by a whole node on a simulated disk",
            http::connection,
        )
    },
    Target {
        bytes_per_byte: 64 << 10,
        ..target("commands", "commands against a naive model, with replay and snapshots", commands::commands)
    },
];
