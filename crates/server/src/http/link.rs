//! Accepts a node link on an ordinary connection, so that address, token and limits are those of every request.

use std::sync::Arc;

use http::header::{CONNECTION, UPGRADE};
use http::{HeaderValue, Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use crate::http::NodeLink;
use crate::http::accept::ConnectionPermits;
use crate::http::answer::Body;
use crate::http::error::Fault;
use crate::http::handle::Call;
use crate::link::{PROTOCOL, leading};

/// Answers that the connection is a link from now on, and serves it.
pub(crate) fn take(call: &Call<'_>) -> Result<Response<Body>, Fault> {
    let (app, peer) = (Arc::clone(call.app), call.peer);
    let asks = call.head.headers.get(UPGRADE).is_some_and(|value| value.as_bytes() == PROTOCOL.as_bytes());
    let upgrade = call
        .head
        .extensions
        .get::<OnUpgrade>()
        .cloned()
        .filter(|_| asks && app.node_link != NodeLink::Absent);
    let Some(upgrade) = upgrade else {
        return Err(Fault::UpgradeRequired(format!(
            "send the headers `connection: upgrade` and `upgrade: {PROTOCOL}`"
        )));
    };
    let max = app.limits.connections;
    let Some(permit) = ConnectionPermits::take(&app.permits, peer, max, max) else {
        return Err(Fault::Overloaded("there are too many connections; close some or try later".to_owned()));
    };
    let node = ConnectionPermits::node_at(&app.permits, peer);
    let ended = call.client.ended();
    app.clone().link_tasks.spawn(async move {
        let (_permit, _node) = (permit, node);
        match upgrade.await {
            Ok(io) => leading::serve(TokioIo::new(io), app, ended).await,
            Err(error) => tracing::debug!(%error, "a node link did not begin"),
        }
    });
    let mut response = Response::new(Body::whole(Default::default()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static(PROTOCOL));
    Ok(response)
}
