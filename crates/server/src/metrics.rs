//! What `GET /metrics` tells, in Prometheus' text format, and the names of it; those about ZeroMQ are in `zmq.rs`.
//!
//! **Invariant:** no label holds the id of a task, lease or worker, and the number of separate queues is
//! bounded, so that the number of series is.

mod bus;

use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::StatusCode;
use orchestrix_core::wire::{QueueView, ServiceSummary};
use orchestrix_node::{Counter, Histogram, Stats};

use crate::http::ROUTES;
use crate::link::LinkMetrics;
use crate::zmq::ZmqMetrics;

/// Queues with series of their own; the rest is summed as `other`.
const QUEUES_MAX: usize = 100;
/// The label of the rest.
const OTHER: &str = "other";

/// How a number behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
}

/// The unit of a stored number. Metrics are in base units: times in seconds.
#[derive(Clone, Copy, Debug)]
enum Unit {
    One,
    Micros,
    Millis,
}

impl Unit {
    fn tell(self, value: u64) -> String {
        match self {
            Self::One => value.to_string(),
            Self::Micros => seconds(value),
            Self::Millis => seconds(value.saturating_mul(1_000)),
        }
    }
}

/// One number about the node.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub name: &'static str,
    pub kind: Kind,
    pub meaning: &'static str,
    unit: Unit,
    value: fn(&Stats) -> &Counter,
}

const fn counter(name: &'static str, meaning: &'static str, value: fn(&Stats) -> &Counter) -> Row {
    Row { name, kind: Kind::Counter, meaning, unit: Unit::One, value }
}

const fn gauge(name: &'static str, meaning: &'static str, value: fn(&Stats) -> &Counter) -> Row {
    Row { name, kind: Kind::Gauge, meaning, unit: Unit::One, value }
}

/// A time that is kept in microseconds.
const fn time(name: &'static str, meaning: &'static str, value: fn(&Stats) -> &Counter) -> Row {
    Row { name, kind: Kind::Gauge, meaning, unit: Unit::Micros, value }
}

