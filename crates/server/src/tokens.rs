//! Who may do what: bearer tokens, known only by their digests.
//!
//! **Invariant:** the text of a token is in memory only while a request is checked or one is made, and it is
//! never written to a log: [`Secret`] cannot be shown.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand, ValueEnum};
use http::HeaderValue;
use orchestrix_core::Name;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Tokens in one file. Every request is compared with all of them.
const TOKENS_MAX: usize = 1_000;
/// What tokens begin with, so that scanners for leaked secrets find them.
const PREFIX: &str = "orx_";
/// Random bytes of a token.
const TOKEN_BYTES: usize = 32;

/// What a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Submit tasks.
    Submit,
    /// Lease tasks and report on them.
    Work,
    /// Look at tasks, queues, workers, logs and events.
    Read,
    /// Everything, cancel and retry included.
    Admin,
    /// Other coordinators of the cluster.
    Node,
    /// Read the metrics.
    Metrics,
}

impl Role {
    pub const ALL: [Self; 6] = [Self::Submit, Self::Work, Self::Read, Self::Admin, Self::Node, Self::Metrics];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Work => "work",
            Self::Read => "read",
            Self::Admin => "admin",
            Self::Node => "node",
            Self::Metrics => "metrics",
        }
    }
}

/// A text that must not be seen.
#[derive(Clone)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// Reads the text of one token from a file that only its owner can read.
    ///
    /// # Errors
    /// A sentence that names the file and says what to do.
    pub fn load(path: &Path) -> Result<Self, String> {
        let text = read_private(path, "the file of the node's token")?;
        let text = text.trim();
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let shown = path.display();
            return Err(format!("{shown} has no token in it; `orchestrix token new --role node` makes one"));
        }
        Ok(Self(text.to_owned()))
    }

    /// What a request shows.
    pub(crate) fn bearer(&self) -> HeaderValue {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", self.0)).expect("its text was checked");
        value.set_sensitive(true);
        value
    }

    fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.0.as_bytes()).into()
    }
}

/// All tokens of a file.
#[derive(Debug)]
pub struct Tokens {
    tokens: Vec<Token>,
}

/// One token, without its text.
#[derive(Debug)]
pub struct Token {
    pub name: String,
    roles: Vec<Role>,
    digest: [u8; 32],
    /// Unix seconds.
    expires: Option<u64>,
    queues: Option<Vec<Name>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    token: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: Name,
    roles: Vec<Role>,
    sha256: String,
    expires: Option<toml::value::Datetime>,
    queues: Option<Vec<Name>>,
}

impl Tokens {
    /// Reads a tokens file that only its owner can read.
    ///
    /// # Errors
    /// A sentence that names the file and says what to do.
    pub fn load(path: &Path) -> Result<Self, String> {
        let text = read_private(path, "the tokens file")?;
        let shown = path.display();
        Self::parse(&text).map_err(|why| format!("the tokens file {shown} cannot be used: {why}"))
    }

    /// Reads the text of a tokens file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        if file.token.is_empty() {
            return Err("it has no [[token]]; `orchestrix token new` makes one".to_owned());
        }
        if file.token.len() > TOKENS_MAX {
            return Err(format!("it has {} tokens, at most {TOKENS_MAX} are accepted", file.token.len()));
        }
        let mut tokens: Vec<Token> = Vec::new();
        for entry in file.token {
            let token = entry.token()?;
            if tokens.iter().any(|other| other.name == token.name) {
                return Err(format!("two tokens are called {:?}; give each its own name", token.name));
            }
            tokens.push(token);
        }
        Ok(Self { tokens })
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tokens.iter().map(|token| token.name.as_str())
    }

    /// Finds the token with this text. Takes as long whether and wherever it is found.
    #[must_use]
    pub fn find(&self, secret: &Secret) -> Option<&Token> {
        let digest = secret.digest();
        let mut found = None;
        for token in &self.tokens {
            if bool::from(token.digest.ct_eq(&digest)) {
                found = Some(token);
            }
        }
        found
    }
}

