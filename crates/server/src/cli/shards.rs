//! `orchestrix shards`: services at a glance, and the map of one.

use std::collections::BTreeMap;

use orchestrix_core::Name;
use orchestrix_core::wire::{ServiceView, ShardView};

use super::Context;
use super::fail::Fail;
use super::out::{Out, Style};
use super::table::{Align, Cell, Table};
use super::time::show_duration;

/// Shards in one row of the map.
const ROW: usize = 50;
/// One letter for each worker, which it keeps while others come and go; then they begin again.
const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const WITHDRAWN: &str = "~";
const FREE: &str = ".";
/// The mark of a worker that names other shards than its assignment.
const DEAF: &str = "does not listen";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  orchestrix shards
  orchestrix shards --group billing
  orchestrix shards orders
  orchestrix shards orders --json | jq '[.shards[] | select(.state != \"HELD\")] | length'")]
pub(crate) struct ShardsArgs {
    /// The service to show; without it all services are listed
    #[arg(value_parser = Name::new)]
    service: Option<Name>,
    /// Only services of this group
    #[arg(long, value_name = "GROUP", value_parser = Name::new, conflicts_with = "service")]
    group: Option<Name>,
}

pub(crate) async fn run(args: ShardsArgs, context: &Context) -> Result<(), Fail> {
    match args.service {
        Some(service) => {
            let service = context.client.service(&service).await?;
            if context.out.is_json() { context.out.json(&service) } else { draw(context.out, &service) }
        }
        None => list(context, args.group.as_ref()).await,
    }
}

async fn list(context: &Context, group: Option<&Name>) -> Result<(), Fail> {
    let (out, list) = (context.out, context.client.services(group).await?);
    if out.is_json() {
        return list.services.iter().try_for_each(|service| out.json(service));
    }
    if list.services.is_empty() {
        let of_group = group.map(|group| format!(" of group {group}")).unwrap_or_default();
        out.note(&format!("there are no services{of_group}; the first worker that registers creates one"));
        return Ok(());
    }
    let mut table = Table::new(&[
        ("SERVICE", Align::Left),
        ("GROUP", Align::Left),
        ("SHARDS", Align::Right),
        ("WORKERS", Align::Right),
        ("HELD", Align::Right),
        ("MOVING", Align::Right),
        ("FREE", Align::Right),
    ]);
    let count =
        |number: u64, style| Cell::styled(number.to_string(), if number > 0 { style } else { Style::Dim });
    for service in list.services {
        table.row(vec![
            Cell::styled(service.service.as_str(), Style::Bold),
            Cell::from(service.group),
            Cell::from(service.shard_count),
            Cell::from(service.workers),
            count(service.held, Style::Good),
            count(service.withdrawn, Style::Wait),
            count(service.free, Style::Bad),
        ]);
    }
    out.table(&table)
}

fn draw(out: Out, service: &ServiceView) -> Result<(), Fail> {
    let letters: BTreeMap<&Name, usize> =
        service.workers.iter().filter_map(|worker| Some((&worker.worker, worker.place? as usize))).collect();
    for (row, shards) in service.shards.chunks(ROW).enumerate() {
        let blocks: String = shards.iter().map(|shard| block(out, shard, &letters)).collect();
        out.line(&format!("{:>7}  {blocks}", row * ROW))?;
    }
    out.line("")?;
    let mut table = Table::new(&[
        ("", Align::Left),
        ("WORKER", Align::Left),
        ("SHARDS", Align::Right),
        ("MOVING", Align::Right),
        ("CAPACITY", Align::Right),
        ("LEFT", Align::Right),
        ("", Align::Left),
    ]);
    for worker in &service.workers {
        let place = worker.place.map(|place| place as usize);
        let moving =
            |shard: &&ShardView| shard.state == "WITHDRAWN" && shard.worker.as_ref() == Some(&worker.worker);
        table.row(vec![
            place.map_or(Cell::from(""), |place| Cell::styled(letter(place), Style::Block(place))),
            Cell::styled(worker.worker.as_str(), Style::Bold),
            Cell::from(worker.shards.len()),
            Cell::from(service.shards.iter().filter(moving).count()),
            Cell::from(worker.capacity.map(|capacity| capacity.to_string()).unwrap_or_default()),
            Cell::from(show_duration(worker.left_ms)),
            Cell::styled(if worker.listens { "" } else { DEAF }, Style::Wait),
        ]);
    }
    out.table(&table)?;
    let count = |state: &str| service.shards.iter().filter(|shard| shard.state == state).count();
    let (moving, free) = (count("WITHDRAWN"), count("FREE"));
    let mut told = format!(
        "{} of group {}: {} shards, generation {}",
        service.service, service.group, service.shard_count, service.generation
    );
    if moving > 0 {
        told += &format!("; {moving} on their way ({WITHDRAWN})");
    }
    if free > 0 {
        told += &out.paint(Style::Bad, &format!("; {free} without a worker ({FREE})"));
    }
    out.line(&told)
}

fn letter(place: usize) -> String {
    char::from(LETTERS[place % LETTERS.len()]).to_string()
}

fn block(out: Out, shard: &ShardView, letters: &BTreeMap<&Name, usize>) -> String {
    let place = shard.worker.as_ref().and_then(|worker| letters.get(worker));
    match (shard.state.as_str(), place) {
        ("HELD", Some(place)) => out.paint(Style::Block(*place), &letter(*place)),
        ("WITHDRAWN", Some(place)) => out.paint(Style::Block(*place), WITHDRAWN),
        (_, _) => out.paint(Style::Bad, FREE),
    }
}
