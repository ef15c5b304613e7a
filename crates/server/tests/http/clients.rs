//! Every route has a method of the client crate, or a reason to have none; and it is counted under its own labels.

use orchestrix_client::{Client, TaskQuery, new_task};
use orchestrix_core::wire::{
    Complete, CompleteItem, Fail, Heartbeat, Lead, LeaseQueues, LogAppend, Release, ServiceChange,
};
use orchestrix_core::{LeaseId, Name, Position, TaskId};
use orchestrix_server::http::{Endpoint, ROUTES};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::kit::{start, within};
use crate::scopes::ask;

const TASK: TaskId = TaskId(3);
const LEASE: LeaseId = LeaseId(4);

/// Asks for something by the client; where it cannot, why.
async fn ask_by_client(client: &Client, endpoint: Endpoint) -> Result<(), &'static str> {
    let name = |name: &str| Name::new(name).unwrap();
    let under_lease = json!({ "lease_id": LEASE });
    match endpoint {
        Endpoint::Submit => drop(client.submit(&new_task("mail", &1).unwrap()).await),
        Endpoint::SubmitBatch => drop(client.submit_batch(vec![new_task("mail", &1).unwrap()]).await),
        Endpoint::LeaseQueues => {
            let request: LeaseQueues = body(json!({ "queues": ["mail"], "worker": "w" }));
            drop(client.lease(&request).await);
        }
        Endpoint::Heartbeat => drop(client.heartbeat(TASK, &body::<Heartbeat>(under_lease)).await),
        Endpoint::WorkerHeartbeat => drop(client.heartbeat_worker(&name("w"), vec![LEASE]).await),
        Endpoint::Complete => drop(client.complete(TASK, &body::<Complete>(under_lease)).await),
        Endpoint::CompleteBatch => {
            let item: CompleteItem = body(json!({ "task_id": TASK, "lease_id": LEASE }));
            drop(client.complete_batch(vec![item]).await);
        }
        Endpoint::Fail => {
            drop(client.fail(TASK, &body::<Fail>(json!({ "lease_id": LEASE, "error": "no" }))).await);
        }
        Endpoint::Release => drop(client.release(TASK, &body::<Release>(under_lease)).await),
        Endpoint::AppendLogs => {
            let lines: LogAppend = body(json!({ "lease_id": LEASE, "lines": [] }));
            drop(client.append_logs(TASK, &lines).await);
        }
        Endpoint::Cancel => drop(client.cancel(TASK).await),
        Endpoint::Retry => drop(client.retry(TASK).await),
        Endpoint::ListTasks => drop(client.tasks(&TaskQuery::default()).await),
        Endpoint::Task => drop(client.task(TASK).await),
        Endpoint::Explain => drop(client.explain(TASK).await),
        Endpoint::Logs => drop(client.logs(TASK, None, 0, None).await),
        Endpoint::Queues => drop(client.queues().await),
        Endpoint::Workers => drop(client.workers().await),
        Endpoint::Cluster => drop(client.cluster().await),
        Endpoint::Lead => drop(client.lead(&body::<Lead>(json!({ "force": true }))).await),
        Endpoint::Services => drop(client.services(None).await),
        Endpoint::Service => drop(client.service(&name("s")).await),
        Endpoint::ChangeService => {
            let change: ServiceChange = body(json!({ "shard_count": 2 }));
            drop(client.change_service(&name("s"), &change).await);
        }
        Endpoint::Events => drop(client.events(Some(Position(0))).next().await),
        Endpoint::Health => drop(client.health().await),
        Endpoint::LeaseQueue => return Err("a lease from several queues may name one"),
        Endpoint::ShardRegister
        | Endpoint::ShardHeartbeat
        | Endpoint::ShardDeregister
        | Endpoint::ShardAssignments => return Err("the workers of the client speak ZeroMQ"),
        Endpoint::Batches | Endpoint::Link => return Err("only other nodes ask for it"),
        Endpoint::ClusterNews => return Err("it is for monitoring; the client shows who leads"),
        Endpoint::Ready => return Err("load balancers ask for it"),
        Endpoint::Metrics => return Err("Prometheus asks for it"),
        Endpoint::OpenApi => return Err("generators of clients ask for it"),
        Endpoint::Dashboard | Endpoint::DashboardScript | Endpoint::DashboardStyle => {
            return Err("browsers ask for it");
        }
    }
    Ok(())
}

fn body<T: DeserializeOwned>(fields: Value) -> T {
    serde_json::from_value(fields).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_has_a_client_and_a_metrics_label() {
    let server = start().await;
    let client = Client::builder(&format!("http://{}", server.address)).retries(0).build().unwrap();
    let mut missing = Vec::new();
    for route in ROUTES {
        let labels = format!("{{method=\"{}\",route=\"{}\",", route.verb.as_str(), route.path);
        let series = format!("orchestrix_http_requests_total{labels}");
        let is_counted = async || server.get("/metrics").await.text().contains(&series);
        assert!(!is_counted().await || route.endpoint == Endpoint::Metrics, "{route:?} was asked before");
        let by_client = within(ask_by_client(&client, route.endpoint)).await;
        if by_client.is_err() {
            let parts = route.path.split('/').map(|part| if part.starts_with('{') { "2" } else { part });
            let path = parts.collect::<Vec<_>>().join("/");
            ask(&server, None, route, &path, &Value::Null).await;
        }
        if !is_counted().await {
            missing.push(format!("{route:?} is not asked, or not counted ({by_client:?})"));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    server.stop().await;
}
