//! `bench`: executes `orchestrix-bench`, a separate program that does not ship, if it is in the same folder.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use super::fail::{Exit, Fail};
use super::out::Format;

const PROGRAM: &str = "orchestrix-bench";

/// What `bench` passes on.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "EXAMPLES\n  orchestrix bench --quick\n  orchestrix bench --only in-process,batches --no-peers"
)]
pub(crate) struct BenchArgs {
    /// Options of `orchestrix-bench`; its own `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
    options: Vec<OsString>,
}

/// Does not come back if the program is there.
pub(crate) fn run(args: BenchArgs, format: Format) -> Result<(), Fail> {
    let refused = |why: String| Err(Fail::new(Exit::Refused, why));
    let here = match std::env::current_exe() {
        Ok(here) => here,
        Err(error) => return refused(format!("cannot find this program: {error}")),
    };
    let mut command = Command::new(here.with_file_name(PROGRAM));
    if format == Format::Json {
        command.arg("--json");
    }
    let error = command.args(args.options).exec();
    if error.kind() == ErrorKind::NotFound {
        let where_it_is = format!("`make bench` builds and runs {PROGRAM}, which is not beside this program");
        return refused(where_it_is);
    }
    refused(format!("cannot run {PROGRAM}: {error}"))
}
