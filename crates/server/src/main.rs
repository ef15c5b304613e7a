//! The binary `orchestrix`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use orchestrix_server::{serve, tokens};

/// A coordinator for distributed work.
#[derive(Debug, Parser)]
#[command(name = "orchestrix", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs a coordinator.
    Serve(Box<serve::ServeArgs>),
    /// Makes tokens for the tokens file.
    #[command(subcommand)]
    Token(tokens::TokenCommand),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => serve::run(*args),
        Command::Token(command) => tokens::run(&command),
    }
}
