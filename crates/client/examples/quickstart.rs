//! A worker for the queue `mail`, and a task for it. Start a coordinator with `make run`, then run this.

use orchestrix_client::{Client, Job, JobError, Worker, new_task};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), orchestrix_client::Error> {
    run("http://127.0.0.1:3000", CancellationToken::new()).await
}

pub(crate) async fn run(url: &str, stop: CancellationToken) -> Result<(), orchestrix_client::Error> {
    let client = Client::new(url)?;
    client.submit(&new_task("mail", &"ada@example.org")?).await?;

    let worker = Worker::new(client, ["mail"]).concurrency(8);
    worker
        .run(stop.clone(), move |job: Job| {
            let stop = stop.clone();
            async move {
                let address: String = job.parse()?;
                job.log(&format!("attempt {} to {address}", job.attempt()));
                stop.cancel(); // One task is enough for an example.
                Ok::<_, JobError>("sent")
            }
        })
        .await
}
