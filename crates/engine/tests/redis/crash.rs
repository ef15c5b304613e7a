//! A server that is killed without a warning, and starts again on what it synced.

use std::sync::Arc;
use std::time::Duration;

use orchestrix_engine::Shared;

use crate::common::{DURABLE, place, redis};
use crate::support::writers;

const KILLS: usize = 12;
const TIMEOUT: Duration = Duration::from_secs(2);

#[test]
fn nothing_acknowledged_is_lost_when_the_server_is_killed() {
    let mut server = redis(&DURABLE);
    let port = server.port();
    assert_eq!(place(port, TIMEOUT).warnings(), Vec::<String>::new());
    writers::nothing_acknowledged_is_lost(&mut server, KILLS, &|| Arc::new(place(port, TIMEOUT)));
}
