//! Every route of the table by every role, with and without a limit to a queue, at the leader and at a follower, and what
//! ZeroMQ maps to routes. What a caller may see is written down here once more, apart from the table that is tested.

use std::net::SocketAddr;
use std::sync::Arc;

use orchestrix_server::http::{Access, Endpoint, Options, ROUTES, Route};
use orchestrix_server::tokens::{Role, Secret, Tokens};
use orchestrix_server::zmq;
use orchestrix_zmtp::SocketType;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::access::secret;
use crate::cluster::{OneOf, join_as, place};
use crate::kit::{Answer, Door, parse_answer, within};
use crate::zmq::connect;

/// The queue of limited tokens, and one of somebody else.
const OWN: &str = "mail";
const FOREIGN: &str = "payroll";

/// What a route concerns, seen from outside.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Concerns {
    /// Nothing of any queue.
    Nobody,
    /// The queues that the request names.
    NamedQueues,
    /// The queue of the task that the request names.
    QueueOfTask,
    /// The caller's own queues, whichever these are.
    OwnQueues,
    /// All queues, or the cluster as a whole.
    Everything,
}

fn concerns(endpoint: Endpoint) -> Concerns {
    match endpoint {
        Endpoint::Health
        | Endpoint::Ready
        | Endpoint::OpenApi
        | Endpoint::Dashboard
        | Endpoint::DashboardScript
        | Endpoint::DashboardStyle => Concerns::Nobody,
        Endpoint::Submit
        | Endpoint::SubmitBatch
        | Endpoint::LeaseQueue
        | Endpoint::LeaseQueues
        | Endpoint::ListTasks => Concerns::NamedQueues,
        Endpoint::Complete
        | Endpoint::Heartbeat
        | Endpoint::Fail
        | Endpoint::Release
        | Endpoint::AppendLogs
        | Endpoint::Cancel
        | Endpoint::Retry
        | Endpoint::Task
        | Endpoint::Explain
        | Endpoint::Logs => Concerns::QueueOfTask,
        Endpoint::CompleteBatch | Endpoint::WorkerHeartbeat | Endpoint::Queues | Endpoint::Metrics => {
            Concerns::OwnQueues
        }
        Endpoint::Workers
        | Endpoint::Cluster
        | Endpoint::ClusterNews
        | Endpoint::Batches
        | Endpoint::Link
        | Endpoint::Services
        | Endpoint::Service
        | Endpoint::ChangeService
        | Endpoint::ShardRegister
        | Endpoint::ShardHeartbeat
        | Endpoint::ShardDeregister
        | Endpoint::ShardAssignments
        | Endpoint::Lead
        | Endpoint::Events => Concerns::Everything,
    }
}

/// A task that is there, and its lease.
#[derive(Clone, Copy, Debug)]
struct Known {
    queue: &'static str,
    task: u64,
    lease: u64,
}

