//! `orchestrix queues`, `workers` and `nodes`: the whole at a glance.

use std::time::{Duration, Instant};

use orchestrix_core::wire::{Cluster, Lead};

use super::Context;
use super::fail::Fail;
use super::out::{Out, Style};
use super::table::{Align, Cell, Table};
use super::time::{now, relative, show_duration};

/// How long `nodes --lead` waits until the node leads, and how often it looks.
const PASSED: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(200);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  orchestrix queues
  orchestrix queues --json | jq 'select(.failed > 0) | .queue'")]
pub(crate) struct QueuesArgs {}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  orchestrix workers
  orchestrix workers --json | jq -s length")]
pub(crate) struct WorkersArgs {}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  orchestrix nodes
  orchestrix nodes --json | jq -r .leader
  orchestrix nodes --why
  orchestrix nodes --lead node-2")]
pub(crate) struct NodesArgs {
    /// Show what keeps the cluster from having a working leader
    #[arg(long)]
    why: bool,
    /// Transfer leadership to this node; with an empty name there is an election
    #[arg(long, value_name = "NODE")]
    lead: Option<String>,
    /// Transfer even if the node is far behind
    #[arg(long, requires = "lead")]
    force: bool,
}

pub(crate) async fn queues(context: &Context) -> Result<(), Fail> {
    let (out, list) = (context.out, context.client.queues().await?);
    if out.is_json() {
        return list.queues.iter().try_for_each(|queue| out.json(queue));
    }
    if list.queues.is_empty() {
        out.note("no queue has tasks; submit one with `orchestrix submit QUEUE PAYLOAD`");
        return Ok(());
    }
    let mut table = Table::new(&[
        ("QUEUE", Align::Left),
        ("READY", Align::Right),
        ("DELAYED", Align::Right),
        ("LEASED", Align::Right),
        ("COMPLETED", Align::Right),
        ("FAILED", Align::Right),
        ("CANCELLED", Align::Right),
        ("IN/S", Align::Right),
        ("DONE/S", Align::Right),
        ("OLDEST", Align::Right),
        ("NEXT", Align::Right),
        ("ASKED", Align::Left),
    ]);
    let now = now();
    for queue in list.queues {
        table.row(vec![
            Cell::styled(queue.queue.as_str(), Style::Bold),
            count(queue.ready, Style::Wait),
            count(queue.delayed, Style::Wait),
            count(queue.leased, Style::Busy),
            count(queue.completed, Style::Good),
            count(queue.failed, Style::Bad),
            count(queue.cancelled, Style::Plain),
            Cell::from(format!("{:.1}", queue.submitted_per_s)),
            Cell::from(format!("{:.1}", queue.completed_per_s)),
            Cell::from(queue.oldest_ms.map(show_duration).unwrap_or_default()),
            Cell::from(queue.next_ms.map(show_duration).unwrap_or_default()),
            Cell::from(queue.asked_at.map_or("never".to_owned(), |at| relative(at, now))),
        ]);
    }
    out.table(&table)
}

pub(crate) async fn workers(context: &Context) -> Result<(), Fail> {
    let (out, list) = (context.out, context.client.workers().await?);
    if out.is_json() {
        return list.workers.iter().try_for_each(|worker| out.json(worker));
    }
    if list.workers.is_empty() {
        out.note("no worker seen recently; start one with `orchestrix work QUEUE -- COMMAND`");
        return Ok(());
    }
    let mut table = Table::new(&[
        ("WORKER", Align::Left),
        ("LEASES", Align::Right),
        ("CAPACITY", Align::Right),
        ("SEEN", Align::Left),
    ]);
    let now = now();
    for worker in list.workers {
        table.row(vec![
            Cell::styled(worker.worker.as_str(), Style::Bold),
            count(worker.leases, Style::Busy),
            Cell::from(worker.capacity.map(|capacity| capacity.to_string()).unwrap_or_default()),
            Cell::from(relative(worker.seen_at, now)),
        ]);
    }
    out.table(&table)
}

