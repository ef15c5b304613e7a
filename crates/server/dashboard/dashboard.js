// Shows the state of the coordinator. Text of tasks, workers and queues is set by textContent only.
"use strict";

const EVENTS_SHOWN = 40;
const LOOK_MS = 2000;
const RETRY_MS = 3000;

let token = "";
let lastPosition = null;

const at = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en");

function headers(more) {
  return token ? { authorization: "Bearer " + token, ...more } : { ...more };
}

async function get(path) {
  const answer = await fetch(path, { headers: headers() });
  if (answer.status === 401 || answer.status === 403) {
    at("access").hidden = false;
  }
  if (!answer.ok) {
    throw new Error(path + " answered " + answer.status);
  }
  return answer.json();
}

function show(link, text) {
  at("link").className = "link " + link;
  at("link").textContent = text;
}

function cell(value, kind) {
  const td = document.createElement("td");
  td.textContent = typeof value === "number" ? number.format(value) : String(value);
  if (kind) {
    td.className = kind;
  }
  return td;
}

function row(cells) {
  const tr = document.createElement("tr");
  tr.append(...cells);
  return tr;
}

function fill(table, rows, none) {
  const body = at(table).tBodies[0];
  if (rows.length === 0) {
    const td = cell(none, "empty");
    td.colSpan = at(table).tHead.rows[0].cells.length;
    rows = [row([td])];
  }
  body.replaceChildren(...rows);
}

function span(ms) {
  if (ms === undefined || ms === null) return "–";
  if (ms < 1000) return ms + " ms";
  if (ms < 60000) return (ms / 1000).toFixed(1) + " s";
  if (ms < 3600000) return Math.floor(ms / 60000) + " min";
  return Math.floor(ms / 3600000) + " h";
}

function showCluster(cluster) {
  at("leader").textContent = cluster.leader === null ? "none" : cluster.leader;
  at("term").textContent = number.format(cluster.term);
  at("position").textContent = number.format(cluster.position);
  const state = { ACTIVE: "good", DRAINING: "warm", DEAD: "bad" };
  fill("nodes", cluster.nodes.map((node) => row([
    cell(node.name), cell(node.role), cell(node.state, state[node.state]),
    cell(node.load, "n"), cell(node.position, "n"), cell(node.lag, "n"),
  ])), "no nodes");
}

function showQueues(queues) {
  const sum = (field) => queues.reduce((total, queue) => total + queue[field], 0);
  at("ready").textContent = number.format(sum("ready"));
  at("leased").textContent = number.format(sum("leased"));
  at("dead").textContent = number.format(sum("failed"));
  at("rate").textContent = sum("completed_per_s").toFixed(1);
  fill("queues", queues.map((queue) => row([
    cell(queue.queue), cell(queue.ready, "n"), cell(queue.delayed, "n"), cell(queue.leased, "n"),
    cell(queue.completed, "n"), cell(queue.failed, queue.failed > 0 ? "n bad" : "n"), cell(queue.cancelled, "n"),
    cell(queue.submitted_per_s.toFixed(1), "n"), cell(queue.completed_per_s.toFixed(1), "n"),
    cell(span(queue.oldest_ms), "n"), cell(span(queue.next_ms), "n"), cell(queue.polls, "n"),
  ])), "no queue has tasks yet");
}

function showWorkers(workers) {
  const now = Date.now();
  fill("workers", workers.map((worker) => row([
    cell(worker.worker), cell(worker.leases, "n"), cell(worker.capacity === undefined ? "–" : worker.capacity, "n"),
    cell(worker.seen_at === 0 ? "not since the start" : span(Math.max(0, now - worker.seen_at)) + " ago"),
  ])), "no worker seen recently");
}

const KINDS = {
  TaskCompleted: "good", TaskFailed: "bad", LeaseExpired: "bad", TaskCancelled: "warm", CancelRequested: "warm",
  TaskExpired: "warm",
};