/// Everything that is counted about the node since it started.
pub const ROWS: &[Row] = &[
    counter(
        "orchestrix_duplicate_executions_total",
        "Grants of a task whose last lease expired: its worker may still run it.",
        |s| &s.duplicate_executions,
    ),
    counter(
        "orchestrix_stale_reports_total",
        "Refused reports under a lease that was no longer valid.",
        |s| &s.stale_reports,
    ),
    counter(
        "orchestrix_repeated_reports_total",
        "Reports that repeated an accepted one; answered with its outcome.",
        |s| &s.repeated_reports,
    ),
    counter("orchestrix_tasks_submitted_total", "Tasks accepted.", |s| &s.submitted),
    counter(
        "orchestrix_submit_repeats_total",
        "Submits that found the task of an earlier one by its key.",
        |s| &s.submit_repeats,
    ),
    counter("orchestrix_leases_granted_total", "Leases granted.", |s| &s.leased),
    counter("orchestrix_leases_extended_total", "Extensions of leases.", |s| &s.extended),
    counter("orchestrix_leases_released_total", "Leases released by their worker.", |s| &s.released),
    counter(
        "orchestrix_leases_abandoned_total",
        "Leases released because the caller had disconnected.",
        |s| &s.abandoned,
    ),
    counter("orchestrix_leases_expired_silent_total", "Leases that expired without a heartbeat.", |s| {
        &s.expired_silent
    }),
    counter(
        "orchestrix_leases_expired_timeout_total",
        "Leases that ended at the time limit of the attempt.",
        |s| &s.expired_timeout,
    ),
    counter("orchestrix_tasks_completed_total", "Tasks completed.", |s| &s.completed),
    counter("orchestrix_attempts_failed_total", "Attempts reported as failed.", |s| &s.failed),
    counter("orchestrix_tasks_dead_total", "Tasks that ended FAILED: the dead letters.", |s| &s.dead_letters),
    counter("orchestrix_tasks_cancelled_total", "Tasks cancelled.", |s| &s.cancelled),
    counter(
        "orchestrix_tasks_ttl_expired_total",
        "Tasks cancelled because they waited longer than their ttl.",
        |s| &s.ttl_expired,
    ),
    counter("orchestrix_tasks_retried_total", "Dead letters that were retried.", |s| &s.retried),
    counter("orchestrix_tasks_purged_total", "Ended tasks that were purged.", |s| &s.purged),
    counter(
        "orchestrix_keys_forgotten_early_total",
        "Keys of purged tasks forgotten because of the limit of keys.",
        |s| &s.keys_forgotten_early,
    ),
    counter("orchestrix_refusals_total", "Commands that the rules refused.", |s| &s.refused),
    counter("orchestrix_overloaded_total", "Requests refused because too many were waiting.", |s| {
        &s.overloaded
    }),
    counter("orchestrix_storage_full_total", "Requests refused because the disk was full.", |s| {
        &s.storage_full
    }),
    counter("orchestrix_journal_batches_total", "Batches written to the journal.", |s| &s.batches),
    counter(
        "orchestrix_stale_appends_total",
        "Batches refused because another node had written first.",
        |s| &s.stale_appends,
    ),
    counter("orchestrix_journal_bytes_total", "Bytes of events written to the journal.", |s| &s.batch_bytes),
    counter("orchestrix_snapshots_total", "Snapshots taken.", |s| &s.snapshots),
    counter("orchestrix_shard_rounds_total", "Rebalances that withdrew or granted shards.", |s| {
        &s.shard_rounds
    }),
    counter("orchestrix_shards_withdrawn_total", "Shards withdrawn from workers.", |s| &s.shards_withdrawn),
    counter("orchestrix_shards_granted_total", "Shards granted to workers.", |s| &s.shards_granted),
    counter(
        "orchestrix_shards_overruled_total",
        "Shards taken from plain workers that had not released them: two workers may have served each.",
        |s| &s.shards_overruled,
    ),
    counter("orchestrix_services_expired_total", "Services removed because they had no workers.", |s| {
        &s.services_expired
    }),
    counter("orchestrix_shard_workers_lost_total", "Workers of services whose lease expired.", |s| {
        &s.shard_workers_lost
    }),
    counter("orchestrix_snapshot_failures_total", "Snapshots that failed.", |s| &s.snapshot_failures),
    counter("orchestrix_log_lines_total", "Lines of task output stored.", |s| &s.log_lines),
    counter(
        "orchestrix_log_lines_dropped_total",
        "Lines of task output dropped because their task had too many.",
        |s| &s.log_lines_dropped,
    ),
    gauge("orchestrix_position", "The last position decided.", |s| &s.position),
    gauge("orchestrix_durable_position", "The last position that is durable.", |s| &s.durable),
    gauge("orchestrix_snapshot_position", "The position of the last snapshot.", |s| &s.snapshot_position),
    gauge("orchestrix_term", "The term of the leader.", |s| &s.term),
    gauge("orchestrix_epoch", "The epoch of the leader.", |s| &s.epoch),
    gauge("orchestrix_leases", "Current leases.", |s| &s.tasks_leased),
    gauge("orchestrix_polls", "Lease calls that wait for a task.", |s| &s.polls),
    gauge("orchestrix_keys_remembered", "Keys of purged tasks that are remembered.", |s| &s.keys_remembered),
    gauge("orchestrix_storage_low", "1 while the journal uses its reserve.", |s| &s.space_low),
    time(
        "orchestrix_turn_max_seconds",
        "The longest time the decision loop was busy without reading new requests.",
        |s| &s.turn_max_us,
    ),
    time(
        "orchestrix_turn_busy_max_seconds",
        "The same in processor time of the loop: waiting for a processor does not count.",
        |s| &s.turn_busy_max_us,
    ),
    time(
        "orchestrix_snapshot_pause_max_seconds",
        "The longest pause of the decision loop for a snapshot, in processor time.",
        |s| &s.snapshot_pause_max_us,
    ),
];

/// One number per queue.
struct QueueRow {
    name: &'static str,
    meaning: &'static str,
    unit: Unit,
    value: fn(&QueueView) -> u64,
    /// How the numbers of several queues make one.
    together: fn(u64, u64) -> u64,
}

const fn queue_sum(name: &'static str, meaning: &'static str, value: fn(&QueueView) -> u64) -> QueueRow {
    QueueRow { name, meaning, unit: Unit::One, value, together: u64::saturating_add }
}