pub(crate) async fn nodes(context: &Context, args: NodesArgs) -> Result<(), Fail> {
    let NodesArgs { why, lead, force } = args;
    let out = context.out;
    let cluster = match lead {
        Some(name) => {
            let desired = Some(name).filter(|name| !name.is_empty());
            pass(context, Lead { desired, force }).await?
        }
        None => context.client.cluster().await?,
    };
    if out.is_json() {
        return out.json(&cluster);
    }
    if why {
        return say_why(out, &cluster);
    }
    let leader = cluster.leader.as_deref().unwrap_or("none");
    let mut table = Table::new(&[
        ("NODE", Align::Left),
        ("ROLE", Align::Left),
        ("STATE", Align::Left),
        ("LOAD", Align::Right),
        ("POSITION", Align::Right),
        ("LAG", Align::Right),
        ("SEEN", Align::Right),
        ("ADDRESS", Align::Left),
    ]);
    for node in &cluster.nodes {
        let state = if node.state == "ACTIVE" { Style::Good } else { Style::Bad };
        table.row(vec![
            Cell::styled(&node.name, Style::Bold),
            Cell::from(&node.role),
            Cell::styled(&node.state, state),
            Cell::from(node.load),
            Cell::from(node.position),
            Cell::from(node.lag),
            Cell::from(node.seen_ms.map(seen).unwrap_or_default()),
            Cell::from(node.address.as_deref().unwrap_or_default()),
        ]);
    }
    out.table(&table)?;
    let sign = cluster.leader.as_ref().map(|_| last_sign(&cluster)).unwrap_or_default();
    out.note(&format!(
        "leader {leader}: term {}, epoch {}, position {}{sign}",
        cluster.term, cluster.epoch, cluster.position
    ));
    Ok(())
}

/// Transfers leadership, and returns the cluster when there is a leader. The old leader answers at once.
async fn pass(context: &Context, lead: Lead) -> Result<Cluster, Fail> {
    let (out, client) = (context.out, &context.client);
    let before = client.cluster().await?;
    let mut cluster = client.lead(&lead).await?;
    let began = Instant::now();
    let is_done = |now: &Cluster| match &lead.desired {
        Some(desired) => now.leader.as_ref() == Some(desired),
        None => now.leader.is_some() && now.term > before.term,
    };
    while !is_done(&cluster) && began.elapsed() < PASSED {
        tokio::time::sleep(LOOK).await;
        // The node that answers may be about to lead, or to hear who does.
        cluster = client.cluster().await?;
    }
    let had = before.leader.as_deref().unwrap_or("none");
    let told = match &cluster.leader {
        Some(leader) if is_done(&cluster) && leader == had => format!("{leader} is still the leader"),
        Some(leader) if is_done(&cluster) => format!("leadership moved from {had} to {leader}"),
        Some(_) | None => "the transfer is not complete; check again with `orchestrix nodes`".to_owned(),
    };
    if !out.is_json() {
        out.note(&told);
    }
    Ok(cluster)
}

fn say_why(out: Out, cluster: &Cluster) -> Result<(), Fail> {
    match &cluster.leader {
        Some(leader) if cluster.why.is_empty() => {
            out.line(&format!("healthy: {leader} is the leader{}", last_sign(cluster)))
        }
        Some(_) | None => cluster.why.iter().try_for_each(|reason| out.line(reason)),
    }
}

fn seen(age: u64) -> String {
    if age == 0 { "now".to_owned() } else { format!("{} ago", show_duration(age)) }
}

/// How old it is what is known of the leader, where that is not the one who answers.
fn last_sign(cluster: &Cluster) -> String {
    let age = cluster.leader_seen_ms.filter(|age| *age > 0);
    age.map_or_else(String::new, |age| format!("; last seen {} ago", show_duration(age)))
}

/// A number that is only worth a colour when it is not zero.
fn count(number: u64, style: Style) -> Cell {
    Cell::styled(number.to_string(), if number == 0 { Style::Dim } else { style })
}
