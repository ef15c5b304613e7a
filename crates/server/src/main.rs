//! The binary `orchestrix`: a coordinator and everything that people do with one.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
