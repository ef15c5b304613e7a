//! Bearer tokens and their rights. Only digests are stored.
//!
//! **Invariant:** the text of a token is in memory only while a request is checked or one is made, and it is
//! never written to a log: [`Secret`] cannot be shown.

mod keyring;
mod new;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use http::HeaderValue;
use orchestrix_core::Name;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio_util::sync::CancellationToken;

use crate::private::{Repeat, read_private, toml_mistake};

pub(crate) use self::keyring::{Keyring, Replaced};
pub use self::new::{NewArgs, NewToken, TokenCommand, make, run};

/// Tokens in one file. Every request is compared with all of them.
const TOKENS_MAX: usize = 1_000;

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
    tokens: Vec<Arc<Token>>,
}

/// One token, without its text.
#[derive(Debug)]
pub struct Token {
    pub name: Name,
    roles: Vec<Role>,
    digest: [u8; 32],
    /// Unix seconds.
    expires: Option<u64>,
    queues: Option<Arc<[Name]>>,
    /// Cancelled when it is over or not known any more: what goes on under it ends then.
    ended: CancellationToken,
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
        let file: File = toml::from_str(text).map_err(|error| toml_mistake(text, &error, Repeat::Nothing))?;
        if file.token.is_empty() {
            return Err("it has no [[token]]; `orchestrix token new` makes one".to_owned());
        }
        if file.token.len() > TOKENS_MAX {
            return Err(format!("it has {} tokens, at most {TOKENS_MAX} are accepted", file.token.len()));
        }
        let mut tokens: Vec<Arc<Token>> = Vec::new();
        for entry in file.token {
            let token = entry.token()?;
            if tokens.iter().any(|other| other.name == token.name) {
                return Err(format!(
                    "two tokens are called {:?}; give each its own name",
                    token.name.as_str()
                ));
            }
            if let Some(other) = tokens.iter().find(|other| other.digest == token.digest) {
                return Err(format!(
                    "tokens {:?} and {:?} have the same sha256: they would be one token; make another with \
                     `orchestrix token new`",
                    other.name.as_str(),
                    token.name.as_str()
                ));
            }
            tokens.push(Arc::new(token));
        }
        Ok(Self { tokens })
    }

    /// Finds the token with this text. Takes as long whether and wherever it is found.
    #[must_use]
    pub fn find(&self, secret: &Secret) -> Option<&Arc<Token>> {
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

impl Entry {
    fn token(self) -> Result<Token, String> {
        let name = self.name.as_str();
        if self.roles.is_empty() {
            return Err(format!("token {name:?} has no role"));
        }
        if self.queues.is_some() && self.roles.contains(&Role::Node) {
            return Err(format!(
                "token {name:?} has the role node and is limited to queues, but a node reads all of them: remove queues"
            ));
        }
        let mut digest = [0; 32];
        hex::decode_to_slice(&self.sha256, &mut digest)
            .map_err(|_| format!("the sha256 of token {name:?} is not 64 hexadecimal digits"))?;
        let expires = self.expires.map(|at| {
            unix_seconds(&at).ok_or_else(|| {
                format!("token {name:?} expires at {at}, which has no date with time and zone, as in 2027-01-31T00:00:00Z")
            })
        });
        let (expires, ended) = (expires.transpose()?, CancellationToken::new());
        let queues = self.queues.map(Arc::from);
        Ok(Token { name: self.name, roles: self.roles, digest, expires, queues, ended })
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

    /// Cancelled when it is over or not known any more.
    pub(crate) fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Whether another is the same in everything that was said about it.
    fn is_same(&self, other: &Self) -> bool {
        let said = |token: &Self| (token.name.clone(), token.roles.clone(), token.digest, token.expires);
        said(self) == said(other) && self.queues == other.queues
    }

    /// All that is known of it, in one text.
    fn canonical(&self) -> String {
        let Self { name, roles, digest, expires, queues, ended: _ } = self;
        let mut roles: Vec<&str> = roles.iter().map(|role| role.as_str()).collect();
        roles.sort_unstable();
        format!("{name} {roles:?} {digest:?} {expires:?} {queues:?}")
    }

    /// The queues that it is limited to, if it is.
    #[must_use]
    pub fn queues(&self) -> Option<&Arc<[Name]>> {
        self.queues.as_ref()
    }
}

/// Unix seconds by the wall clock: the only one that a date can be compared with.
#[must_use]
pub fn wall_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
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
mod tests;