/// Reads a file, unless others can read it too.
fn read_private(path: &Path, what: &str) -> Result<String, String> {
    let shown = path.display();
    let unreadable = |error: io::Error| format!("cannot read {what} {shown}: {error}");
    let mut file = std::fs::OpenOptions::new().read(true).open(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(format!("others can read {what} {shown} (mode {mode:04o}); run `chmod 600 {shown}`"));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(unreadable)?;
    Ok(text)
}

impl Entry {
    fn token(self) -> Result<Token, String> {
        let name = self.name.as_str().to_owned();
        if self.roles.is_empty() {
            return Err(format!("token {name:?} has no role"));
        }
        if self.queues.is_some() && self.roles.contains(&Role::Node) {
            return Err(format!(
                "token {name:?} has the role node and is limited to queues, but a node reads all of them: remove queues"
            ));
        }
        let digest = unhex(&self.sha256)
            .ok_or_else(|| format!("the sha256 of token {name:?} is not 64 hexadecimal digits"))?;
        let expires = self.expires.map(|at| {
            unix_seconds(&at).ok_or_else(|| {
                format!("token {name:?} expires at {at}, which has no date with time and zone, as in 2027-01-31T00:00:00Z")
            })
        });
        Ok(Token { name, roles: self.roles, digest, expires: expires.transpose()?, queues: self.queues })
    }
}

impl Token {
    /// Administrators may do what every role may.
    #[must_use]
    pub fn has(&self, role: Role) -> bool {
        self.roles.contains(&role) || self.roles.contains(&Role::Admin)
    }

    #[must_use]
    pub fn is_expired(&self, unix_seconds: u64) -> bool {
        self.expires.is_some_and(|at| at <= unix_seconds)
    }

    /// The queues that it is limited to, if it is.
    #[must_use]
    pub fn queues(&self) -> Option<&[Name]> {
        self.queues.as_deref()
    }
}

/// Unix seconds by the wall clock: the only one that a date can be compared with.
#[must_use]
pub fn wall_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// `orchestrix token …`
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Makes a token: prints it once, with the lines for the tokens file.
    New(NewArgs),
}

