#!/usr/bin/env python3
"""A worker that divides the shards of a service with others, over ZeroMQ.

    python worker.py tcp://127.0.0.1:5555 orders worker-1 10

It prints a line of JSON when it begins to serve a shard, whenever it does something with one, and when it has stopped.
What must stay true: it does nothing with a shard after its time is over, by its own clock, and it says that it let go
of a shard only after it has stopped.
"""

import argparse
import json
import signal
import sys
import time
import uuid

import zmq

TICK = 0.02  # Seconds between two uses of a shard.
AGAIN = 0.1  # Seconds after which something is said again that could not be sent.
TRUST = 0.99  # Clocks differ: we trust ours for a little less than what we were told.


def tell(event, shard, token, at=None):
    at = time.monotonic() if at is None else at
    print(json.dumps({"at": round(at * 1e9), "event": event, "shard": shard, "token": token}), flush=True)


class ShardWorker:
    def __init__(self, address, service, worker, shards):
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        # What cannot be sent now is not kept for later: an old heartbeat says what is not true any more.
        self.socket.setsockopt(zmq.IMMEDIATE, 1)
        self.socket.setsockopt(zmq.LINGER, 1000)
        self.socket.connect(address)
        # The session says that it is still us, also over a new connection.
        self.common = {"serviceName": service, "workerId": worker, "session": str(uuid.uuid4())}
        self.shards = shards
        self.serving = {}  # Every shard that we serve, with its token.
        self.generation = 0
        self.until = 0.0  # Until when we may serve.
        self.lease = 15.0  # Until we hear otherwise.
        self.seq = 0
        self.sent = {}  # When we said what has no answer yet.
        # Whether the coordinator has heard of us. From then on we only send heartbeats: one that serves nothing joins, too.
        self.registered = False
        self.speak_at = 0.0
        self.come_again_at = 0.0
        self.leaving = False

    def run(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.on_signal)
        next_tick = 0.0
        while not self.leaving:
            if self.socket.poll(max(0, next_tick - time.monotonic()) * 1000):
                self.take(json.loads(self.socket.recv_multipart()[-1]))
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + TICK
                self.tick()
        self.stop_all()
        self.send("deregister")
        self.socket.close()

    def on_signal(self, *_):
        self.leaving = True

    def tick(self):
        """Looks at the clock first: we may have slept, and another may serve what was ours."""
        now = time.monotonic()
        if now >= self.until:
            self.stop_all()
        for shard, token in self.serving.items():
            tell("use", shard, token, now)
        if now >= self.speak_at:
            self.speak(now)

    def speak(self, now):
        self.speak_at = now + self.lease / 3
        self.seq += 1
        self.sent[self.seq] = now
        if not self.registered:
            return self.send("register", maxShardCount=self.shards, seq=self.seq)
        serves = {"assignedShards": list(self.serving), "generation": self.generation, "seq": self.seq}
        self.send("heartbeat", maxShardCount=self.shards, **serves)

    def take(self, message):
        if message["type"] == "assignment":
            self.hear(message["data"])
        elif message["data"]["code"] != "fenced":
            print(message["data"]["message"], file=sys.stderr)

    def hear(self, told):
        now = time.monotonic()
        if told.get("fenced"):
            return self.fenced(now)
        self.prolong(told)
        if now >= self.until:
            self.stop_all()
        if told["generation"] < self.generation:
            return
        self.generation = told["generation"]
        tokens = dict(zip(told["assignedShards"], told["tokens"]))
        for shard, token in list(self.serving.items()):
            if tokens.get(shard) != token:
                self.stop(shard)
                self.speak_at = now  # Others wait for it.
        if "seq" not in told:
            self.speak_at = now  # Nobody asked for it: only an answer lets us begin.
            return
        if now >= self.until:
            return
        for shard, token in tokens.items():
            if shard not in self.serving:
                self.serving[shard] = token
                tell("serve", shard, token, now)

    def prolong(self, told):
        """Our time counts from when we sent what is answered here, not from when we hear of it."""
        seq, lease_ms = told.get("seq"), told.get("leaseMs")
        if lease_ms is None:
            return
        self.lease = lease_ms / 1000
        if seq not in self.sent:
            return  # It answers what we said before we were fenced.
        self.registered = True
        self.until = max(self.until, self.sent[seq] + self.lease * TRUST)
        self.speak_at = min(self.speak_at, self.sent[seq] + self.lease / 3)  # It may be shorter than we thought.
        self.sent = {later: at for later, at in self.sent.items() if later > seq}

    def fenced(self, now):
        # If our time was not over, another process has our name: it may keep it for a while.
        if now < self.until:
            self.come_again_at = now + 2 * self.lease
        self.speak_at = max(now, self.come_again_at)
        self.until, self.generation = 0.0, 0
        self.sent.clear()
        self.stop_all()

    def stop(self, shard):
        # A real worker would wait here until nothing is done with the shard any more.
        tell("stop", shard, self.serving.pop(shard))

    def stop_all(self):
        for shard in list(self.serving):
            self.stop(shard)

    def send(self, kind, **data):
        try:
            self.socket.send_json({"type": kind, "data": {**self.common, **data}}, zmq.NOBLOCK)
        except zmq.Again:
            # Without a connection we try again soon, and at last our time ends.
            self.speak_at = time.monotonic() + AGAIN


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("address", help="where the coordinator speaks ZeroMQ, as in tcp://127.0.0.1:5555")
    arguments.add_argument("service", help="what is divided")
    arguments.add_argument("worker", help="who we are: no other worker of the service has this name")
    arguments.add_argument("shards", type=int, help="into how many shards it is divided")
    ShardWorker(**vars(arguments.parse_args())).run()
