//! `orchestrix journal`: looks at a data folder without a coordinator, and without changing it.

use std::path::PathBuf;
use std::sync::Arc;

use orchestrix_core::{Position, Records};
use orchestrix_engine::disk::{Disk, RealDisk};
use orchestrix_engine::file::{Batches, Damage, Report, SnapshotReport, verify};
use serde_json::{Value, json};

use super::fail::{Exit, Fail};
use super::out::{Out, Style, clean};
use super::time::{now, relative};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  orchestrix journal verify /var/lib/orchestrix
  orchestrix journal dump /var/lib/orchestrix | tail
  orchestrix journal dump /var/lib/orchestrix --json | jq 'select(.type == \"TaskFailed\")'")]
pub(crate) struct JournalArgs {
    #[command(subcommand)]
    command: JournalCommand,
}

#[derive(Debug, clap::Subcommand)]
enum JournalCommand {
    /// Verify a data folder
    #[command(after_help = "\
EXIT CODES
  0  sound
  1  damaged, or not readable

EXAMPLES
  orchestrix journal verify /var/lib/orchestrix
  orchestrix journal verify /var/lib/orchestrix --json | jq .end")]
    Verify(Folder),
    /// Print every event, one per line, oldest first
    #[command(after_help = "\
EXIT CODES
  0  all events were printed
  1  damaged, or not readable: events are missing

EXAMPLES
  orchestrix journal dump /var/lib/orchestrix | tail
  orchestrix journal dump /var/lib/orchestrix --json | jq 'select(.type == \"TaskFailed\")'")]
    Dump(Folder),
}

#[derive(Debug, clap::Args)]
struct Folder {
    /// The data folder of a coordinator
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(crate) fn run(args: &JournalArgs, out: Out) -> Result<(), Fail> {
    match &args.command {
        JournalCommand::Verify(Folder { folder }) => {
            let report = verify(folder).map_err(|error| not_readable(&error))?;
            if report.journal.is_none() && report.damage.is_none() {
                return Err(no_journal(folder));
            }
            if out.is_json() {
                out.json(&in_json(&report))?
            } else {
                in_words(&report, out)?
            }
            if report.is_sound() { Ok(()) } else { Err(Fail::silent(Exit::Refused)) }
        }
        JournalCommand::Dump(Folder { folder }) => dump(folder, out),
    }
}

fn dump(folder: &std::path::Path, out: Out) -> Result<(), Fail> {
    let disk = RealDisk::open_to_read(folder).map_err(|error| Fail::new(Exit::Refused, error.to_string()))?;
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let batches = Batches::open(disk).map_err(|error| not_readable(&error))?;
    let mut last = None;
    for batch in batches {
        let batch = batch.map_err(|error| not_readable(&error))?;
        let positions = (batch.previous.position.0 + 1..).map(Position);
        for (position, record) in positions.zip(Records::new(&batch.records)) {
            let (at, event) = record.map_err(|error| {
                Fail::new(Exit::Refused, format!("the event at position {position} is not readable: {error}"))
            })?;
            let mut line = json!({"position": position, "at": at, "term": batch.term});
            merge(&mut line, serde_json::to_value(&event).unwrap_or_default());
            last = Some(position);
            if out.is_json() {
                out.json(&line)?;
                continue;
            }
            let name = out.paint(Style::Bold, event.name());
            let fields = fields_in_words(&line);
            out.line(&format!("{position:>10}  {:>8}  {name} {}", relative(at, now()), clean(&fields)))?;
        }
    }
    whole(folder, last)
}

/// Batches end at damage as they do at what was never durable: only a look at the whole folder tells these apart.
fn whole(folder: &std::path::Path, last: Option<Position>) -> Result<(), Fail> {
    let report = verify(folder).map_err(|error| not_readable(&error))?;
    match (report.damage, last) {
        (None, Some(_)) => Ok(()),
        (None, None) => Err(no_journal(folder)),
        (Some(damage), last) => {
            let read = last.map_or("no event can be read before it".to_owned(), |last| {
                format!("the events after position {last} cannot be read")
            });
            let damage = place(&damage);
            Err(Fail::new(
                Exit::Refused,
                format!("DAMAGED {damage}; {read}; bring back a copy of this folder"),
            ))
        }
    }
}

fn place(damage: &Damage) -> String {
    format!("{} at byte {}: {}", damage.path.display(), damage.offset, damage.what)
}

/// What belongs to the type of an event, without what every event has.
pub(super) fn fields_in_words(line: &Value) -> String {
    let common = ["position", "at", "term", "type"];
    let fields = line.as_object().into_iter().flatten();
    let fields = fields.filter(|(name, value)| !common.contains(&name.as_str()) && !value.is_null());
    fields.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

fn merge(line: &mut Value, event: Value) {
    if let (Value::Object(line), Value::Object(event)) = (line, event) {
        line.extend(event);
    }
}

fn in_json(report: &Report) -> Value {
    let damage = |damage: &Damage| json!({"path": damage.path, "offset": damage.offset, "what": damage.what});
    let snapshot = |snapshot: &SnapshotReport| json!({"position": snapshot.at, "damage": snapshot.damage.as_ref().map(damage)});
    json!({
        "sound": report.is_sound(),
        "journal": report.journal.map(|id| id.to_string()),
        "holder": report.holder,
        "floor": report.floor,
        "end": report.end.position,
        "durable": report.durable,
        "segments": report.segments,
        "batches": report.batches,
        "events": report.events,
        "bytes": report.bytes,
        "snapshots": report.snapshots.iter().map(snapshot).collect::<Vec<_>>(),
        "torn": report.torn.as_ref().map(damage),
        "damage": report.damage.as_ref().map(damage),
    })
}

fn in_words(report: &Report, out: Out) -> Result<(), Fail> {
    let id = report.journal.map(|id| id.to_string()).unwrap_or_default();
    let readable = report.end.position > report.floor;
    if readable {
        out.line(&format!("journal {id}, {} to {}", report.floor.next(), report.end.position))?;
    } else {
        out.line(&format!("journal {id}, no events that can be read"))?;
    }
    let Report { events, batches, segments, bytes, .. } = report;
    out.line(&format!("  events {events}, batches {batches}, segments {segments}, bytes {bytes}"))?;
    for snapshot in &report.snapshots {
        let state = snapshot
            .damage
            .as_ref()
            .map_or("sound".to_owned(), |damage| format!("damaged: {}", place(damage)));
        out.line(&format!("  snapshot at {}: {}", snapshot.at, clean(&state)))?;
    }
    if let Some(holder) = &report.holder {
        out.line(&format!("  in use by {}", clean(holder)))?;
    }
    if let Some(torn) = &report.torn {
        out.line(&format!("  a start will cut off bytes that were never durable: {}", clean(&place(torn))))?;
    }
    if let Some(damage) = &report.damage {
        out.line(&out.paint(Style::Bad, &format!("DAMAGED {}", clean(&place(damage)))))?;
    }
    match report.is_sound() {
        true => out.line(&out.paint(Style::Good, "sound")),
        false => {
            let look = if readable { ", or look at what can be read with `journal dump`" } else { "" };
            out.note(&format!("no coordinator will start here: bring back a copy of this folder{look}"));
            Ok(())
        }
    }
}

fn not_readable(error: &orchestrix_engine::Error) -> Fail {
    Fail::new(Exit::Refused, error.to_string())
}

fn no_journal(folder: &std::path::Path) -> Fail {
    let text = format!(
        "there is no journal in {}; name the folder that `orchestrix serve --data` has",
        folder.display()
    );
    Fail::new(Exit::Refused, text)
}
