//! What the URL of a server says.

use redis::io::tcp::TcpSettings;
use redis::{Client, Cmd, ConnectionInfo, ProtocolVersion, RedisConnectionInfo, TlsCertificates, cmd};
use rustls::crypto::CryptoProvider;

use crate::{Cause, Error};

/// What a URL says.
pub(super) struct Address {
    pub(super) client: Client,
    /// How people may call it.
    pub(super) place: String,
    pub(super) tls: bool,
    pub(super) greeting: Vec<Cmd>,
}

/// The URL itself is never repeated: it has a password.
pub(super) fn address(url: &str) -> Result<Address, Error> {
    let wrong = |what: &str| {
        let source = Cause::Remote { place: "redis".to_owned(), what: what.to_owned() };
        Error { operation: "read the URL".to_owned(), retryable: false, source }
    };
    let form = "the URL must be redis://[user][:password@]host[:port][/database], or rediss://… for TLS";
    let tls = url.starts_with("rediss://");
    // What the driver would take for a wish not to check certificates is not for it.
    let (url, query) = if tls { url.split_once('?').unwrap_or((url, "")) } else { (url, "") };
    if tls && url.contains('#') || url.starts_with("valkeys:") {
        return Err(wrong(form));
    }
    let ca = match query.split_once('=') {
        Some(("ca", file)) if !file.is_empty() && !file.contains('&') => Some(file),
        None if query.is_empty() => None,
        Some(_) | None => return Err(wrong("the only parameter of rediss:// is ca=FILE")),
    };
    let info: ConnectionInfo = url.parse().map_err(|_| wrong(form))?;
    // Answers have the same form on all servers, and nothing but the password is sent before the first command.
    let (greeting, db) = (greeting(info.redis_settings()), info.redis_settings().db());
    let settings =
        RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2).set_skip_set_lib_name();
    let scheme = if tls { "rediss" } else { "redis" };
    let place = format!("{scheme}://{}/{}", info.addr(), db);
    // The end of a large batch must not wait until the server has acknowledged its beginning.
    let tcp = TcpSettings::default().set_nodelay(true);
    let info = info.set_redis_settings(settings).set_tcp_settings(tcp);
    if !tls {
        let client = Client::open(info).map_err(|_| wrong(form))?;
        return Ok(Address { client, place, tls, greeting });
    }
    // The driver asks for the one of the process. A program that has chosen one keeps it.
    if CryptoProvider::get_default().is_none() {
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let root_cert = ca.map(std::fs::read).transpose().map_err(|error| {
        wrong(&format!("the authority {} cannot be read: {error}", ca.unwrap_or_default()))
    })?;
    let client = Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert });
    let client = client.map_err(|error| wrong(&format!("TLS cannot be set up: {error}")))?;
    Ok(Address { client, place, tls, greeting })
}

/// What is said first: who we are, and which database it is.
fn greeting(settings: &RedisConnectionInfo) -> Vec<Cmd> {
    let mut greeting = Vec::new();
    if let Some(password) = settings.password() {
        let mut login = cmd("AUTH");
        if let Some(user) = settings.username() {
            login.arg(user);
        }
        login.arg(password);
        greeting.push(login);
    }
    if settings.db() != 0 {
        let mut select = cmd("SELECT");
        select.arg(settings.db());
        greeting.push(select);
    }
    greeting
}
