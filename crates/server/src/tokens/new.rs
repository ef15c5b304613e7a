//! `orchestrix token new`: makes a token, shows it once, and writes the lines that make it known.

use std::io::{self, Read, Write};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use orchestrix_core::Name;

use super::{Role, Secret, Tokens, unix_seconds, wall_seconds};

/// What tokens begin with, so that scanners for leaked secrets find them.
const PREFIX: &str = "orx_";
/// Random bytes of a token.
const TOKEN_BYTES: usize = 32;

/// `orchestrix token …`
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a token: print it once, with its lines for the tokens file.
    New(NewArgs),
}

/// `orchestrix token new`
#[derive(Debug, Args)]
pub struct NewArgs {
    /// Name of the token.
    #[arg(long, value_parser = Name::new)]
    pub name: Name,
    /// Role of the token; repeat for more.
    #[arg(long = "role", required = true)]
    pub roles: Vec<Role>,
    /// Limit the token to this queue; repeat for more.
    #[arg(long = "queue", value_parser = Name::new)]
    pub queues: Vec<Name>,
    /// When the token expires, as in 2027-01-31T00:00:00Z.
    #[arg(long, value_parser = moment)]
    pub expires: Option<toml::value::Datetime>,
}

fn moment(text: &str) -> Result<toml::value::Datetime, String> {
    let at = text.parse();
    let at =
        at.map_err(|_| "this is not a date with a time; write it like 2027-01-31T00:00:00Z".to_owned())?;
    // One without a zone is refused with all the rest.
    match unix_seconds(&at) {
        Some(seconds) if seconds <= wall_seconds() => {
            Err("this is in the past: the token would be expired".to_owned())
        }
        Some(_) | None => Ok(at),
    }
}

/// A new token and the lines that make it known.
#[derive(Debug)]
pub struct NewToken {
    pub token: Secret,
    pub lines: String,
}

/// Makes a token.
///
/// # Errors
/// When the system has no randomness, or the date of expiry has no zone.
pub fn make(args: &NewArgs) -> Result<NewToken, String> {
    let mut random = [0; TOKEN_BYTES];
    let source = std::fs::OpenOptions::new().read(true).open("/dev/urandom");
    let filled = source.and_then(|mut source| source.read_exact(&mut random));
    filled.map_err(|error| format!("cannot read /dev/urandom: {error}"))?;
    let token = Secret::new(format!("{PREFIX}{}", hex::encode(random)));
    let roles: Vec<String> = args.roles.iter().map(|role| format!("{:?}", role.as_str())).collect();
    let mut lines = format!(
        "[[token]]\nname = {:?}\nroles = [{}]\nsha256 = \"{}\"\n",
        args.name.as_str(),
        roles.join(", "),
        hex::encode(token.digest())
    );
    if !args.queues.is_empty() {
        let queues: Vec<String> = args.queues.iter().map(|queue| format!("{:?}", queue.as_str())).collect();
        lines.push_str(&format!("queues = [{}]\n", queues.join(", ")));
    }
    if let Some(expires) = &args.expires {
        lines.push_str(&format!("expires = {expires}\n"));
    }
    Tokens::parse(&lines)?;
    Ok(NewToken { token, lines })
}

/// Runs `orchestrix token …`; answers people, or programs in JSON.
#[must_use]
pub fn run(command: &TokenCommand, json: bool) -> ExitCode {
    let TokenCommand::New(args) = command;
    let told = make(args).and_then(|NewToken { token: Secret(text), lines }| {
        let answer = match json {
            true => serde_json::json!({"name": args.name, "token": text, "lines": lines}).to_string(),
            false => format!("token (shown only now): {text}\n\nadd to the tokens file:\n\n{lines}"),
        };
        writeln!(io::stdout(), "{answer}").map_err(|error| error.to_string())
    });
    match told {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // Without a place for complaints there is still the exit code.
            let _ = match json {
                true => writeln!(io::stderr(), "{}", serde_json::json!({"code": "usage", "detail": why})),
                false => writeln!(io::stderr(), "orchestrix: {why}"),
            };
            ExitCode::from(2)
        }
    }
}
