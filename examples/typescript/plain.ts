// A plain worker: it registers, reads one assignment, and says from then on that it serves those shards.
//
//     node build/plain.js tcp://127.0.0.1:5555 orders worker-1 10
//
// This is all that the protocol asks for. Such a worker goes on with what it was told first, and gets no others. It does not
// count its time, so after a pause that is longer than that, it serves what others serve, too: worker.ts does not.

import { Dealer } from "zeromq";

const [address, serviceName, workerId, count, seconds = "10"] = process.argv.slice(2);
if (!address || !serviceName || !workerId || !count) {
  console.error("usage: plain.js ADDRESS SERVICE WORKER SHARDS [SECONDS BETWEEN HEARTBEATS]");
  process.exit(2);
}

const maxShardCount = Number(count);
const socket = new Dealer({ linger: 1000 });
const send = (type: string, data: object) =>
  socket.send(JSON.stringify({ type, data: { serviceName, workerId, ...data } }));
const tell = (event: string, shard: number) =>
  console.log(JSON.stringify({ at: Number(process.hrtime.bigint()), event, shard, token: 0 }));

socket.connect(address);
await send("register", { maxShardCount });

let assignedShards: number[] = [];
for await (const [frame] of socket) {
  const { type, data } = JSON.parse(String(frame));
  if (type !== "assignment") continue;
  assignedShards = data.assignedShards;
  break;
}

for (const shard of assignedShards) tell("serve", shard);
const using = setInterval(() => assignedShards.forEach((shard) => tell("use", shard)), 20);
const beating = setInterval(() => send("heartbeat", { maxShardCount, assignedShards }), Number(seconds) * 1000);

for (const signal of ["SIGTERM", "SIGINT"] as const) {
  process.once(signal, async () => {
    clearInterval(using);
    clearInterval(beating);
    for (const shard of assignedShards) tell("stop", shard);
    await send("deregister", {});
    socket.close();
  });
}