const QUEUE_ROWS: [QueueRow; 9] = [
    queue_sum("orchestrix_queue_ready", "Waiting tasks that could be leased now.", |q| q.ready),
    queue_sum("orchestrix_queue_delayed", "Waiting tasks that are delayed.", |q| q.delayed),
    queue_sum("orchestrix_queue_leased", "Leased tasks.", |q| q.leased),
    queue_sum("orchestrix_queue_completed", "Completed tasks that are kept.", |q| q.completed),
    queue_sum("orchestrix_queue_failed", "Dead letters that are kept.", |q| q.failed),
    queue_sum("orchestrix_queue_cancelled", "Cancelled tasks that are kept.", |q| q.cancelled),
    queue_sum("orchestrix_queue_polls", "Lease calls that wait for a task of the queue.", |q| q.polls),
    QueueRow {
        name: "orchestrix_queue_oldest_seconds",
        meaning: "How long the oldest ready task has been ready.",
        unit: Unit::Millis,
        value: |q| q.oldest_ms.unwrap_or(0),
        together: u64::max,
    },
    QueueRow {
        name: "orchestrix_queue_next_seconds",
        meaning: "How long the next task has been ready.",
        unit: Unit::Millis,
        value: |q| q.next_ms.unwrap_or(0),
        together: u64::max,
    },
];

/// Not of the node, but of the process around it.
const UNPRINTED: (&str, &str) =
    ("orchestrix_own_log_dropped_total", "Dropped lines of the coordinator's own log.");

/// Statuses with series of their own; any other is counted with the first of its hundred.
const STATUSES: [u16; 20] =
    [200, 201, 202, 400, 401, 403, 404, 405, 408, 409, 413, 414, 415, 429, 431, 500, 503, 507, 300, 100];

/// What is counted about requests. One row per route, and one for what has none.
#[derive(Debug)]
pub struct HttpMetrics {
    routes: Vec<RouteMetrics>,
    pub(crate) connections: AtomicU64,
    pub(crate) connections_refused: Counter,
}

#[derive(Debug, Default)]
struct RouteMetrics {
    statuses: [Counter; STATUSES.len()],
    latency: Histogram,
}

impl Default for HttpMetrics {
    fn default() -> Self {
        Self {
            routes: std::iter::repeat_with(RouteMetrics::default).take(ROUTES.len() + 1).collect(),
            connections: AtomicU64::new(0),
            connections_refused: Counter::default(),
        }
    }
}