/// A request that is right in everything but who asks; it changes nothing of tasks that are there, and moves no leader.
fn request(route: &Route, known: Known) -> (String, Value) {
    let Known { queue, task, lease } = known;
    let other_lease = json!({ "lease_id": lease + 1_000_000, "lines": [], "error": "x" });
    let only = |fields: &[&str]| {
        let kept =
            other_lease.as_object().unwrap().iter().filter(|(name, _)| fields.contains(&name.as_str()));
        Value::Object(kept.map(|(name, value)| (name.clone(), value.clone())).collect())
    };
    let body = match route.endpoint {
        Endpoint::Submit => json!({ "queue": queue, "payload": 1 }),
        Endpoint::SubmitBatch => json!({ "tasks": [{ "queue": queue, "payload": 1 }] }),
        Endpoint::LeaseQueue => json!({ "worker": "idle", "max": 1, "lease_ms": 1_000 }),
        Endpoint::LeaseQueues => json!({ "queues": [queue], "worker": "idle", "lease_ms": 1_000 }),
        Endpoint::Complete | Endpoint::Heartbeat | Endpoint::Release => only(&["lease_id"]),
        Endpoint::Fail => only(&["lease_id", "error"]),
        Endpoint::AppendLogs => only(&["lease_id", "lines"]),
        Endpoint::CompleteBatch => json!({ "items": [{ "task_id": task, "lease_id": lease + 1_000_000 }] }),
        Endpoint::WorkerHeartbeat => json!({ "leases": [lease] }),
        Endpoint::Lead => json!({ "desired": "nobody" }),
        Endpoint::ChangeService => json!({ "shard_count": 2 }),
        Endpoint::ShardRegister => json!({ "maxShardCount": 2, "session": "x" }),
        Endpoint::ShardHeartbeat => {
            json!({ "maxShardCount": 2, "assignedShards": [], "session": "x" })
        }
        Endpoint::ShardDeregister => json!({ "session": "x" }),
        Endpoint::Cancel
        | Endpoint::Retry
        | Endpoint::ListTasks
        | Endpoint::Task
        | Endpoint::Explain
        | Endpoint::Logs
        | Endpoint::Queues
        | Endpoint::Workers
        | Endpoint::Cluster
        | Endpoint::ClusterNews
        | Endpoint::Batches
        | Endpoint::Link
        | Endpoint::Services
        | Endpoint::Service
        | Endpoint::ShardAssignments
        | Endpoint::Events
        | Endpoint::Health
        | Endpoint::Ready
        | Endpoint::Metrics
        | Endpoint::OpenApi
        | Endpoint::Dashboard
        | Endpoint::DashboardScript
        | Endpoint::DashboardStyle => Value::Null,
    };
    let mut query = String::new();
    if route.endpoint == Endpoint::ListTasks {
        query = format!("?queue={queue}");
    }
    if route.endpoint == Endpoint::Batches {
        query = "?after=0".to_owned();
    }
    if route.endpoint == Endpoint::ShardAssignments {
        query = "?session=x".to_owned();
    }
    let path = route.path.replace("{id}", &task.to_string()).replace("{queue}", queue);
    let path = path.replace("{worker}", if route.path.contains("{service}") { "w" } else { "busy" });
    (path.replace("{service}", "s") + &query, body)
}