function showEvent(event) {
  // A request id is for programs; it would double the height of a row.
  const { position, at: time, type, task, queue, service, request_id, ...rest } = event;
  lastPosition = position;
  const details = Object.entries(rest).map(([name, value]) => label(name) + " " + shown(name, value));
  addEvent(row([
    cell(position, "n"), cell(new Date(time).toLocaleTimeString()), cell(type, KINDS[type]),
    cell(task === undefined ? "" : task, "n"), cell(queue || service || queuesOf(event)), cell(details.join(" · ")),
  ]));
}

// An event of many tasks has the queue of each.
function queuesOf(event) {
  const tasks = event.extended || event.tasks || [];
  return [...new Set(tasks.map((task) => task.queue))].join(", ");
}

const clock = (ms) => new Date(ms).toLocaleTimeString();
const runs = (shards) =>
  shards.map(({ first, count }) => (count === 1 ? first : first + "–" + (first + count - 1))).join(", ") || "none";

const label = (name) => name.replace(/_ms$/, "").replaceAll("_", " ");

// How a field of an event is shown, by its name.
const FIELDS = {
  expires_at: clock, not_before: clock, timeout_at: clock, cancel_at: clock, ttl_at: clock,
  length_ms: span, timeout_ms: span, shard_lease_ms: span,
  key: ({ key }) => key,
  next: (next) => (typeof next === "string" ? next : "waiting until " + clock(next.waiting.not_before)),
  extended: (leases) => leases.map(({ lease }) => lease).join(", "),
  tasks: (tasks) => tasks.map(({ task }) => task).join(", "),
  shards: runs, withdrawn: runs,
  granted: (grants) => grants.map(({ worker, shards }) => worker + ": " + runs(shards)).join("; ") || "none",
  capacity: (capacity) => (typeof capacity === "number" ? capacity : capacity.worker + ": " + (capacity.capacity ?? "no limit")),
};

// A field with an unexpected form is shown as JSON.
function shown(name, value) {
  try {
    if (FIELDS[name]) return FIELDS[name](value);
  } catch (error) {
    console.warn("field " + name + " of an event", error);
  }
  return typeof value === "object" ? JSON.stringify(value) : value;
}

function showGap(gap) {
  lastPosition = gap.until;
  addEvent(row([cell(gap.until, "n"), cell(""), cell("earlier events are no longer available", "warm"), cell(""), cell(""), cell("")]));
}

function addEvent(line) {
  const body = at("events").tBodies[0];
  body.prepend(line);
  while (body.rows.length > EVENTS_SHOWN) {
    body.lastChild.remove();
  }
}

// Server-sent events over fetch: EventSource cannot send a token.
async function follow() {
  const after = lastPosition === null ? "" : "?after=" + lastPosition;
  const answer = await fetch("/v1/events" + after, { headers: headers({ accept: "text/event-stream" }) });
  if (!answer.ok) {
    throw new Error("events answered " + answer.status);
  }
  show("live", "live");
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      understand(text.slice(0, end));
      text = text.slice(end + 2);
    }
  }
}

function understand(frame) {
  let name = "message";
  let data = "";
  for (const line of frame.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (data === "") return;
  (name === "gap" ? showGap : showEvent)(JSON.parse(data));
}

async function look() {
  try {
    const [cluster, queues, workers] =
      await Promise.all([get("/v1/cluster"), get("/v1/queues"), get("/v1/workers")]);
    showCluster(cluster);
    showQueues(queues.queues);
    showWorkers(workers.workers);
    if (lastPosition === null) {
      lastPosition = Math.max(0, cluster.position - EVENTS_SHOWN);
      stream();
    }
  } catch (error) {
    show("lost", "not connected: " + error.message);
  }
  setTimeout(look, LOOK_MS);
}

async function stream() {
  try {
    await follow();
    show("lost", "event stream ended, reconnecting");
  } catch (error) {
    show("lost", "not connected: " + error.message);
  }
  setTimeout(stream, RETRY_MS);
}

at("access").addEventListener("submit", (event) => {
  event.preventDefault();
  token = at("token").value.trim();
  at("access").hidden = true;
});

look();