impl HttpMetrics {
    /// Counts an answer of the route at a place of the table.
    pub(crate) fn observe(&self, route: Option<usize>, status: StatusCode, took: Duration) {
        let metrics = &self.routes[route.unwrap_or(ROUTES.len())];
        let code = status.as_u16();
        let known = |code: u16| STATUSES.iter().position(|known| *known == code);
        let place = known(code).or_else(|| known(code / 100 * 100)).unwrap_or(STATUSES.len() - 1);
        metrics.statuses[place].add(1);
        metrics.latency.observe_us(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }
}

/// What is looked at when metrics are asked for.
#[derive(Debug, Default)]
pub(crate) struct Views {
    pub(crate) queues: Vec<QueueView>,
    pub(crate) services: Vec<ServiceSummary>,
}

/// Writes everything in Prometheus' text format.
pub(crate) fn render(
    stats: &Stats,
    http: &HttpMetrics,
    zmq: &ZmqMetrics,
    links: &LinkMetrics,
    views: &Views,
    streams: usize,
    unprinted: &Counter,
) -> String {
    let mut text = Text(String::with_capacity(32 << 10));
    for row in ROWS.iter().chain(bus::ROWS) {
        text.head(row.name, if row.kind == Kind::Counter { "counter" } else { "gauge" }, row.meaning);
        text.line(row.name, &[], row.unit.tell((row.value)(stats).get()));
    }
    text.histogram(
        "orchestrix_journal_sync_seconds",
        "Time to write and sync one batch.",
        &[(&[], &stats.sync)],
    );
    text.histogram(
        "orchestrix_turn_seconds",
        "Time of one step of the decision loop.",
        &[(&[], &stats.step)],
    );
    text.histogram(
        "orchestrix_shard_vacant_seconds",
        "Time that a shard had no worker, from the end of one to the grant to the next.",
        &[(&[], &stats.shard_vacant)],
    );
    render_queues(&mut text, &views.queues);
    render_services(&mut text, &views.services);
    render_http(&mut text, http, streams);
    for (name, kind, meaning, value) in zmq.rows().into_iter().chain(links.rows()) {
        text.head(name, kind, meaning);
        text.line(name, &[], value);
    }
    text.head(UNPRINTED.0, "counter", UNPRINTED.1);
    text.line(UNPRINTED.0, &[], unprinted.get());
    text.0
}

/// Writes what a caller sees who is limited to these queues: every other number is about the queues of others, too.
pub(crate) fn render_own(queues: &[QueueView]) -> String {
    let mut text = Text(String::new());
    render_queues(&mut text, queues);
    text.0
}

fn render_queues(text: &mut Text, queues: &[QueueView]) {
    let own = queues.len().min(QUEUES_MAX);
    for row in &QUEUE_ROWS {
        text.head(row.name, "gauge", row.meaning);
        for view in &queues[..own] {
            text.line(row.name, &[("queue", view.queue.as_str())], row.unit.tell((row.value)(view)));
        }
        if queues.len() > own {
            let rest = queues[own..].iter().map(row.value).fold(0, row.together);
            text.line(row.name, &[("queue", OTHER)], row.unit.tell(rest));
        }
    }
}

/// One number for all services: there may be many.
fn render_services(text: &mut Text, services: &[ServiceSummary]) {
    let sum = |value: fn(&ServiceSummary) -> u64| services.iter().map(value).sum();
    for (name, meaning, value) in [
        ("orchestrix_services", "Services that divide shards among workers.", services.len() as u64),
        ("orchestrix_shard_workers", "Workers of services.", sum(|service| service.workers)),
        (
            "orchestrix_shards",
            "Shards of all services; the limit is 1,000,000.",
            sum(|service| service.held + service.withdrawn + service.free),
        ),
        ("orchestrix_shards_held", "Shards that a worker serves.", sum(|service| service.held)),
        (
            "orchestrix_shards_moving",
            "Withdrawn shards that their worker has not released yet.",
            sum(|service| service.withdrawn),
        ),
        (
            "orchestrix_shards_overlapping",
            "Shards that a plain worker names although they are not assigned to it.",
            sum(|service| service.overlapping),
        ),
        (
            "orchestrix_shards_unowned",
            "Shards without a worker: alert when this stays above 0.",
            sum(|service| service.free),
        ),
    ] {
        text.head(name, "gauge", meaning);
        text.line(name, &[], value);
    }
}

fn render_http(text: &mut Text, http: &HttpMetrics, streams: usize) {
    let names = ROUTES.iter().map(|route| (route.verb.as_str(), route.path)).chain([("", "unknown")]);
    let named: Vec<_> = names.zip(&http.routes).collect();
    text.head("orchestrix_http_requests_total", "counter", "Answers, by route and status.");
    for ((method, route), metrics) in &named {
        for (status, count) in STATUSES.iter().zip(&metrics.statuses) {
            if count.get() > 0 {
                let labels = [("method", *method), ("route", *route), ("status", &status.to_string())];
                text.line("orchestrix_http_requests_total", &labels, count.get());
            }
        }
    }
    let labels: Vec<_> =
        named.iter().map(|((method, route), _)| [("method", *method), ("route", *route)]).collect();
    let seen = |metrics: &RouteMetrics| metrics.statuses.iter().any(|count| count.get() > 0);
    let series = named.iter().zip(&labels).filter(|((_, metrics), _)| seen(metrics));
    let series: Vec<(&[_], &Histogram)> =
        series.map(|((_, metrics), labels)| (&labels[..], &metrics.latency)).collect();
    text.histogram(
        "orchestrix_http_seconds",
        "Time from the headers of a request to its answer; long polls included.",
        &series,
    );
    text.head("orchestrix_http_connections", "gauge", "Open connections.");
    text.line("orchestrix_http_connections", &[], http.connections.load(Relaxed));
    text.head(
        "orchestrix_http_connections_refused_total",
        "counter",
        "Connections refused because there were too many.",
    );
    text.line("orchestrix_http_connections_refused_total", &[], http.connections_refused.get());
    text.head("orchestrix_http_streams", "gauge", "Open streams of events, logs and batches.");
    text.line("orchestrix_http_streams", &[], streams as u64);
}

/// The text as it grows.
struct Text(String);

impl Text {
    fn head(&mut self, name: &str, kind: &str, meaning: &str) {
        self.put(format_args!("# HELP {name} {meaning}\n# TYPE {name} {kind}\n"));
    }

    /// Labels hold routes, statuses and queue names: none of them needs escaping.
    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.name(name, labels, None);
        self.put(format_args!(" {value}\n"));
    }

