"""The published Python client with the addresses of three nodes, each of which is killed once meanwhile.

600 messages are pushed and worked off at the same time. LANEWAY_URLS holds the addresses, separated by commas. The line
`kill N` on standard output has node N killed with SIGKILL; when it runs and serves again, `ready N` comes on standard input.
The first check that fails ends the script with a trace and exit code 1. `cargo xtask clients` runs it.

Checked: every message is stored once, however often its push had to be repeated; every message is delivered, in the order of
its lane; none comes again after its acknowledgment succeeded. One may come again when its acknowledgment was answered by
nobody, or came too late: each such case is printed with its reason.
"""

import asyncio
import os
import sys
import time

from queen import Queen

MESSAGES = 600
LANES = 8
AT_ONCE = 4
QUEUE = "py-failover"
GROUP = "workers"
LEASE_SECONDS = 4

# After so many messages the node is killed. Before the next one dies, it must be back: two of three are a quorum.
KILLS = {100: 1, 300: 2, 500: 3}

# Between two pushes, so that they go on while a node is down.
PUSH_PAUSE_SECONDS = 0.04

# Everything takes a fraction of it.
END_SECONDS = 300


class Ledger:
    """What was delivered, lane by lane, and why some of it may come again."""

    def __init__(self):
        self.next = [0] * LANES
        self.open = {}
        self.settled = set()
        self.repeats = []

    def saw(self, message):
        lane, place = message["data"]["lane"], message["data"]["place"]
        at = (lane, place)
        assert at not in self.settled, f"{at} came again after its acknowledgment had succeeded"
        assert place <= self.next[lane], f"lane {lane}: {place} came before {self.next[lane]}"
        if place == self.next[lane]:
            self.next[lane] += 1
        else:
            since, why = self.open[at]
            late = time.monotonic() - since
            if why is None:
                # The lease began when the node gave it, which may be a while before its answer was here.
                assert late > LEASE_SECONDS / 2, f"{at} came again {late:.2f} s after its delivery, under a live lease"
                why = "its acknowledgment was still under way when the lease ended"
            self.repeats.append(f"{at} came again after {late:.2f} s: {why}")
        self.open[at] = (time.monotonic(), None)

    def acked(self, messages, answer):
        items = answer.get("results") or [answer] * len(messages)
        for message, item in zip(messages, items):
            at = (message["data"]["lane"], message["data"]["place"])
            if item["success"]:
                self.settle(at)
            elif at not in self.settled:
                self.open[at] = (self.open[at][0], item["error"])

    def settle(self, at):
        """Later messages of a lane come only once the earlier ones are settled: an acknowledgment of those of which only the
        answer was lost had been done."""
        lane, place = at
        failed = {
            earlier
            for earlier, (_, why) in self.open.items()
            if earlier[0] == lane and earlier[1] < place and why is not None
        }
        for done in failed | {at}:
            self.open.pop(done, None)
            self.settled.add(done)


async def push_all(queen, kills):
    """Some messages of a lane, then some of the next; each push is repeated under its transaction ids until somebody says that
    all of it is stored."""
    failures, duplicates, places = 0, 0, [0] * LANES
    for number in range(0, MESSAGES, AT_ONCE):
        if number in KILLS:
            await kills.kill(KILLS[number])
        lane = number // AT_ONCE % LANES
        items = []
        for _ in range(AT_ONCE):
            place = places[lane]
            places[lane] += 1
            items.append({"transactionId": f"message-{lane}-{place}", "data": {"lane": lane, "place": place}})
        while True:
            try:
                results = await queen.queue(QUEUE).partition(f"lane-{lane}").push(items)
                states = [result["status"] for result in results]
                why = results
            except Exception as error:
                states, why = [], repr(error)
            if len(states) == AT_ONCE and set(states) <= {"queued", "duplicate"}:
                duplicates += states.count("duplicate")
                break
            failures += 1
            print(f"push from message {number} is repeated: {why}", flush=True)
            await asyncio.sleep(0.05)
        await asyncio.sleep(PUSH_PAUSE_SECONDS)
    await kills.end()
    print(f"ok: {MESSAGES} pushed; {failures} pushes failed and were repeated, {duplicates} messages had been stored before")


class Kills:
    """Has nodes killed, one at a time."""

    def __init__(self):
        self.back = None

    async def kill(self, node):
        await self.end()
        print(f"kill {node}", flush=True)
        self.back = asyncio.create_task(asyncio.to_thread(self.wait_for, node))

    async def end(self):
        if self.back:
            await self.back

    @staticmethod
    def wait_for(node):
        line = sys.stdin.readline()
        assert line == f"ready {node}\n", line


async def consume(queen, ledger, done):
    """Works off what comes, and acknowledges each batch itself to learn what became of that."""

    async def handle(messages):
        for message in messages:
            ledger.saw(message)
        answer = await queen.ack(messages, True, {"group": GROUP})
        ledger.acked(messages, answer)

    failures = 0
    while not done.is_set():
        queue = queen.queue(QUEUE).group(GROUP).subscription_mode("all").batch(20).partitions(4).auto_ack(False)
        try:
            await queue.timeout_millis(1000).consume(handle, signal=done)
        except AssertionError:
            raise
        except Exception as error:
            # The client gives up when no node has a leader yet; whoever uses it goes on.
            failures += 1
            print(f"consume goes on: {error!r}", flush=True)
            await asyncio.sleep(0.05)
    return failures


async def until_settled(ledger, pushing):
    await pushing
    while len(ledger.settled) < MESSAGES:
        await asyncio.sleep(0.05)


async def stored_once(queen):
    """Another group reads all from the beginning: each message is there once, in the order of its lane."""
    next_place = [0] * LANES
    while sum(next_place) < MESSAGES:
        queue = queen.queue(QUEUE).group("auditors").subscription_mode("all").batch(1000).partitions(LANES)
        messages = await queue.timeout_millis(2000).pop()
        for message in messages:
            lane, place = message["data"]["lane"], message["data"]["place"]
            assert place == next_place[lane], f"lane {lane}: {place} is stored where {next_place[lane]} was to be"
            next_place[lane] += 1
        if messages:
            answer = await queen.ack(messages, True, {"group": "auditors"})
            assert answer["success"], answer
    for group in (GROUP, "auditors"):
        left = await queen.queue(QUEUE).group(group).wait(False).pop()
        assert left == [], left
    print(f"ok: {MESSAGES} messages are stored, each once and in order, and nothing is left")


async def main():
    urls = os.environ["LANEWAY_URLS"].split(",")
    async with Queen(urls) as queen:
        await queen.queue(QUEUE).config({"leaseTime": LEASE_SECONDS, "retryLimit": 3}).create()
        ledger, done = Ledger(), asyncio.Event()
        consumers = [asyncio.create_task(consume(queen, ledger, done)) for _ in range(2)]
        settled = asyncio.create_task(until_settled(ledger, push_all(queen, Kills())))
        ended, _ = await asyncio.wait([settled, *consumers], timeout=END_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
        assert settled in ended, f"after {END_SECONDS} s, of each lane {ledger.next} were delivered, {ledger.open} are open"
        done.set()
        failures = sum(await asyncio.gather(*consumers))
        for repeat in ledger.repeats:
            print(repeat)
        print(f"ok: each was delivered in order; {len(ledger.repeats)} came again, explained above; {failures} pops failed")
        await stored_once(queen)


asyncio.run(main())
