//! `orchestrix completions`: scripts that let a shell complete our commands.

use clap::CommandFactory;
use clap_complete::Shell;

use super::Cli;
use super::fail::Fail;
use super::out::Out;

/// Writes the script to stdout; where it belongs depends on the shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  orchestrix completions bash > ~/.local/share/bash-completion/completions/orchestrix
  orchestrix completions zsh > ~/.zfunc/_orchestrix
  orchestrix completions fish > ~/.config/fish/completions/orchestrix.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &CompletionsArgs, out: Out) -> Result<(), Fail> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "orchestrix", &mut script);
    out.bytes(&script)
}
