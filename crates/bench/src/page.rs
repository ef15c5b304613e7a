//! The text of the page around the figures.

/// Words in braces are tables and numbers of the run.
pub(crate) const PAGE: &str = "\
# Benchmarks

Written by `make bench` (`orchestrix-bench --write docs/benchmarks.md`): every number below is from one run
of {seconds} s on one machine. Run it on yours: the ratios carry over, the numbers do not.

A **life cycle** is submit, lease and complete of one task with a payload of 200 random letters. Every server makes
everything durable before it answers: Orchestrix on its file engine, Redis with
`--appendonly yes --appendfsync always --save ''`, beanstalkd with `-b FOLDER -f 0`, all on the same disk. The
tool refuses folders in memory.

## Goals

{goals}
## Beside peers

A ratio above 1 means that Orchestrix is better: more per second, or less time or memory.

{peers}
## On shared engines

{engines}
One node on a private server. Each caller submits 256 tasks in a call, leases them in a call and completes them in a
call, and waits for every answer. Windows of the node and of the raw clients alternate, and the median counts.

- Through the **library**, callers await the methods of a node in the same program. This measures the cost of the node alone,
  because a raw client has no HTTP server either. Through **HTTP**, callers, node and
  server share the processor, and requests and answers are JSON.

- **× stored** compares life cycles per second with tasks per second that are only stored: with as many callers, one
  entry or row per task, 256 in a call (256 pipelined `XADD`, one `INSERT` of 256 rows), without leases and completions.
  A life cycle is three calls that each wait for a sync, and a stored task is one. If only syncs cost time, the best ratio is a
  third.
- **× raw** compares the node's appends with raw appends of the same bytes, one at a time. The node's own counters give the
  number of batches and their bytes of events, and a plain client appends as many (`XADD` of one entry,
  `INSERT` of one row in autocommit through the same driver, `PUT` of one object); 1 would mean that rules, answers, the condition of each append and
  HTTP cost nothing. More than 1 means that the disk was busy with other work.

**Inside appends** is the share of the time in which a batch was in flight.

- Redis, MariaDB and PostgreSQL sync before they answer, for node and raw client. SeaweedFS syncs for neither.
- An append of the node is conditional on the batch before it, and has a checksum and a hash. On S3 it is two requests:
  the batch, then the floor and the batch before it. The node signs its requests, the raw client does not.
- On S3 a node waits until 50 ms after the start of the last batch, because requests cost money there. So one caller gets at
  most 20 appends per second, on any store. There is no goal, and one call cannot store 256 objects.

## Changes of leader

{failovers}
Three nodes with `--leader-ttl 2s`. The leader gets a signal. A client submits tasks through another node, and tries
again 2 ms after a refusal. The time is measured on one clock, from the signal until the next leader acknowledges a task.
Signals are spread evenly over the time between two renewals. A killed leader is replaced when its last renewal is
TTL + 1 % + a margin old, so the time is between two thirds of the TTL and a little more than the TTL.

etcd is one server with three processes of `etcdctl lock --ttl 2`, its recipe for elections: a lease with keep-alive,
and a queue of keys. The time ends when the next process reports that it has the lock. This favours etcd: it has
no journal to read and no task to store, and the client itself is elected.

## Clients at followers

{links}
Three nodes on Redis; 256 connections, one task per call. In turns, all clients are at the leader, or half of them at each of the two
followers, at the same offered rate: half of what one follower can do. The figure is the processor time of the leader's process,
with the kernel. The waiting calls are at one follower, and every one of them gets a task in the end.

## Cost of a request

{requests}
Two binaries of different age, on the file engine: `orchestrix-bench --only requests --old FILE`. Each connection has one call in
flight. Processor time is that of the process of the server, kernel included. In every turn, both start on empty folders and get the
same number of requests, one after the other; one client alone calls both in turns, ten times each.

## Shards

{shards}
**Splitting anew** means a new division of all shards whenever a worker comes or goes. The
thousand workers are sockets of one process with the protocol of `docs/shards.md`, with a heartbeat every second each,
spread evenly; one in twenty registers again after each heartbeat. A killed worker has just sent a heartbeat, so
its whole lease (here `--shard-lease 2s --shard-check 500ms`) passes first. The time ends when all others have their new assignments.

## The machine

{facts}
## All figures

{all}
## How it is measured

- **One client for all.** The load comes from one thread with one event loop, the same for each server; only
  the protocol differs: HTTP/1.1 with JSON, RESP, beanstalkd's lines. Client and servers share the processor, so
  an expensive client or a long protocol costs throughput, also for Orchestrix.
- **In turns.** Windows of the servers alternate and the median window counts; one client alone, its peers,
  the synced write and the round trip alternate every ten calls. A slow minute of the machine affects all.
- **In process** there is no protocol: callers await the methods of a `Node` in the same program.
- **Batches**: 8 connections, each with one call of 256 tasks in flight. Redis: 256 pipelined `XADD`, one
  `XREADGROUP COUNT 256`, one `XACK` and one `XDEL` of 256 entries.
- **One by one**: every task has its own submit, lease and completion; 256 life cycles are in
  flight, over 64 connections with 4 pipelined calls or over 256 connections; the better one counts. All
  three servers execute the calls of one connection one after the other.
- **Memory** is VmRSS after filling, minus VmRSS right after the start, divided by the number of tasks.
- **Start after kill -9** is from the start of the process to the first lease. beanstalkd is filled without
  syncs, because it syncs each job alone and would take minutes; it reads the same file afterwards.
- **The cost of a long queue** is the server's processor time per life cycle, compared with a second server
  with 1,000 waiting tasks under the same load, in turns.
- **The pause for a snapshot** is the longest time for which a snapshot of the long queue stopped the decision
  loop, at its start or for one step, in processor time, because on a loaded machine every thread also waits.
- **The longest turn** is how long the loop decided without reading new requests; a turn is up to 1,024 events, plus those of one request.

## What limits it

The load, the loop, the writer and the disk's interrupts share two cores. Profiles and the figures above show four
limits:

- **In process, 256 in flight.** All 256 wait for the same sync. So one round is a sync, about as long again for the
  decisions, and two wake-ups of a sleeping thread; the processors are idle half of the time. More in flight
  gives more. No function stands out in the profile. Handing over half a round earlier, so that the sync of one half
  overlaps with the decisions of the other, gained nothing, because a sync of half as much takes as long.
- **One by one over HTTP** is limited by the processor. In a profile of submits with 64 and 256 connections, the kernel's TCP
  takes 34 to 36 % of the server's time, with one system call to receive a request and one to send its answer. The thread of
  the runtime spends 26 to 35 % in user space: hyper, its HTTP types, tokio and the allocator. Our own code on that thread is
  less than 2 %. Syncs take 8 to 14 %, the loop and the writer 6 to 8 %, and wake-ups and switches of threads 9 to 10 %.
- **One client alone** waits for two more wake-ups than with a server of one thread: the runtime wakes the
  loop, the loop wakes the runtime. The loop itself syncs for a single caller. Spinning for the next request
  instead of sleeping made it slower here.
- **The pause for a snapshot**, and the longest turn, are mostly the first use of a huge page of memory: the host of
  a virtual machine has to find 2 MiB first, and the step that touches them waits. `MIMALLOC_ALLOW_THP=0` makes
  pauses shorter and throughput a little lower.

Redis and beanstalkd promise less than a coordinator, which makes them a good measure. Neither
refuses every report of a worker that lost its task: Redis accepts a late `XACK` from any worker, and beanstalkd a late
`delete` until another worker has reserved the job.
";