    fn histogram(&mut self, name: &str, meaning: &str, series: &[(&[(&str, &str)], &Histogram)]) {
        self.head(name, "histogram", meaning);
        for (labels, histogram) in series {
            let bounds = Histogram::BOUNDS_US.iter().map(|bound| seconds(*bound)).chain(["+Inf".to_owned()]);
            let mut count = 0;
            for (bound, observed) in bounds.zip(histogram.buckets()) {
                count += observed;
                self.name(&format!("{name}_bucket"), labels, Some(("le", &bound)));
                self.put(format_args!(" {count}\n"));
            }
            self.name(&format!("{name}_sum"), labels, None);
            self.put(format_args!(" {}\n", seconds(histogram.sum_us())));
            self.line(&format!("{name}_count"), labels, count);
        }
    }

    fn name(&mut self, name: &str, labels: &[(&str, &str)], last: Option<(&str, &str)>) {
        self.put(format_args!("{name}"));
        let all: Vec<_> = labels.iter().copied().chain(last).collect();
        if all.is_empty() {
            return;
        }
        for (n, (label, value)) in all.iter().enumerate() {
            let open = if n == 0 { '{' } else { ',' };
            self.put(format_args!("{open}{label}=\"{value}\""));
        }
        self.put(format_args!("}}"));
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        self.0.write_fmt(text).expect("writing to memory cannot fail");
    }
}

/// Microseconds as seconds, without rounding.
fn seconds(us: u64) -> String {
    let text = format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use orchestrix_core::Name;

    use super::*;

    fn view(queue: &str, ready: u64) -> QueueView {
        QueueView {
            queue: Name::new(queue).unwrap(),
            ready,
            delayed: 0,
            leased: 0,
            completed: 0,
            failed: 0,
            cancelled: 0,
            submitted_per_s: 0.0,
            completed_per_s: 0.0,
            failed_per_s: 0.0,
            polls: 0,
            asked_at: None,
            oldest_ms: None,
            oldest: None,
            next_ms: None,
            next: None,
        }
    }

    #[test]
    fn queues_beyond_the_cap_are_summed() {
        let mut queues: Vec<QueueView> = (0..QUEUES_MAX + 3).map(|n| view(&format!("q{n}"), 2)).collect();
        queues[QUEUES_MAX].oldest_ms = Some(70);
        queues[QUEUES_MAX + 1].oldest_ms = Some(50);
        queues[QUEUES_MAX + 1].next_ms = Some(30);
        let mut text = Text(String::new());
        render_queues(&mut text, &queues);
        assert!(text.0.contains("orchestrix_queue_ready{queue=\"other\"} 6\n"), "{}", text.0);
        assert!(text.0.contains("orchestrix_queue_oldest_seconds{queue=\"other\"} 0.07\n"));
        assert!(text.0.contains("orchestrix_queue_next_seconds{queue=\"other\"} 0.03\n"));
        assert_eq!(text.0.matches("orchestrix_queue_ready{").count(), QUEUES_MAX + 1);
    }

    #[test]
    fn a_histogram_accumulates_its_buckets() {
        let histogram = Histogram::default();
        [40, 60, 3_000_000].into_iter().for_each(|us| histogram.observe_us(us));
        let mut text = Text(String::new());
        text.histogram("x_seconds", "X.", &[(&[("route", "/")], &histogram)]);
        for line in [
            "x_seconds_bucket{route=\"/\",le=\"0.00005\"} 1",
            "x_seconds_bucket{route=\"/\",le=\"0.0001\"} 2",
            "x_seconds_bucket{route=\"/\",le=\"1\"} 2",
            "x_seconds_bucket{route=\"/\",le=\"10\"} 3",
            "x_seconds_bucket{route=\"/\",le=\"+Inf\"} 3",
            "x_seconds_sum{route=\"/\"} 3.0001",
            "x_seconds_count{route=\"/\"} 3",
        ] {
            assert!(text.0.contains(&format!("{line}\n")), "{line} is not in\n{}", text.0);
        }
    }

    #[test]
    fn names_are_unique_and_counters_say_that_they_are() {
        let all = || ROWS.iter().chain(bus::ROWS);
        let mut names: Vec<&str> = all().map(|row| row.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().count());
        for row in all() {
            assert_eq!(row.name.ends_with("_total"), row.kind == Kind::Counter, "{}", row.name);
        }
    }

    #[test]
    fn every_status_has_a_place() {
        let metrics = HttpMetrics::default();
        for status in 100..600 {
            metrics.observe(None, StatusCode::from_u16(status).unwrap(), Duration::ZERO);
        }
        let counted: u64 = metrics.routes[ROUTES.len()].statuses.iter().map(Counter::get).sum();
        assert_eq!(counted, 500);
    }
}