/// A token for every role, and one more for every role but `node` that is limited to one queue.
fn tokens_file() -> String {
    let entry = |name: &str, role: &str, more: &str| {
        let digest: String = Sha256::digest(secret(name)).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("[[token]]\nname = \"{name}\"\nroles = [\"{role}\"]\nsha256 = \"{digest}\"\n{more}\n")
    };
    let unlimited = Role::ALL.map(|role| entry(role.as_str(), role.as_str(), ""));
    let limited = Role::ALL.into_iter().filter(|role| *role != Role::Node).map(|role| {
        entry(&format!("{}-limited", role.as_str()), role.as_str(), &format!("queues = [\"{OWN}\"]"))
    });
    unlimited.into_iter().chain(limited).collect()
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
struct Asker {
    role: Role,
    limited: bool,
}

impl Asker {
    fn all() -> Vec<Self> {
        let of = |role| [false, true].map(|limited| Self { role, limited });
        Role::ALL
            .into_iter()
            .flat_map(of)
            .filter(|asker| asker.role != Role::Node || !asker.limited)
            .collect()
    }

    fn secret(self) -> String {
        secret(&format!("{}{}", self.role.as_str(), if self.limited { "-limited" } else { "" }))
    }

    fn has(self, access: Access) -> bool {
        match access {
            Access::Public => true,
            Access::Role(role) => self.role == role || self.role == Role::Admin,
        }
    }
}

/// The answer to a request; of a stream, only how it begins.
pub(crate) async fn ask(door: &Door, token: Option<&str>, route: &Route, path: &str, body: &Value) -> Answer {
    let mut request = format!("{} {path} HTTP/1.1\r\nhost: {}\r\n", route.verb.as_str(), door.address);
    if let Some(token) = token {
        request.push_str(&format!("authorization: Bearer {token}\r\n"));
    }
    let body = if body.is_null() { String::new() } else { body.to_string() };
    if !body.is_empty() {
        request.push_str("content-type: application/json\r\n");
    }
    request.push_str(&format!("connection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
    let mut stream = door.connect().await;
    stream.write_all(request.as_bytes()).await.unwrap();
    let (mut bytes, mut more) = (Vec::new(), [0; 4096]);
    loop {
        let read = within(stream.read(&mut more)).await.unwrap_or(0);
        bytes.extend_from_slice(&more[..read]);
        let begun = bytes.windows(4).any(|window| window == b"\r\n\r\n");
        let is_stream = begun && parse_answer(&bytes).headers.contains_key("transfer-encoding");
        if read == 0 || is_stream {
            return parse_answer(&bytes);
        }
    }
}

/// Two nodes, each with HTTP and ZeroMQ; the first leads.
async fn cluster() -> ([OneOf; 2], [SocketAddr; 2]) {
    let place = place();
    let join = async |name: &str| {
        let listening = zmq::listen(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listening.address();
        let tokens = Some(Tokens::parse(&tokens_file()).unwrap());
        let node_token = Some(Secret::new(secret("node")));
        let options = Options { tokens, node_token, zmq: Some(listening), ..Options::default() };
        (join_as(Arc::new(place.clone()), name, true, options).await, address)
    };
    let (leader, first) = join("a").await;
    leader.leads().await;
    let (follower, second) = join("b").await;
    follower.sees_leader("a").await;
    ([leader, follower], [first, second])
}

async fn leased(door: &Door, queue: &'static str) -> Known {
    let token = format!("Bearer {}", secret("admin"));
    let headers = [("authorization", token.as_str()), ("content-type", "application/json")];
    let body = json!({ "queue": queue, "payload": "a canary", "max_attempts": 100 }).to_string();
    let submitted = door.send("POST", "/v1/tasks", &headers, Some(body.as_bytes())).await.json();
    let body = json!({ "worker": "busy", "lease_ms": 600_000 }).to_string();
    let lease = format!("/v1/queues/{queue}/lease");
    let leases = door.send("POST", &lease, &headers, Some(body.as_bytes())).await.json();
    let lease = leases["leases"][0]["lease_id"].as_u64().unwrap();
    Known { queue, task: submitted["id"].as_u64().unwrap(), lease }
}

/// What is wrong with an answer, if anything is.
fn judge(asker: Asker, route: &Route, known: Known, answer: &Answer, leads: bool) -> Result<(), String> {
    let is_foreign = asker.limited && known.queue == FOREIGN;
    let must = |status: u16, code: &str| {
        let is_so = answer.status == status && answer.json()["code"] == code;
        is_so.then_some(()).ok_or_else(|| format!("it must be {status} {code}"))
    };
    if !asker.has(route.access) {
        return must(403, "forbidden");
    }
    match concerns(route.endpoint) {
        Concerns::Everything if asker.limited => return must(403, "forbidden"),
        Concerns::NamedQueues if is_foreign => return must(403, "forbidden"),
        Concerns::QueueOfTask if is_foreign => return must(404, "not_found"),
        Concerns::OwnQueues if asker.limited && answer.text().contains(FOREIGN) => {
            return Err("it names another queue".to_owned());
        }
        Concerns::Nobody
        | Concerns::NamedQueues
        | Concerns::QueueOfTask
        | Concerns::OwnQueues
        | Concerns::Everything => {}
    }
    let is_served = match answer.status {
        // Whether the worker is known is another question.
        404 => route.path.contains("{service}"),
        503 => route.endpoint == Endpoint::Batches && !leads,
        status => status < 500 && status != 401 && status != 403 && status != 400 && status != 405,
    };
    is_served.then_some(()).ok_or_else(|| "it must be served".to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_is_served_within_role_and_queues_only() {
    let (nodes, _) = cluster().await;
    let known = [leased(&nodes[0], OWN).await, leased(&nodes[0], FOREIGN).await];
    let mut wrong = Vec::new();
    for (node, leads) in nodes.iter().zip([true, false]) {
        // Cancelling asks the worker only, so it comes to the tasks of all others just as well.
        for route in ROUTES {
            for asker in Asker::all() {
                for known in known {
                    let (path, body) = request(route, known);
                    let answer = ask(node, Some(&asker.secret()), route, &path, &body).await;
                    if let Err(why) = judge(asker, route, known, &answer, leads) {
                        let node = if leads { "leader" } else { "follower" };
                        let verb = route.verb.as_str();
                        wrong.push(format!("{asker:?} {verb} {path} at the {node}: {why}, not {answer:?}"));
                    }
                }
            }
            for token in [None, Some("orx_unknown")] {
                let (path, body) = request(route, known[0]);
                let answer = ask(node, token, route, &path, &body).await;
                if (answer.status == 401) == (route.access == Access::Public) {
                    wrong.push(format!("{token:?} {path}: {answer:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_task_is_answered_as_one_that_is_not_there() {
    let (nodes, _) = cluster().await;
    let foreign = leased(&nodes[0], FOREIGN).await;
    let absent = Known { task: 999_999, lease: 888_888, ..foreign };
    let admin = Asker { role: Role::Admin, limited: true };
    let of_tasks = ROUTES.iter().filter(|route| {
        let endpoint = route.endpoint;
        concerns(endpoint) == Concerns::QueueOfTask
            || [Endpoint::CompleteBatch, Endpoint::WorkerHeartbeat].contains(&endpoint)
    });
    for route in of_tasks {
        for node in &nodes {
            let said = async |known, with: fn(Value) -> Value| {
                let (path, body) = request(route, known);
                let answer = ask(node, Some(&admin.secret()), route, &path, &with(body)).await;
                let mut said = answer.json();
                said.as_object_mut().unwrap().remove("request_id");
                let text = said.to_string().replace(&format!("task {};", known.task), "TASK");
                (answer.status, text.replace(&format!("[{}]", known.lease), "LEASE"))
            };
            // Nor is it told apart by what else is wrong with the request.
            for with in [|body| body, |_| json!({ "more": 1 })] {
                assert_eq!(said(foreign, with).await, said(absent, with).await, "{}", route.path);
            }
        }
    }
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_of_a_limited_token_are_those_of_its_queues() {
    let (nodes, _) = cluster().await;
    for queue in [OWN, FOREIGN] {
        leased(&nodes[0], queue).await;
    }
    let scrape = async |limited| {
        let token = format!("Bearer {}", Asker { role: Role::Metrics, limited }.secret());
        let answer = nodes[0].send("GET", "/metrics", &[("authorization", &token)], None).await;
        let lines = answer.text().lines().filter(|line| !line.starts_with('#')).map(str::to_owned);
        lines.collect::<Vec<_>>()
    };
    let limited = scrape(true).await;
    assert!(limited.iter().any(|line| line == "orchestrix_queue_leased{queue=\"mail\"} 1"), "{limited:?}");
    // A total is about the queues of others, too.
    let foreign: Vec<_> = limited.iter().filter(|line| !line.contains("queue=\"mail\"")).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    let all = scrape(false).await;
    assert!(all.iter().any(|line| line == "orchestrix_leases 2"), "{all:?}");
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_zeromq_are_for_the_same_tokens_as_their_routes() {
    let (nodes, sockets) = cluster().await;
    for address in sockets {
        let mut dealer = connect(address, SocketType::Dealer).await;
        for asker in Asker::all() {
            for kind in ["register", "heartbeat", "deregister"] {
                let service = format!("s{}-{}", address.port(), asker.role.as_str());
                let mut data = json!({"serviceName": service, "workerId": "w", "maxShardCount": 1,
                    "session": "x", "token": asker.secret()});
                if kind == "heartbeat" {
                    data["assignedShards"] = json!([]);
                }
                dealer.say(kind, data).await;
                let may = asker.has(Access::Role(Role::Work)) && !asker.limited;
                if may {
                    dealer.hear_assignment().await;
                } else {
                    assert_eq!(dealer.hear_error().await.0, "forbidden", "{asker:?} {kind}");
                }
            }
        }
    }
    for node in nodes {
        node.stop().await;
    }
}

#[test]
fn a_node_token_with_queues_is_refused() {
    let file = |roles: &str| {
        let digest = "0".repeat(64);
        format!("[[token]]\nname = \"n\"\nroles = [{roles}]\nsha256 = \"{digest}\"\nqueues = [\"mail\"]\n")
    };
    for roles in ["\"node\"", "\"read\", \"node\""] {
        let why = Tokens::parse(&file(roles)).unwrap_err();
        assert!(why.contains("\"n\"") && why.contains("node") && why.contains("queues"), "{why}");
    }
    assert!(Tokens::parse(&file("\"read\"")).is_ok());
}
