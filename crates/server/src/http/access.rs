//! Authorization for all wires: the role and the scope of a route's row, as far as no state is needed. The decision loop
//! keeps callers who are limited to some queues within these.

use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderValue;
use orchestrix_core::{Forbidden, Refusal, is_planted};
use orchestrix_node::Caller;
use tokio_util::sync::CancellationToken;

use crate::http::App;
use crate::http::audit::Seen;
use crate::http::error::Fault;
use crate::http::quota::InFlight;
use crate::http::routes::{Access, Pace, Route, Scope};
use crate::tokens::{Secret, Token, wall_seconds};

/// A caller, with the token that it has shown. Where there are no tokens, the address is all that is known.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) caller: Caller,
    pub(crate) token: Option<Arc<Token>>,
}

impl Client {
    fn unknown(peer: IpAddr) -> Self {
        Self { caller: Caller { address: Some(peer), ..Caller::default() }, token: None }
    }

    fn of(token: Arc<Token>, peer: IpAddr) -> Self {
        let (name, queues) = (Some(token.name.clone()), token.queues().cloned());
        Self { caller: Caller { name, queues, address: Some(peer) }, token: Some(token) }
    }

    /// What the caller's streams and unsent answers are counted under.
    pub(crate) fn name(&self) -> String {
        match (&self.caller.name, self.caller.address) {
            (Some(name), _) => name.as_str().to_owned(),
            (None, address) => address.map_or_else(String::new, |address| address.to_string()),
        }
    }

    /// Cancelled when the caller may not go on with what it has begun.
    pub(crate) fn ended(&self) -> CancellationToken {
        self.token.as_ref().map_or_else(CancellationToken::new, |token| token.ended().clone())
    }

    /// Counts a request that is on its way.
    pub(crate) fn enter(&self, app: &App) -> Result<Option<InFlight>, Fault> {
        self.token.as_ref().map(|token| app.quotas.enter(token.name.as_str())).transpose()
    }

    /// Waits for an answer, but where that may take long only as long as the token is valid.
    pub(crate) async fn wait<T>(
        &self,
        pace: Pace,
        answering: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        match (pace, &self.token) {
            (Pace::Prompt, _) | (_, None) => answering.await,
            (Pace::MayWait, Some(token)) => tokio::select! {
                answered = answering => answered,
                () = token.ended().cancelled() => Err(ended_meanwhile()),
            },
        }
    }

    /// Refuses a caller whose token has ended since it was shown: a body may take its time.
    pub(crate) fn check_still_known(&self) -> Result<(), Fault> {
        let has_ended = |token: &Token| token.ended().is_cancelled() || token.is_expired(wall_seconds());
        if self.token.as_deref().is_some_and(has_ended) { Err(ended_meanwhile()) } else { Ok(()) }
    }
}

fn ended_meanwhile() -> Fault {
    Fault::Unauthorized("this token has expired or was removed while the request waited".to_owned())
}

/// Finds out who asks, from what it has shown, and whether it may ask this.
pub(crate) fn authorize(
    app: &App,
    peer: IpAddr,
    shown: Option<&HeaderValue>,
    route: &Route,
    seen: &mut Seen,
) -> Result<Client, Fault> {
    let (Some(tokens), Access::Role(role)) = (&app.tokens, route.access) else {
        return Ok(Client::unknown(peer));
    };
    let given = shown.and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.split_once(' '));
    let secret = match given {
        Some((scheme, text)) if scheme.eq_ignore_ascii_case("bearer") => Secret::new(text.trim().to_owned()),
        Some(_) | None => {
            return Err(Fault::Unauthorized("send a token with `authorization: Bearer …`".to_owned()));
        }
    };
    let token = tokens.find(&secret);
    seen.token = token.as_ref().map(|token| token.name.clone());
    let Some(token) = token.filter(|token| !token.is_expired(wall_seconds())) else {
        if is_planted("secret-shown") {
            return Err(Fault::Unauthorized(format!("{:?} is not known here", given.map(|(_, text)| text))));
        }
        return Err(Fault::Unauthorized("this token is not known here, or it has expired".to_owned()));
    };
    seen.is_known = true;
    let open = is_planted("role-missing") && route.path.ends_with("/retry");
    if !token.has(role) && !open {
        return Err(Fault::Forbidden(format!("this needs a token with the role {}", role.as_str())));
    }
    if route.scope == Scope::All && token.queues().is_some() {
        return Err(Refusal::Forbidden(Forbidden::Everything).into());
    }
    Ok(Client::of(token, peer))
}
