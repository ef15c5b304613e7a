//! What a coordinator says of itself when it is ready.

use std::io::{self, IsTerminal};
use std::net::SocketAddr;

use orchestrix_node::Recovered;

use super::Opened;
use crate::http::Listening;
use crate::printing::Printing;

/// Says where everything is. A reader who has gone, or does not read, does not stop the coordinator.
pub(super) fn announce(
    opened: &Opened,
    listening: &Listening,
    shards: &str,
    with_tokens: bool,
    printing: &Printing,
) {
    printing.greet(greeting(opened, listening.address(), shards, with_tokens, io::stdout().is_terminal()));
    if let Some(cut) = &opened.cut {
        tracing::warn!(
            path = %cut.path.display(), offset = cut.offset, bytes = cut.bytes, what = %cut.what,
            "cut a torn end off the journal; nothing that was acknowledged is lost"
        );
    }
}

fn greeting(
    opened: &Opened,
    address: SocketAddr,
    shards: &str,
    with_tokens: bool,
    on_terminal: bool,
) -> String {
    let bold = |text: &str| if on_terminal { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() };
    let access = if with_tokens { "by token" } else { "everyone on this machine may do everything" };
    let mut rows = vec![
        ("address", format!("http://{address}")),
        ("dashboard", format!("http://{address}/")),
        ("shards", shards.to_owned()),
        ("node", opened.node.clone()),
        ("data", opened.place.clone()),
        ("journal", opened.journal.clone()),
    ];
    rows.extend(opened.found.line().map(|line| ("bus", line)));
    rows.push(("access", access.to_owned()));
    if let Some(cut) = &opened.cut {
        rows.push((
            "repaired",
            format!("a torn end of {} bytes was cut off {}", cut.bytes, cut.path.display()),
        ));
    }
    let version = env!("CARGO_PKG_VERSION");
    let rows: String = rows.iter().map(|(name, value)| format!("  {name:<10} {value}\n")).collect();
    format!("{} {version} is ready\n\n{rows}\n", bold("orchestrix"))
}

pub(super) fn journal_line(recovered: &Recovered) -> String {
    let took = recovered.took.as_millis();
    match (recovered.position.0, recovered.snapshot) {
        (0, _) => "new".to_owned(),
        (events, Some(snapshot)) => {
            format!("{events} events recovered in {took} ms, {snapshot} of them by a snapshot")
        }
        (events, None) => format!("{events} events recovered in {took} ms"),
    }
}
