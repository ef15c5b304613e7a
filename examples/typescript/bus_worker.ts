// A worker of the bus. It knows a Redis server and the names of channels, and no node.
//
//     node build/bus_worker.js redis://127.0.0.1:6379 mail 4
//
// The payload of its tasks is an object: it prints `lines` lines and works for `seconds`. With `fail`, it fails with that
// text. What must stay true: it names every lease that it has in its heartbeats, it repeats its last words until they are
// taken, and it stops when it is told to, or when nobody has heard of it for the length of a lease.

import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";

const [url, queue, slots = "4"] = process.argv.slice(2);
if (!url || !queue) {
  console.error("usage: bus_worker.js URL QUEUE [SLOTS], as in redis://127.0.0.1:6379 mail 4");
  process.exit(2);
}

/** Milliseconds between two heartbeats; a sixth of a lease, if that is less. */
const BEAT_MS = 2_000;
/** Milliseconds after which last words are said again. */
const AGAIN_MS = 1_000;
const PREFIX = "orchestrix.";

interface Offer {
  JobId: string;
  HistoryId: string;
  Payload: { seconds?: number; lines?: number; fail?: string };
  LeaseMs: number;
}

interface Job {
  offer: Offer;
  stop: AbortController;
  /** Nothing counts any more that is said. */
  stale: boolean;
}

type Entries = [id: string, fields: string[]][];
type Streams = [name: string, entries: Entries][] | null;

/** The field `data` of an entry. */
function data<T>(fields: string[]): T {
  return JSON.parse(fields[fields.indexOf("data") + 1] ?? "null") as T;
}

class BusWorker {
  // A read that waits keeps its connection to itself.
  private readonly bus: Redis;
  private readonly taking: Redis;
  private readonly hearing: Redis;
  private readonly name = `ts-${process.pid}`;
  private readonly offers: string;
  private readonly jobs = new Map<string, Job>();
  private heardAt = performance.now();
  private leaving = false;

  constructor(url: string, private readonly queue: string, private readonly slots: number) {
    const connect = () => new Redis(url, { maxRetriesPerRequest: null }).on("error", () => {});
    [this.bus, this.taking, this.hearing] = [connect(), connect(), connect()];
    this.offers = `${PREFIX}job.dispatch.${queue}`;
  }

  /** Whether the channel is there. One that is gone says that the lease is over. */
  private async send(channel: string, message: object): Promise<boolean> {
    return (await this.bus.xadd(PREFIX + channel, "NOMKSTREAM", "*", "data", JSON.stringify(message))) !== null;
  }

  private say({ offer: { JobId, HistoryId } }: Job, channel: "status" | "logs", message: object): Promise<boolean> {
    return this.send(`job.${JobId}.${channel}`, { JobId, HistoryId, WorkerId: this.name, ...message });
  }

  private async heartbeat() {
    const Capacity = this.leaving ? 0 : this.slots;
    const message = { WorkerId: this.name, Queues: [this.queue], Capacity, Jobs: [...this.jobs.keys()] };
    if (await this.send("worker.heartbeat", message)) this.heardAt = performance.now();
  }

  private async beat() {
    for (;;) {
      await this.heartbeat();
      const jobs = [...this.jobs.values()];
      for (const job of jobs) {
        if (performance.now() - this.heardAt > job.offer.LeaseMs) job.stop.abort();
      }
      await sleep(Math.min(BEAT_MS, ...jobs.map((job) => job.offer.LeaseMs / 6)));
    }
  }

  private async listen() {
    let last = "$";
    for (;;) {
      const read = (await this.hearing.xread("BLOCK", 5000, "STREAMS", `${PREFIX}job.cancel`, last)) as Streams;
      for (const [id, fields] of read?.[0]?.[1] ?? []) {
        last = id;
        const { HistoryId, WorkerId, Reason } = data<{ HistoryId: string; WorkerId: string; Reason: string }>(fields);
        const job = this.jobs.get(HistoryId);
        if (!job || WorkerId !== this.name) continue;
        job.stale ||= Reason === "Stale";
        job.stop.abort();
      }
    }
  }

  private async run(job: Job) {
    let words: object;
    try {
      words = { Status: "Completed", Result: await this.work(job) };
    } catch (error) {
      const stopped = job.stop.signal.aborted;
      words = { Status: "Failed", Error: stopped ? "it was told to stop" : String(error), Retry: true };
    }
    while (!job.stale && (await this.say(job, "status", words))) await sleep(AGAIN_MS);
    this.jobs.delete(job.offer.HistoryId);
  }

  /** Your work. */
  private async work(job: Job): Promise<object> {
    const { seconds = 0, lines = 0, fail } = job.offer.Payload;
    for (let n = 0; n < lines; n++) {
      await this.say(job, "logs", { Lines: [{ Text: `line ${n}` }], Offset: n });
    }
    if (fail !== undefined) throw fail;
    await sleep(seconds * 1000, undefined, { signal: job.stop.signal });
    return { worker: this.name };
  }

  /** Takes offers as long as there is room, and never more. */
  private async take() {
    const free = this.slots - this.jobs.size;
    if (free <= 0) return sleep(20);
    const read = (await this.taking.xreadgroup(
      "GROUP", "workers", this.name, "COUNT", free, "BLOCK", 1000, "STREAMS", this.offers, ">",
    )) as Streams;
    for (const [id, fields] of read?.[0]?.[1] ?? []) {
      const job = { offer: data<Offer>(fields), stop: new AbortController(), stale: false };
      this.jobs.set(job.offer.HistoryId, job);
      if (await this.say(job, "status", { Status: "Running" })) void this.run(job);
      else this.jobs.delete(job.offer.HistoryId);
      await this.bus.xack(this.offers, "workers", id);
      await this.bus.xdel(this.offers, id);
    }
  }

  async serve() {
    for (const signal of ["SIGTERM", "SIGINT"] as const) process.once(signal, () => (this.leaving = true));
    void this.beat();
    void this.listen();
    while (!this.leaving) {
      try {
        await this.take();
      } catch (error) {
        if (!String(error).includes("NOGROUP")) throw error;
        await this.bus.xgroup("CREATE", this.offers, "workers", "0", "MKSTREAM").catch((refused: unknown) => {
          if (!String(refused).includes("BUSYGROUP")) throw refused;
        });
      }
    }
    await this.heartbeat(); // It takes no more.
    while (this.jobs.size > 0) await sleep(50);
    process.exit(0);
  }
}

await new BusWorker(url, queue, Number(slots)).serve();
