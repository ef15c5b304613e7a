//! The binary `orchestrix`: a coordinator and everything that people do with one.

mod cli;

use std::process::ExitCode;

/// Tasks come and go on different threads by the hundred thousand; this allocator is made for that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::main()
}
