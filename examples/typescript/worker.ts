// A worker that divides the shards of a service with others, over ZeroMQ.
//
//     node build/worker.js tcp://127.0.0.1:5555 orders worker-1 10
//
// It prints a line of JSON when it begins to serve a shard, whenever it does something with one, and when it has
// stopped. What must stay true: it does nothing with a shard after its time is over, by its own clock, and it says
// that it let go of a shard only after it has stopped.

import { randomUUID } from "node:crypto";
import { Dealer } from "zeromq";

const [address, service, worker, count] = process.argv.slice(2);
if (!address || !service || !worker || !count) {
  console.error("usage: worker.js ADDRESS SERVICE WORKER SHARDS, as in tcp://127.0.0.1:5555 orders worker-1 10");
  process.exit(2);
}

/** What the coordinator says: what to serve, and for how long. */
interface Assignment {
  assignedShards: number[];
  /** One for each shard; a later worker has a larger one. Show it to whatever you write to. */
  tokens: number[];
  generation: number;
  /** Counts from when we sent what this answers. What answers nothing has none, and promises no time. */
  leaseMs?: number;
  /** That of what is answered; a push has none. */
  seq?: number;
  /** Another process has our name, or our time was over. */
  fenced?: boolean;
}

/** How often something is done with every shard. */
const TICK_MS = 20;
/** How soon something is said again that could not be sent. */
const AGAIN_MS = 100;
/** Clocks differ: we trust ours for a little less than what we were told. */
const TRUST = 0.99;

/** A clock that is never set, in milliseconds. */
const clock = () => Number(process.hrtime.bigint()) / 1e6;

function tell(event: "serve" | "use" | "stop", shard: number, token: number, at = clock()) {
  console.log(JSON.stringify({ at: Math.round(at * 1e6), event, shard, token }));
}

class ShardWorker {
  // What cannot be sent now is not kept for later: an old heartbeat says what is not true any more.
  private readonly socket = new Dealer({ immediate: true, sendTimeout: 0, linger: 1000 });
  /** Says that it is still us, also over a new connection. */
  private readonly session = randomUUID();
  /** Every shard that we serve, with its token. */
  private readonly serving = new Map<number, number>();
  private generation = 0;
  /** Until when we may serve. */
  private until = 0;
  /** Until we hear otherwise. */
  private leaseMs = 15_000;
  private seq = 0;
  /** When we said what has no answer yet. */
  private readonly sent = new Map<number, number>();
  /** Whether the coordinator has heard of us. From then on we only send heartbeats: one that serves nothing joins, too. */
  private registered = false;
  private speakAt = 0;
  private comeAgainAt = 0;
  private leaving = false;

  async run(address: string) {
    this.socket.connect(address);
    const ticking = setInterval(() => this.tick(), TICK_MS);
    for (const signal of ["SIGTERM", "SIGINT"] as const) {
      process.once(signal, () => {
        clearInterval(ticking);
        this.leave();
      });
    }
    for await (const frames of this.socket) {
      const message = JSON.parse(String(frames.at(-1)));
      if (message.type === "assignment") this.hear(message.data);
      else if (message.data.code !== "fenced") console.error(message.data.message);
    }
  }

  /** Looks at the clock first: we may have slept, and another may serve what was ours. */
  private tick() {
    const now = clock();
    if (now >= this.until) this.stopAll();
    for (const [shard, token] of this.serving) tell("use", shard, token, now);
    if (now >= this.speakAt) this.speak(now);
  }

  private speak(now: number) {
    this.speakAt = now + this.leaseMs / 3;
    const seq = ++this.seq;
    this.sent.set(seq, now);
    if (!this.registered) return this.send("register", { seq });
    this.send("heartbeat", { assignedShards: [...this.serving.keys()], generation: this.generation, seq });
  }

  private hear(told: Assignment) {
    const now = clock();
    if (told.fenced) return this.fenced(now);
    this.prolong(told);
    if (now >= this.until) this.stopAll();
    if (told.generation < this.generation || this.leaving) return;
    this.generation = told.generation;
    const tokens = new Map(told.assignedShards.map((shard, n) => [shard, told.tokens[n]!]));
    for (const [shard, token] of [...this.serving]) {
      if (tokens.get(shard) !== token) {
        this.stop(shard);
        this.speakAt = now; // Others wait for it.
      }
    }
    if (told.seq === undefined) this.speakAt = now; // Nobody asked for it: only an answer lets us begin.
    if (now >= this.until || told.seq === undefined) return;
    for (const [shard, token] of tokens) {
      if (this.serving.has(shard)) continue;
      this.serving.set(shard, token);
      tell("serve", shard, token, now);
    }
  }

  /** Our time counts from when we sent what is answered here, not from when we hear of it. */
  private prolong(told: Assignment) {
    if (told.leaseMs === undefined) return;
    this.leaseMs = told.leaseMs;
    const sent = this.sent.get(told.seq ?? 0);
    if (sent === undefined) return; // It answers what we said before we were fenced.
    this.registered = true;
    for (const seq of this.sent.keys()) if (seq <= told.seq!) this.sent.delete(seq);
    this.until = Math.max(this.until, sent + told.leaseMs * TRUST);
    this.speakAt = Math.min(this.speakAt, sent + told.leaseMs / 3); // It may be shorter than we thought.
  }

  private fenced(now: number) {
    // If our time was not over, another process has our name: it may keep it for a while.
    if (now < this.until) this.comeAgainAt = now + 2 * this.leaseMs;
    this.speakAt = Math.max(now, this.comeAgainAt);
    this.until = 0;
    this.generation = 0;
    this.sent.clear();
    this.stopAll();
  }

  private stop(shard: number) {
    const token = this.serving.get(shard)!;
    // A real worker would wait here until nothing is done with the shard any more.
    this.serving.delete(shard);
    tell("stop", shard, token);
  }

  private stopAll() {
    for (const shard of [...this.serving.keys()]) this.stop(shard);
  }

  private leave() {
    this.leaving = true;
    this.stopAll();
    this.send("deregister", {});
    this.socket.close();
  }

  private send(type: string, data: object) {
    const common = { serviceName: service, workerId: worker, session: this.session };
    const shards = type === "deregister" ? {} : { maxShardCount: Number(count) };
    const text = JSON.stringify({ type, data: { ...common, ...shards, ...data } });
    // Without a connection we try again soon, and at last our time ends.
    this.socket.send(text).catch(() => (this.speakAt = clock() + AGAIN_MS));
  }
}

await new ShardWorker().run(address);
