//! `orchestrix work`: a command for every task.
//!
//! **Invariant:** a command and all that it started in its process group are gone before its task is given to
//! another worker by us, and at the latest when our lease may be over.

mod display;
mod printing;
mod process;

use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use orchestrix_client::{Job, JobError, Stop, Worker};
use orchestrix_core::Name;
use orchestrix_core::limits::BATCH_ITEMS_MAX;
use orchestrix_core::wire::LogStream;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use self::display::Display;
use self::printing::Printing;
use self::process::{Ended, Process};
use super::Context;
use super::fail::{Exit, Fail};
use super::time::parse_duration;

/// How much longer a command may take to be gone than it was given to end by itself.
const KILL: Duration = Duration::from_secs(1);
/// Between SIGTERM and SIGKILL at the time limit of an attempt: nearly all of the limit is for the work.
const AT_LIMIT: Duration = Duration::from_millis(50);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
THE COMMAND
  gets the payload on stdin, and in its environment
    ORCHESTRIX_TASK_ID
    ORCHESTRIX_LEASE_ID   the fencing token: a later attempt has a larger one
    ORCHESTRIX_ATTEMPT    1 for the first
    ORCHESTRIX_QUEUE
  What it writes becomes the log of the task. Exit code 0 completes the task,
  any other fails the attempt. When the task is cancelled, the lease lost, or
  `work` told to stop, its process group gets SIGTERM, then SIGKILL.

SIGNALS
  SIGTERM, SIGINT, SIGQUIT and SIGHUP stop the commands, give their tasks back
  and end with exit code 0; a second one, unless it is SIGHUP, kills the commands
  at once. Under nohup SIGHUP stays ignored.

EXAMPLES
  orchestrix work mail -- ./send-mail
  orchestrix work build test --concurrency 4 --lease 5m -- make -f work.mk
  orchestrix work hello -- sh -c 'read name; echo \"hello $name\"'")]
pub(crate) struct WorkArgs {
    /// Queues to take tasks from
    #[arg(required = true, value_name = "QUEUE", value_parser = Name::new)]
    queues: Vec<Name>,
    /// Maximum number of concurrent commands
    #[arg(
        long,
        default_value_t = 1,
        value_name = "N",
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=BATCH_ITEMS_MAX as u64)
    )]
    concurrency: usize,
    /// Lease of a task: how soon another worker gets it when this worker is gone; twice --leader-ttl survives a killed leader
    #[arg(long, default_value = "60s", value_parser = parse_duration, value_name = "TIME")]
    lease: Duration,
    /// Between SIGTERM and SIGKILL; a lost lease leaves at most a second
    #[arg(long, default_value = "5s", value_parser = parse_duration, value_name = "TIME")]
    grace: Duration,
    /// Name of this worker [default: host, process and random characters]
    #[arg(long, value_parser = Name::new)]
    name: Option<Name>,
    /// What to run for each task
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// What every run of the command needs.
#[derive(Debug)]
struct Work {
    command: Vec<String>,
    grace: Duration,
    /// The second signal: kill at once.
    kill: CancellationToken,
}

pub(crate) async fn run(args: WorkArgs, context: &Context) -> Result<(), Fail> {
    orchestrix_server::reaping::begin().map_err(|error| cannot_listen(&error))?;
    check_command(&args.command[0])?;
    let printing = Printing::start(context.out)?;
    printing.show_warnings();
    let ended = work(args, context, &printing).await;
    if let Some(words) = ended.as_ref().err().and_then(|fail| fail.words(context.out.format)) {
        printing.complain(&words);
    }
    printing.flush();
    ended.map_err(|fail| Fail::silent(fail.exit))
}

async fn work(args: WorkArgs, context: &Context, printing: &Printing) -> Result<(), Fail> {
    let (stop, kill) = (CancellationToken::new(), CancellationToken::new());
    let listening = tokio::spawn(listen(signals()?, printing.clone(), stop.clone(), kill.clone()));
    let display = Arc::new(Display::new(context.out, printing.clone()));
    let queues: Vec<String> = args.queues.iter().map(ToString::to_string).collect();
    display.begin(&queues, args.concurrency, context.client.url());
    let mut worker = Worker::new(context.client.clone(), queues)
        .concurrency(args.concurrency)
        .lease(args.lease)
        .grace(Duration::ZERO)
        .wind_up(args.grace + KILL)
        .observe({
            let display = Arc::clone(&display);
            move |notice| display.notice(&notice)
        });
    if let Some(name) = args.name {
        worker = worker.name(name.as_str());
    }
    let work = Arc::new(Work { command: args.command, grace: args.grace, kill });
    let ended = worker.run(stop, move |job| Arc::clone(&work).execute(job)).await;
    listening.abort();
    ended.map_err(Fail::from)
}

