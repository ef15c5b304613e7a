//! What is said around the figures: everything in the documents that does not change from run to run.

/// Words in braces are tables and numbers of the run.
pub(crate) const PAGE: &str = "\
# Benchmarks

Written by `make bench` (`orchestrix-bench --write docs/benchmarks.md`): every number below is from one run
of {seconds} s on one machine. Run it on yours; what carries over is the ratios, not the numbers.

A **life cycle** is submit, lease and complete of one task with a payload of 200 random letters. Everybody
makes everything durable before answering: Orchestrix on its file engine, Redis with
`--appendonly yes --appendfsync always --save ''`, beanstalkd with `-b FOLDER -f 0`, all on the same disk. The
tool refuses folders that are in memory.

## Goals

{goals}
## Beside peers

A ratio above 1 is in favour of Orchestrix: more per second, or less time or memory.

{peers}
## On shared engines

{engines}
One node on a private server. Each caller submits 256 tasks in a call, leases them in a call and completes them in a
call, and waits for every answer. Windows of ours and of the raw clients follow each other, and the median of all counts.

- Through the **library**, callers await the methods of a node in the same program, and what is measured is what a node
  adds to the server: nobody who appends raw has an HTTP server before it either. Through **HTTP**, callers, node and
  server share the processor, and requests and answers are JSON.

- **× stored** compares life cycles per second with tasks per second that are only stored: as many callers at once, one
  entry or row per task, 256 in a call (256 pipelined `XADD`, one `INSERT` of 256 rows), and nobody leases or completes.
  A life cycle is three calls that each wait for a sync and a stored task is one: where only syncs count, a third is all
  there is.
- **× raw** compares the node's appends with raw appends of the same bytes, one at a time: the node's own counters say how
  many batches it appended and how many bytes of events they had, and a plain client appends as many (`XADD` of one entry,
  `INSERT` of one row in autocommit through the same driver, `PUT` of one object); 1 would mean that rules, answers, the condition of each append and
  HTTP cost nothing, and more is not plausible: the disk was busy with something else.

**Inside appends** is how much of the time a batch was on its way.

- Redis, MariaDB and PostgreSQL sync before they answer, for all three. SeaweedFS does not sync, for neither of the two.
- An append of ours is conditional on the batch before it, and carries a checksum and a hash. On S3 it is two requests:
  the batch, then the floor and the batch before it; ours are signed, the raw ones are not.
- On S3 a node waits until 50 ms after the last batch was begun, because requests cost money there. So one caller gets at
  most 20 appends per second however fast the store is; there is no goal, and one call cannot store 256 objects.

## Changes of leader

{failovers}
Three nodes with `--leader-ttl 2s`. The leader gets a signal; a client submits tasks through another node, and tries
again after 2 ms when it is refused; the time is from the signal until a task is acknowledged by the next leader, on one
clock. Signals are spread evenly over the time between two renewals. A killed leader is missed until its last renewal is
TTL + 1 % + a margin old, so the time is between two thirds of the TTL and a little more than all of it.

etcd is one server with three processes of `etcdctl lock --ttl 2`, which is its recipe for elections: a lease that is
kept alive, and a queue of keys. The time is until the next process says that it has the lock. That flatters etcd: there
is nothing to read and no task to store, and the client is the one who is elected.

## Clients at followers

{links}
Three nodes on Redis; 256 connections, one task per call. Clients are at the leader, or half of them at each of the two followers,
in turns, and the same number of life cycles per second is offered: half of what one follower can do. What is
compared is the processor time of the process that leads, kernel included. The waiting calls are at one follower, and every one of
them gets a task in the end.

## Cost of a request

{requests}
Two binaries of different age, on the file engine: `orchestrix-bench --only requests --old FILE`. Each has one call on the way per
connection, and all tasks have one payload of 200 letters. Processor time is that of the server's process, kernel included. In every
turn both start on empty folders and get the same number of requests, one after the other; one client alone asks both in turns,
ten times each.

## Shards

{shards}
**Splitting anew** is what a coordinator does that divides all shards from the beginning whenever a worker comes or goes. The
thousand workers are sockets of one process that speaks the protocol as `docs/shards.md` tells it, with a heartbeat every second each,
spread evenly; one in twenty registers again after each of its own. A worker that is killed has just sent a heartbeat, so
all of its time (here `--shard-lease 2s --shard-check 500ms`) goes by first; the time ends when all others have heard of what they got.

## The machine

{facts}
## All figures

{all}
## How it is measured

- **One client for all.** The load comes from one thread with one event loop, the same for each server; only
  the words differ: HTTP/1.1 with JSON, RESP, beanstalkd's lines. Client and servers share the processor, so
  a dear client or a wordy protocol costs throughput, ours included.
- **In turns.** Windows of the servers alternate and the median window counts; one client alone, its peers,
  the synced write and the round trip take turns every ten calls. A slow minute of the machine hits all.
- **In process** there is no protocol: callers await the methods of a `Node` in the same program.
- **Batches**: 8 connections, each with one call of 256 tasks in flight. Redis: 256 pipelined `XADD`, one
  `XREADGROUP COUNT 256`, one `XACK` and one `XDEL` of 256 entries.
- **One by one**: every task is its own submit, its own lease and its own completion; 256 life cycles are in
  flight, over 64 connections with 4 calls on the way or over 256 connections; the better one counts. All
  three servers take the calls of one connection one after the other.
- **Memory** is VmRSS after filling, less that right after the start, by the number of tasks.
- **Start after kill -9** is from starting the process to holding the first task. beanstalkd is filled without
  syncing, because it syncs each job alone and would take minutes; it reads the same file afterwards.
- **A long queue costs** what the server's own processor time per life cycle says, beside a second server
  with 1,000 waiting tasks under the same load, in turns.
- **The pause for a snapshot** is the longest time that a snapshot of the long queue kept the decision loop from
  deciding, beginning one or handing out a piece, in processor time: on a loaded machine every thread waits too.
- **The longest turn** is how long the loop decided without a look at new questions; up to 1,024 events are one turn, plus one request's worth.

## What limits it

On a machine with two cores the load, the loop, the writer and the disk's interrupts share them, and four things
decide, as profiles and the figures above say:

- **In process, 256 in flight.** All 256 wait for the same sync, so one round is a sync, plus about as long for what
  the loop decides, plus two wake-ups of a sleeping thread; the processors are idle half of the time. More in flight
  gives more. No function stands out in the profile; handing over half a round earlier, so that the sync of one half
  overlaps with deciding the other, gained nothing, because a sync of half as much takes as long.
- **One by one over HTTP** is bound by the processor: about half of the server's time is the kernel's TCP, the rest is
  spread over HTTP, JSON and wake-ups.
- **One client alone** waits for two wake-ups of threads more than a server of one thread does: the runtime wakes the
  loop, the loop wakes the runtime. The loop syncs itself when one caller waits; spinning for the next question
  instead of sleeping made it slower here.
- **The pause for a snapshot**, and the longest turn, are mostly a huge page of memory that is used for the first time: on a
  virtual machine its host has to find 2 MiB first, and the step that touches them waits. `MIMALLOC_ALLOW_THP=0` makes
  pauses shorter and throughput a little lower.

Redis and beanstalkd promise less than a coordinator does, which is what makes them a good measure: neither
refuses every report of a worker that lost its task: a late `XACK` is taken from anyone, a late `delete` as long
as nobody has reserved the job again.
";
