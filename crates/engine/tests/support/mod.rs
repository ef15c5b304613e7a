//! What the tests of engines on servers share: ways that fail, logs that are read, and writers that are killed.

pub mod http;
pub mod logged;
pub mod proxy;
pub mod writers;
