//! Private Redis servers, and ways to them.

use std::sync::Arc;
use std::time::Duration;

use orchestrix_engine::redis::RedisPlace;
use orchestrix_engine::{Journal, Shared};

use orchestrix_testbed::Server;

/// Longer than any answer takes on a busy machine.
pub(crate) const PATIENT: Duration = Duration::from_secs(30);
/// Short, for tests in which no answer comes.
pub(crate) const HASTY: Duration = Duration::from_millis(300);

pub(crate) const DURABLE: [&str; 4] = orchestrix_testbed::SYNCED;
pub(crate) const FORGETFUL: [&str; 2] = ["--appendonly", "no"];

/// A server with these settings.
pub(crate) fn redis(settings: &[&str]) -> Server {
    Server::start(orchestrix_testbed::redis(settings)).unwrap()
}

pub(crate) fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}")
}

/// The command that makes the user of a node, as the page for operators has it.
pub(crate) fn user_of_the_page() -> String {
    user_of(include_str!("../../../../docs/engines/redis.md"), "orchestrix")
}

/// The command that makes a user, as the page about the bus has it.
pub(crate) fn user_of_the_bus(user: &str) -> String {
    user_of(include_str!("../../../../docs/bus.md"), user)
}

fn user_of(page: &str, user: &str) -> String {
    let line = page.lines().find(|line| line.starts_with(&format!("ACL SETUSER {user} ")));
    line.expect("the page has the user").to_owned()
}

/// Makes a user of the page about the bus, with these rights more or less, and gives the URL.
pub(crate) fn url_for_a_bus(server: &Server, port: u16, user: &str, changed: &str) -> String {
    let rights = user_of_the_bus(user).replace("PASSWORD", "secret");
    Raw::to(server).run(format!("{rights} {changed}").trim_end());
    format!("redis://{user}:secret@127.0.0.1:{port}")
}

/// Makes the user of the page on a server, with these rights more or less, and gives its URL.
pub(crate) fn url_of_the_page(server: &Server, changed: &str) -> String {
    let rights = user_of_the_page().replace("PASSWORD", "secret");
    Raw::to(server).run(format!("{rights} {changed}").trim_end());
    format!("redis://orchestrix:secret@127.0.0.1:{}", server.port())
}

pub(crate) fn place(port: u16, timeout: Duration) -> RedisPlace {
    RedisPlace::connect(&url(port), timeout).unwrap()
}

pub(crate) fn shared(port: u16, domain: &str) -> Arc<dyn Shared> {
    Arc::new(place(port, PATIENT).in_domain(domain).unwrap())
}

pub(crate) fn journal(port: u16, timeout: Duration) -> Box<dyn Journal> {
    place(port, timeout).journal().unwrap()
}

/// Commands past the engine.
pub(crate) struct Raw(redis::Connection);

impl Raw {
    pub(crate) fn to(server: &Server) -> Self {
        Self(redis::Client::open(url(server.port())).unwrap().get_connection().unwrap())
    }

    /// A command whose arguments are separated by spaces.
    pub(crate) fn ask<T: redis::FromRedisValue>(&mut self, words: &str) -> T {
        let arguments: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        self.ask_with(&arguments)
    }

    pub(crate) fn ask_with<T: redis::FromRedisValue>(&mut self, arguments: &[&[u8]]) -> T {
        let mut command = redis::Cmd::new();
        for argument in arguments {
            command.arg(*argument);
        }
        command.query(&mut self.0).unwrap()
    }

    /// As a user of the server.
    pub(crate) fn at(url: &str) -> Self {
        Self(redis::Client::open(url).unwrap().get_connection().unwrap())
    }

    /// What the server says to a command that it refuses.
    pub(crate) fn refusal(&mut self, words: &str) -> String {
        let mut command = redis::Cmd::new();
        for word in words.split(' ') {
            command.arg(word);
        }
        command.query::<redis::Value>(&mut self.0).expect_err(words).to_string()
    }

    pub(crate) fn run(&mut self, words: &str) {
        let _: redis::Value = self.ask(words);
    }
}
