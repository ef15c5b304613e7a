//! The command line: its commands and common options.

mod bench;
mod change;
mod completions;
mod events;
mod explain;
mod fail;
mod journal;
mod logs;
mod out;
mod overview;
mod shards;
mod show;
mod submit;
mod table;
mod tasks;
mod time;
mod work;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Once;

use clap::{Parser, Subcommand};
use orchestrix_client::{Client, ClientBuilder};
use orchestrix_server::{serve, tokens};

use self::fail::{EXIT_CODES, Exit, Fail};
use self::out::{Color, Format, Out};

/// How often a call of the command line is repeated: people wait for it.
const RETRIES: u32 = 3;

const SERVE_EXAMPLES: &str = "\
EXAMPLES
  orchestrix serve --data /var/lib/orchestrix
  orchestrix serve --data ./data --listen 127.0.0.1:4000
  orchestrix serve --engine memory";

const TOKEN_EXAMPLES: &str = "\
EXAMPLES
  orchestrix token new --name deploy --role submit --queue mail
  orchestrix token new --name workers --role work --role read";

/// Orchestrix: durable tasks with leases.
#[derive(Debug, Parser)]
#[command(name = "orchestrix", version, after_help = EXIT_CODES, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Options of every command.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Everywhere")]
struct Global {
    /// Address of the coordinator; for a cluster up to 16 of them, with commas between: the next is asked when
    /// one does not answer
    #[arg(
        long,
        global = true,
        env = "ORCHESTRIX_URL",
        default_value = "http://127.0.0.1:3000",
        value_name = "URL[,URL]"
    )]
    url: String,
    /// File with the bearer token; or set ORCHESTRIX_TOKEN to the token itself
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print JSON, one value per line
    #[arg(long, global = true)]
    json: bool,
    /// When to colour: auto, always or never
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        hide_possible_values = true,
        value_name = "WHEN"
    )]
    color: Color,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a coordinator
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(Box<serve::ServeArgs>),
    /// Create tokens for the tokens file
    #[command(subcommand, after_help = TOKEN_EXAMPLES)]
    Token(tokens::TokenCommand),
    /// Submit a task
    Submit(submit::SubmitArgs),
    /// Run a command for every task of some queues
    Work(work::WorkArgs),
    /// List tasks
    Tasks(tasks::TasksArgs),
    /// Show one task
    Task(show::TaskArgs),
    /// Show the output of a task
    Logs(logs::LogsArgs),
    /// Cancel tasks
    Cancel(change::CancelArgs),
    /// Start a new retry round for failed tasks
    Retry(change::RetryArgs),
    /// Explain the state of a task
    Explain(explain::ExplainArgs),
    /// List queues
    Queues(overview::QueuesArgs),
    /// List workers
    Workers(overview::WorkersArgs),
    /// List the nodes of the cluster
    Nodes(overview::NodesArgs),
    /// List services, or show which worker has which shard
    Shards(shards::ShardsArgs),
    /// Print events as they happen
    Events(events::EventsArgs),
    /// Check or print a data folder without a coordinator
    Journal(journal::JournalArgs),
    /// Measure a coordinator beside Redis Streams and beanstalkd, with `orchestrix-bench`
    Bench(bench::BenchArgs),
    /// Write a completion script for a shell
    Completions(completions::CompletionsArgs),
}

/// What a command works with.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) out: Out,
}

/// Reads the command line, does what it says, and answers with its exit code.
pub(crate) fn main() -> ExitCode {
    let Cli { global, command } = Cli::parse();
    let format = if global.json { Format::Json } else { Format::People };
    let out = Out::new(format, global.color);
    let ended = match command {
        Command::Serve(args) => return serve::run(*args),
        Command::Token(command) => return tokens::run(&command, global.json),
        Command::Journal(args) => journal::run(&args, out),
        Command::Bench(args) => bench::run(args, format),
        Command::Completions(args) => completions::run(&args, out),
        Command::Submit(args) => with_client(&global, out, async |context| submit::run(args, &context).await),
        // It has words of its own for a missing leader, which wait for no reader.
        Command::Work(args) => builder(&global)
            .and_then(|builder| run_with(builder, out, async |context| work::run(args, &context).await)),
        Command::Tasks(args) => with_client(&global, out, async |context| tasks::run(args, &context).await),
        Command::Task(args) => with_client(&global, out, async |context| show::run(&args, &context).await),
        Command::Logs(args) => with_client(&global, out, async |context| logs::run(&args, &context).await),
        Command::Cancel(args) => {
            with_client(&global, out, async |context| change::cancel(args, &context).await)
        }
        Command::Retry(args) => {
            with_client(&global, out, async |context| change::retry(args, &context).await)
        }
        Command::Explain(args) => {
            with_client(&global, out, async |context| explain::run(&args, &context).await)
        }
        Command::Queues(_) => with_client(&global, out, async |context| overview::queues(&context).await),
        Command::Workers(_) => with_client(&global, out, async |context| overview::workers(&context).await),
        Command::Nodes(args) => {
            with_client(&global, out, async |context| overview::nodes(&context, args).await)
        }
        Command::Events(args) => {
            with_client(&global, out, async |context| events::run(&args, &context).await)
        }
        Command::Shards(args) => with_client(&global, out, async |context| shards::run(args, &context).await),
    };
    let exit = match ended {
        Ok(()) => Exit::Done,
        Err(fail) => {
            fail.tell(format);
            fail.exit
        }
    };
    ExitCode::from(exit as u8)
}

fn with_client(
    global: &Global,
    out: Out,
    command: impl AsyncFnOnce(Context) -> Result<(), Fail>,
) -> Result<(), Fail> {
    let mut builder = builder(global)?;
    if !out.is_json() {
        let said = Once::new();
        builder =
            builder.observe_leader_waits(move || said.call_once(|| out::note("no leader yet, waiting…")));
    }
    run_with(builder, out, command)
}

fn builder(global: &Global) -> Result<ClientBuilder, Fail> {
    let builder = Client::builder(&global.url).retries(RETRIES);
    Ok(match token(global)? {
        Some(token) => builder.token(token),
        None => builder,
    })
}

fn run_with(
    builder: ClientBuilder,
    out: Out,
    command: impl AsyncFnOnce(Context) -> Result<(), Fail>,
) -> Result<(), Fail> {
    let client = builder.build().map_err(|error| Fail::new(Exit::Usage, error.to_string()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| {
        Fail::new(Exit::Refused, format!("cannot start the threads of this program: {error}"))
    })?;
    let ended = runtime.block_on(command(Context { client, out }));
    // A pending read of stdin must not delay the exit.
    runtime.shutdown_background();
    ended
}

/// The token comes from a file or the environment, never from the arguments: those are seen by everyone on
/// the machine.
fn token(global: &Global) -> Result<Option<String>, Fail> {
    let Some(file) = &global.token_file else {
        return Ok(std::env::var("ORCHESTRIX_TOKEN").ok().filter(|token| !token.trim().is_empty()));
    };
    let token = std::fs::read_to_string(file).map_err(|error| {
        Fail::new(Exit::Usage, format!("cannot read the token file {}: {error}", file.display()))
    })?;
    Ok(Some(token.trim().to_owned()))
}

/// Reads the id of a task.
fn parse_id(text: &str) -> Result<orchestrix_core::TaskId, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number
        .map(orchestrix_core::TaskId)
        .ok_or_else(|| "the id of a task is a whole number from 1, like 42".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_shows_examples() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("EXAMPLES"), "{} has none", command.get_name());
        }
    }
}