impl Work {
    /// Runs the command for one task.
    async fn execute(self: Arc<Self>, job: Job) -> Result<serde_json::Value, JobError> {
        let mut process = Process::start(&self.command, &job)?;
        let lines = process.stream_output(&job);
        let stop = job.cancellation();
        let ended = tokio::select! {
            biased;
            ended = process.wait() => ended?,
            () = stop.cancelled() => {
                let timed_out = job.stop() == Some(Stop::TimedOut);
                self.end(&mut process, if timed_out { AT_LIMIT } else { self.grace }).await?;
                drop(lines.finish().await);
                if timed_out {
                    job.log_from(LogStream::System, "the time limit of this attempt was reached: the command was stopped").await;
                }
                return Err(JobError::new(stopped_because(job.stop())));
            }
        };
        let last_words = lines.finish().await;
        match ended {
            Ended::Code(0) => Ok(json!({"exit_code": 0})),
            Ended::Code(code) => Err(JobError::new(format!("exit code {code}{}", tail(&last_words)))),
            Ended::Signal(signal) => {
                Err(JobError::new(format!("killed by signal {signal}{}", tail(&last_words))))
            }
        }
    }

    /// Asks the group to end, and kills what is left of it after the grace.
    async fn end(&self, process: &mut Process, grace: Duration) -> Result<(), JobError> {
        process.terminate();
        tokio::select! {
            ended = process.wait() => {
                ended?;
                return Ok(());
            }
            () = tokio::time::sleep(grace) => {}
            () = self.kill.cancelled() => {}
        }
        process.kill();
        process.wait().await?;
        Ok(())
    }
}

fn stopped_because(stop: Option<Stop>) -> &'static str {
    match stop {
        Some(Stop::CancelRequested) => "stopped because the task was cancelled",
        Some(Stop::Shutdown) | None => "stopped because the worker stops",
        Some(Stop::LeaseLost) => "stopped because the lease was lost",
        Some(Stop::TimedOut) => "stopped because its time limit was reached",
        Some(Stop::Deadline) => "stopped because the coordinator did not answer in time",
    }
}

fn tail(last_words: &str) -> String {
    if last_words.is_empty() { String::new() } else { format!(": {last_words}") }
}

/// The streams of a command and what they are called in the log.
const STREAMS: [LogStream; 2] = [LogStream::Stdout, LogStream::Stderr];

/// A command that is not there would fail every task: better to say so before the first.
fn check_command(command: &str) -> Result<(), Fail> {
    let is_there = |path: &Path| path.is_file();
    let found = if command.contains('/') {
        is_there(Path::new(command))
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| is_there(&folder.join(command)))
    };
    if found {
        return Ok(());
    }
    let text = format!(
        "there is no command {command:?}; name a program on the PATH, or use sh -c '…' for shell code"
    );
    Err(Fail::new(Exit::Usage, text))
}

/// What tells us to stop.
struct Signals {
    /// A person or a supervisor; the second time they mean now.
    asking: [Signal; 3],
    /// The terminal is gone. It may say so twice, by itself and through its shell, so it cannot mean now. None
    /// when we were started to outlive it.
    hangup: Option<Signal>,
}

fn signals() -> Result<Signals, Fail> {
    let listen = |kind| signal(kind).map_err(|error| cannot_listen(&error));
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let hangup = SignalKind::hangup();
    let hangup = if is_ignored(hangup, &status) { None } else { Some(listen(hangup)?) };
    let asking = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::quit()];
    let [terminate, interrupt, quit] = asking.map(listen);
    Ok(Signals { asking: [terminate?, interrupt?, quit?], hangup })
}

fn cannot_listen(error: &std::io::Error) -> Fail {
    Fail::new(Exit::Refused, format!("cannot listen for signals: {error}"))
}

/// Whether a process with this status in `/proc` ignores a signal: `nohup` asks for that before it starts one.
fn is_ignored(kind: SignalKind, status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (kind.as_raw_value() - 1) & 1 == 1
}

/// The first signal stops, and so does the end of the reader of stdout; the second kills.
async fn listen(signals: Signals, printing: Printing, stop: CancellationToken, kill: CancellationToken) {
    let Signals { mut asking, hangup } = signals;
    let unread = printing.unread();
    let hung_up = async {
        match hangup {
            Some(mut hangup) => hangup.recv().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = any(&mut asking) => {}
        _ = hung_up => {}
        () = unread.cancelled() => {
            printing.note("standard output has no reader any more: stopping");
        }
    }
    stop.cancel();
    any(&mut asking).await;
    kill.cancel();
}

async fn any(signals: &mut [Signal]) {
    std::future::poll_fn(|context| {
        let came = signals.iter_mut().any(|signal| signal.poll_recv(context).is_ready());
        if came { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_lease_outlasts_a_killed_leader() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            work: WorkArgs,
        }
        let line = <Line as clap::Parser>::parse_from(["work", "q", "--", "true"]);
        let leader = orchestrix_leadership::Options::default().leader_ttl;
        assert!(line.work.lease >= 2 * leader, "{:?}, {leader:?}", line.work.lease);
    }

    #[test]
    fn a_signal_is_ignored_if_its_bit_says_so() {
        let status = "Name:\tx\nSigBlk:\tffffffffffffffff\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored(SignalKind::hangup(), status) && is_ignored(SignalKind::pipe(), status));
        assert!(!is_ignored(SignalKind::interrupt(), status));
        assert!(!is_ignored(SignalKind::hangup(), "nothing of the kind"));
    }

    #[test]
    fn a_command_that_is_not_there_is_refused_before_the_first_task() {
        assert!(check_command("sh").is_ok());
        assert!(check_command("/bin/sh").is_ok());
        assert_eq!(check_command("no-such-command-here").unwrap_err().exit, Exit::Usage);
        assert_eq!(check_command("./no/such/command").unwrap_err().exit, Exit::Usage);
    }
}
