#!/usr/bin/env python3
"""A worker of the bus. It knows a Redis server and the names of channels, and no node.

    python bus_worker.py redis://127.0.0.1:6379 mail --slots 4

The payload of its tasks is an object: it prints `lines` lines and works for `seconds`. With `fail`, it fails with that text.
What must stay true: it names every lease that it has in its heartbeats, it repeats its last words until they are taken, and it stops
when it is told to, or when nobody has heard of it for the length of a lease.
"""

import argparse
import json
import os
import signal
import threading
import time

import redis

BEAT = 2.0  # Seconds between two heartbeats; a sixth of a lease, if that is less.
AGAIN = 1.0  # Seconds after which last words are said again.


class Stopped(Exception):
    pass


class Job:
    def __init__(self, offer):
        self.task, self.lease = offer["JobId"], offer["HistoryId"]
        self.payload, self.lasts = offer["Payload"], offer["LeaseMs"] / 1000
        self.stop = threading.Event()
        self.stale = False  # Nothing counts any more that is said.


class Worker:
    def __init__(self, url, queue, slots, domain):
        # A read may wait for messages longer than a connection may be silent.
        self.redis = redis.Redis.from_url(url, decode_responses=True, socket_timeout=10)
        self.prefix = "orchestrix." if domain == "default" else f"orchestrix.{domain}."
        self.queue, self.slots, self.name = queue, slots, f"py-{os.getpid()}"
        self.offers = f"{self.prefix}job.dispatch.{queue}"
        self.jobs = {}  # By lease.
        self.heard_at = time.monotonic()
        self.leaving = threading.Event()

    def send(self, channel, **message):
        """Whether the channel is there. One that is gone says that the lease is over."""
        while True:
            try:
                return self.redis.xadd(self.prefix + channel, {"data": json.dumps(message)}, nomkstream=True) is not None
            except redis.exceptions.ConnectionError:
                time.sleep(AGAIN)

    def say(self, job, channel, **message):
        return self.send(f"job.{job.task}.{channel}", JobId=job.task, HistoryId=job.lease, WorkerId=self.name, **message)

    def heartbeat(self):
        capacity = 0 if self.leaving.is_set() else self.slots
        leases = list(self.jobs)
        if self.send("worker.heartbeat", WorkerId=self.name, Queues=[self.queue], Capacity=capacity, Jobs=leases):
            self.heard_at = time.monotonic()

    def beat(self):
        while True:
            self.heartbeat()
            jobs = list(self.jobs.values())
            for job in jobs:
                if time.monotonic() - self.heard_at > job.lasts:
                    job.stop.set()
            time.sleep(min([BEAT] + [job.lasts / 6 for job in jobs]))

    def listen(self):
        last = "$"
        while True:
            try:
                answer = self.redis.xread({self.prefix + "job.cancel": last}, block=5000)
            except redis.exceptions.ConnectionError:
                time.sleep(AGAIN)
                continue
            for _, entries in answer or []:
                for last, fields in entries:
                    message = json.loads(fields["data"])
                    job = self.jobs.get(message["HistoryId"])
                    if job and message["WorkerId"] == self.name:
                        job.stale = job.stale or message["Reason"] == "Stale"
                        job.stop.set()

    def run(self, job):
        try:
            words = {"Status": "Completed", "Result": self.work(job)}
        except Stopped:
            words = {"Status": "Failed", "Error": "it was told to stop", "Retry": True}
        except Exception as error:
            words = {"Status": "Failed", "Error": str(error)}
        while not job.stale and self.say(job, "status", **words):
            time.sleep(AGAIN)
        del self.jobs[job.lease]

    def work(self, job):
        """Your work."""
        for n in range(job.payload.get("lines", 0)):
            self.say(job, "logs", Lines=[{"Text": f"line {n}"}], Offset=n)
        if "fail" in job.payload:
            raise RuntimeError(job.payload["fail"])
        if job.stop.wait(job.payload.get("seconds", 0)):
            raise Stopped
        return {"worker": self.name}

    def take(self):
        """Takes offers as long as there is room, and never more."""
        free = self.slots - len(self.jobs)
        if free <= 0:
            return time.sleep(0.02)
        answer = self.redis.xreadgroup("workers", self.name, {self.offers: ">"}, count=free, block=1000)
        for entry, fields in answer[0][1] if answer else []:
            job = Job(json.loads(fields["data"]))
            self.jobs[job.lease] = job
            if self.say(job, "status", Status="Running"):
                threading.Thread(target=self.run, args=[job], daemon=True).start()
            else:
                del self.jobs[job.lease]
            self.redis.xack(self.offers, "workers", entry)
            self.redis.xdel(self.offers, entry)

    def serve(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.leaving.set())
        for loop in (self.beat, self.listen):
            threading.Thread(target=loop, daemon=True).start()
        while not self.leaving.is_set():
            try:
                self.take()
            except redis.exceptions.ConnectionError:
                time.sleep(AGAIN)
            except redis.exceptions.ResponseError as error:
                if not str(error).startswith("NOGROUP"):
                    raise
                self.make_group()
        self.heartbeat()  # It takes no more.
        while self.jobs:
            time.sleep(0.05)

    def make_group(self):
        try:
            self.redis.xgroup_create(self.offers, "workers", "0", mkstream=True)
        except redis.exceptions.ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A worker of the bus.")
    parser.add_argument("url", help="address of the bus, as in redis://worker:PASSWORD@127.0.0.1:6379")
    parser.add_argument("queue")
    parser.add_argument("--slots", type=int, default=4, help="tasks at one time [default: 4]")
    parser.add_argument("--domain", default="default")
    given = parser.parse_args()
    Worker(given.url, given.queue, given.slots, given.domain).serve()
