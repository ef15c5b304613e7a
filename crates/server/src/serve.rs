//! `orchestrix serve`.

use std::process::ExitCode;

/// What `serve` understands.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES\n  orchestrix serve")]
pub(crate) struct ServeArgs {}

pub(crate) fn run(_: ServeArgs) -> ExitCode {
    ExitCode::FAILURE
}
