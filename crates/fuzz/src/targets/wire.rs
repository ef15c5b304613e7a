//! JSON between server and client, read by either side.

use orchestrix_core::wire;
use orchestrix_server::http::{ROUTES, fuzz_api};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The first byte chooses the route.
pub(super) fn bodies(input: &[u8]) {
    let Some((&choice, body)) = input.split_first() else { return };
    let route = &ROUTES[usize::from(choice) % ROUTES.len()];
    match fuzz_api::body(route, body) {
        Some(Ok(understood)) if !understood.is_empty() => {
            let again = fuzz_api::body(route, &understood).expect("the route has a body");
            assert_eq!(again.as_ref(), Ok(&understood), "what was understood is understood again");
        }
        Some(Err(why)) => assert!(why.len() <= 2_000 + 8 * body.len(), "a complaint is about the body"),
        Some(Ok(_)) | None => {}
    }
}

/// The first byte chooses the type.
pub(super) fn answers(input: &[u8]) {
    const TYPES: [fn(&[u8]); 18] = [
        again::<wire::Submitted>,
        again::<wire::SubmittedBatch>,
        again::<wire::Leases>,
        again::<wire::Extended>,
        again::<wire::WorkerExtended>,
        again::<wire::Outcome>,
        again::<wire::CompletedBatch>,
        again::<wire::TaskView>,
        again::<wire::TaskPage>,
        again::<wire::Explanation>,
        again::<wire::LogAppended>,
        again::<wire::LogPage>,
        again::<wire::QueueList>,
        again::<wire::WorkerList>,
        again::<wire::Cluster>,
        again::<wire::Health>,
        again::<wire::Problem>,
        again::<wire::events::StreamedEvent>,
    ];
    let Some((&choice, body)) = input.split_first() else { return };
    TYPES[usize::from(choice) % TYPES.len()](body);
}

/// The first byte chooses the channel.
pub(super) fn messages(input: &[u8]) {
    const TYPES: [fn(&str); 9] = [
        message::<wire::bus::Dispatch>,
        message::<wire::bus::Assigned>,
        message::<wire::bus::JobStatus>,
        message::<wire::bus::JobLogs>,
        message::<wire::bus::JobCancel>,
        message::<wire::bus::Handoff>,
        message::<wire::bus::HandoffAck>,
        message::<wire::bus::WorkerHeartbeat>,
        message::<wire::bus::CoordinatorHeartbeat>,
    ];
    let Some((&choice, data)) = input.split_first() else { return };
    if let Ok(data) = str::from_utf8(data) {
        TYPES[usize::from(choice) % TYPES.len()](data);
    }
}

fn message<T: DeserializeOwned + Serialize>(data: &str) {
    let Ok(message) = wire::bus::read::<T>(data) else { return };
    let written = wire::bus::write(&message);
    let again: T = wire::bus::read(&written).expect("what we write can be read");
    assert_eq!(wire::bus::write(&again), written);
}

/// What was read is written, and read as the same.
fn again<T: DeserializeOwned + Serialize>(body: &[u8]) {
    let Ok(answer) = serde_json::from_slice::<T>(body) else { return };
    let written = serde_json::to_vec(&answer).expect("an answer can be written");
    let again: T = serde_json::from_slice(&written).expect("what we write can be read");
    assert_eq!(serde_json::to_vec(&again).ok(), Some(written));
}
