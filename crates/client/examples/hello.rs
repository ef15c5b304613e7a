//! Submits a greeting and executes it. Start a coordinator with `orchestrix serve`, then run this.

use orchestrix_client::{Client, Job, JobError, Worker, new_task};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

#[derive(Serialize, Deserialize)]
struct Greeting {
    name: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let result = greet("http://127.0.0.1:3000").await?;
    tracing::info!("the result is {result}");
    Ok(())
}

/// Submits a task, works until it is done, and answers with its result.
pub(crate) async fn greet(url: &str) -> Result<String, orchestrix_client::Error> {
    let client = Client::new(url)?;
    let submitted = client.submit(&new_task("hello", &Greeting { name: "Ada".to_owned() })?).await?;

    let stop = CancellationToken::new();
    let done = stop.clone();
    let handler = move |job: Job| {
        let done = done.clone();
        async move {
            let greeting: Greeting = job.parse()?;
            job.log(&format!("greeting {} under token {}", greeting.name, job.lease_id()));
            done.cancel();
            Ok::<_, JobError>(format!("hello {}", greeting.name))
        }
    };
    // Told to stop, the worker still tells the outcome of what runs.
    Worker::new(client.clone(), ["hello"]).concurrency(4).run(stop, handler).await?;

    let task = client.task(submitted.id).await?;
    Ok(task.result.map(|result| result.as_str().to_owned()).unwrap_or_default())
}
