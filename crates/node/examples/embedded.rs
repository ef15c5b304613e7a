//! A coordinator inside another program: no server, no port, one folder.
//!
//! `cargo run -p orchestrix-node --example embedded -- /tmp/orchestrix-embedded`

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;

use orchestrix_core::wire::{Complete, LeaseQueues, Submit};
use orchestrix_core::{Json, Name};
use orchestrix_node::{Options, Storage, open};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).map(PathBuf::from);
    let storage = folder.map_or(Storage::Memory, Storage::File);
    let (node, recovered) = open(&storage, Options::default())?;
    let mut out = std::io::stdout();
    writeln!(out, "the journal has {} events", recovered.position)?;

    let queue = Name::new("greetings")?;
    let (task, _) = node.submit(Submit::new(queue.clone(), Json::parse(r#"{"name":"Ada"}"#)?)).await?;
    writeln!(out, "task {} is {}", task.id, task.state)?;

    let leases = node
        .lease(LeaseQueues {
            queues: vec![queue],
            worker: Name::new("inside")?,
            max: 1,
            lease_ms: 30_000,
            wait_ms: 0,
            request_id: None,
            capacity: None,
        })
        .await?;
    for leased in leases.leases {
        writeln!(out, "attempt {} of task {}: {}", leased.attempt, leased.task_id, leased.payload.as_str())?;
        let result = Some(Json::parse(r#""Hello, Ada""#)?);
        let done = Complete { lease_id: leased.lease_id, worker: None, result };
        let outcome = node.complete(leased.task_id, done).await?;
        writeln!(out, "task {} is {}", outcome.id, outcome.state)?;
    }
    Ok(node.stop().await?)
}
