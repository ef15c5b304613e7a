//! A URL of a database, and the part of it that may be shown.
//!
//! **Invariant:** nothing that was between the user's name and the host, and no parameter, is ever in a text that
//! leaves this engine, neither as it was written nor decoded.

use percent_encoding::percent_decode_str;

/// The parameters that a URL may have. Any other is refused, since a driver may log what it does not know.
const PARAMETERS: &[&str] = &[
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "sslca",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "socket",
    "host",
    "password",
    "application_name",
];

/// Which kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    MySql,
    Postgres,
}

/// Where a database is.
pub(super) struct Address {
    pub(super) kind: Kind,
    place: String,
    /// Passwords, as they were written and decoded.
    secrets: Vec<String>,
}

impl Address {
    /// Says why not without quoting the URL.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").ok_or("it has no scheme like mysql:// or postgres://")?;
        let kind = match scheme {
            "mysql" | "mariadb" => Kind::MySql,
            "postgres" | "postgresql" => Kind::Postgres,
            _ => return Err("its scheme is none of mysql, mariadb, postgres and postgresql".to_owned()),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        if database.is_empty() || database.contains(['/', '@']) {
            // An unescaped `/` in a password looks like the end of the host.
            return Err("it names no database; a `/` in a password is written %2F".to_owned());
        }
        let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        let mut secrets = Vec::new();
        if let Some((_, password)) = user.split_once(':') {
            hide(&mut secrets, password);
        }
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !PARAMETERS.contains(&key) {
                return Err(format!("it has a parameter that is none of {}", PARAMETERS.join(", ")));
            }
            if key == "password" {
                hide(&mut secrets, value);
            }
        }
        let name = if kind == Kind::MySql { "mysql" } else { "postgres" };
        Ok(Self { kind, place: format!("{name}://{host}/{database}"), secrets })
    }

    /// The kind, the host and the database.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// A foreign message, without our secrets.
    pub(super) fn scrub(&self, text: &str) -> String {
        self.secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret, "***"))
    }
}

fn hide(secrets: &mut Vec<String>, written: &str) {
    for secret in [written.to_owned(), decode(written)] {
        if !secret.is_empty() && !secrets.contains(&secret) {
            secrets.push(secret);
        }
    }
}

fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_no_user_and_no_secret() {
        let address =
            Address::parse("mysql://me:s%40cret@db.example:3306/work?ssl-mode=required").expect("a URL");
        assert_eq!(address.place(), "mysql://db.example:3306/work");
        assert_eq!(address.scrub("s%40cret or s@cret"), "*** or ***");
        let address = Address::parse("postgres://db/work?password=p%41ss").expect("a URL");
        assert_eq!(
            (address.place(), address.scrub("pAss p%41ss")),
            ("postgres://db/work", "*** ***".to_owned())
        );
    }

    #[test]
    fn a_url_that_is_none_is_refused_without_being_quoted() {
        for url in [
            "canary",
            "http://me:canary@host/db",
            "mysql://me:canary@host",
            "mysql://me:can/ary@host/db",
            "mysql://me:canary@host/",
            "postgres://host/db?passwd=canary",
            "postgres://host/db?canary",
        ] {
            let why = Address::parse(url).err().expect("it is refused");
            assert!(!why.contains("canary") && !why.contains("can/"), "{why}");
        }
    }
}
