//! A store that is killed without a warning, and starts again on what is in its folder.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{new_prefix, own_store, place};
use crate::support::writers;

const KILLS: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(5);

#[test]
fn nothing_acknowledged_is_lost_when_the_store_is_killed() {
    let (mut server, ports) = own_store();
    let prefix = new_prefix();
    writers::nothing_acknowledged_is_lost(&mut server, KILLS, &|| {
        Arc::new(place(ports.s3, &prefix, TIMEOUT))
    });
}