/// `orchestrix token new`
#[derive(Debug, Args)]
pub struct NewArgs {
    /// What to call it, in the tokens file.
    #[arg(long, value_parser = Name::new)]
    pub name: Name,
    /// What it may do; may be given several times.
    #[arg(long = "role", required = true)]
    pub roles: Vec<Role>,
    /// A queue that it is limited to; may be given several times.
    #[arg(long = "queue", value_parser = Name::new)]
    pub queues: Vec<Name>,
    /// When it ends, as in 2027-01-31T00:00:00Z.
    #[arg(long)]
    pub expires: Option<toml::value::Datetime>,
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
    let token = Secret(format!("{PREFIX}{}", hex(&random)));
    let roles: Vec<String> = args.roles.iter().map(|role| format!("{:?}", role.as_str())).collect();
    let mut lines = format!(
        "[[token]]\nname = {:?}\nroles = [{}]\nsha256 = \"{}\"\n",
        args.name.as_str(),
        roles.join(", "),
        hex(&token.digest())
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

/// Runs `orchestrix token …`.
#[must_use]
pub fn run(command: &TokenCommand) -> ExitCode {
    let TokenCommand::New(args) = command;
    let told = make(args).and_then(|NewToken { token: Secret(text), lines }| {
        let mut out = io::stdout();
        let written = writeln!(out, "token (shown only now): {text}\n\nadd to the tokens file:\n\n{lines}");
        written.map_err(|error| error.to_string())
    });
    match told {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // Without a place for complaints there is still the exit code.
            let _ = writeln!(io::stderr(), "orchestrix: {why}");
            ExitCode::from(2)
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, place) in bytes.iter_mut().zip(0..) {
        *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).ok()?;
    }
    Some(bytes)
}

/// Seconds since 1970 of a date with time and zone; `None` when something is missing or before 1970.
fn unix_seconds(at: &toml::value::Datetime) -> Option<u64> {
    let (date, time) = (at.date?, at.time?);
    let offset_minutes = match at.offset? {
        toml::value::Offset::Z => 0,
        toml::value::Offset::Custom { minutes } => i64::from(minutes),
    };
    let (year, month) = (i64::from(date.year), i64::from(date.month));
    // Years that begin in March have their leap day at the end.
    let shifted = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + i64::from(date.day) - 1;
    let days = 365 * shifted + shifted.div_euclid(4) - shifted.div_euclid(100)
        + shifted.div_euclid(400)
        + day_of_year
        - 719_468;
    let seconds =
        i64::from(time.hour) * 3_600 + i64::from(time.minute) * 60 + i64::from(time.second.unwrap_or(0));
    u64::try_from(days * 86_400 + seconds - offset_minutes * 60).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn new(expires: Option<&str>) -> NewToken {
        make(&NewArgs {
            name: Name::new("ci").unwrap(),
            roles: vec![Role::Submit, Role::Read],
            queues: vec![Name::new("mail").unwrap()],
            expires: expires.map(|text| text.parse().unwrap()),
        })
        .unwrap()
    }

    #[test]
    fn a_new_token_is_found_by_its_text_and_by_no_other() {
        let NewToken { token, lines } = new(None);
        let tokens = Tokens::parse(&lines).unwrap();
        let found = tokens.find(&token).unwrap();
        assert_eq!(found.name, "ci");
        assert!(found.has(Role::Submit) && found.has(Role::Read) && !found.has(Role::Admin));
        assert_eq!(found.queues().unwrap()[0].as_str(), "mail");
        assert!(tokens.find(&Secret::new("orx_00".to_owned())).is_none());
        assert!(!lines.contains(&token.0));
        assert_ne!(new(None).token.0, token.0);
    }

    #[test]
    fn a_token_ends_at_its_time() {
        let tokens = Tokens::parse(&new(Some("2027-01-31T12:30:00+02:00")).lines).unwrap();
        let token = &tokens.tokens[0];
        assert_eq!(token.expires, Some(1_801_391_400));
        assert!(!token.is_expired(1_801_391_399));
        assert!(token.is_expired(1_801_391_400));
    }

    #[test]
    fn dates_become_unix_seconds() {
        let seconds = |text: &str| unix_seconds(&text.parse().unwrap());
        assert_eq!(seconds("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(seconds("2000-02-29T23:59:59Z"), Some(951_868_799));
        assert_eq!(seconds("2100-03-01T00:00:00Z"), Some(4_107_542_400));
        assert_eq!(seconds("2027-01-31"), None);
        assert_eq!(seconds("2027-01-31T00:00:00"), None);
    }

    #[test]
    fn a_file_with_a_mistake_is_refused_with_a_sentence() {
        let digest = "0".repeat(64);
        let entry = |more: &str| {
            format!("[[token]]\nname = \"a\"\nroles = [\"read\"]\nsha256 = \"{digest}\"\n{more}")
        };
        assert!(Tokens::parse(&entry("")).is_ok());
        for (text, why) in [
            (String::new(), "has no [[token]]"),
            (entry("role = \"read\""), "unknown field `role`"),
            (entry("expires = 2027-01-01"), "no date with time and zone"),
            (entry("").replace("read", "reader"), "unknown variant `reader`"),
            (entry("").replace("[\"read\"]", "[]"), "has no role"),
            (entry("").replace(&digest, "abc"), "64 hexadecimal digits"),
            (entry("") + &entry(""), "two tokens are called"),
        ] {
            let told = Tokens::parse(&text).unwrap_err();
            assert!(told.contains(why), "{told}");
        }
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.toml");
        std::fs::write(&path, new(None).lines).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let told = Tokens::load(&path).unwrap_err();
        assert!(told.contains("chmod 600") && told.contains("mode 0640"), "{told}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(Tokens::load(&path).is_ok());
    }

    #[test]
    fn a_secret_cannot_be_shown() {
        assert_eq!(format!("{:?}", Secret::new("canary".to_owned())), "Secret");
    }
}
