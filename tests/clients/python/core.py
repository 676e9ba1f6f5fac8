"""The published Python client against a running broker, whose address is in LANEWAY_URL. Names of queues start with LANEWAY_PREFIX.

Push, consume with auto-ack, a failing handler that ends in the dead-letter store, replay. The first check that fails ends the
script with a trace and exit code 1. `cargo xtask clients` runs it.
"""

import asyncio
import os

from queen import Queen


def name(queue):
    """The queue's name in this run."""
    return os.environ.get("LANEWAY_PREFIX", "") + "py-" + queue


async def consume_acks(queen):
    """Five messages in one lane are worked off in order; afterwards nothing is left for the group."""
    pushed = await queen.queue(name("orders")).push([{"data": {"n": n}} for n in range(5)])
    assert [one["status"] for one in pushed] == ["queued"] * 5, pushed

    seen = []

    async def handle(message):
        seen.append(message["data"]["n"])

    consumer = queen.queue(name("orders")).group("billing").subscription_mode("all").each().limit(5).wait(False)
    await consumer.idle_millis(2000).consume(handle)
    assert seen == [0, 1, 2, 3, 4], seen
    assert await queen.queue(name("orders")).group("billing").wait(False).pop() == []
    print("ok: consume with auto-ack")


async def repeated_push_is_duplicate(queen):
    """A repeated transaction id is stored once."""
    item = {"transactionId": "py-1", "data": {"n": 1}}
    first = await queen.queue(name("dedup")).push([item])
    second = await queen.queue(name("dedup")).push([item])
    # The client hands duplicates to a callback; whatever it returns, one message is there.
    assert first[0]["status"] == "queued", first
    assert second is None or second[0]["status"] == "duplicate", second
    popped = await queen.queue(name("dedup")).wait(False).pop()
    assert [message["transactionId"] for message in popped] == ["py-1"], popped
    result = await queen.ack(popped[0])
    assert result["success"], result
    print("ok: repeated push")


async def failing_handler_dead_letters(queen):
    """With a retry limit of 2 the third failure files the message; a replay brings it back once."""
    queue = queen.queue(name("payments"))
    configured = await queue.config({"retryLimit": 2}).create()
    assert configured["options"]["retryLimit"] == 2, configured
    await queen.queue(name("payments")).push([{"transactionId": "pay-7", "data": {"n": 7}}])

    deliveries = 0

    async def fail(message):
        nonlocal deliveries
        deliveries += 1
        raise RuntimeError("card declined")

    for _ in range(6):
        if (await queen.queue(name("payments")).dlq("billing").get())["messages"]:
            break
        consumer = queen.queue(name("payments")).group("billing").subscription_mode("all").each().limit(1).wait(False)
        try:
            await consumer.idle_millis(500).consume(fail)
        except RuntimeError:
            pass
    assert deliveries == 3, deliveries

    dead = (await queen.queue(name("payments")).dlq("billing").limit(10).get())["messages"]
    assert len(dead) == 1, dead
    assert dead[0]["transactionId"] == "pay-7" and dead[0]["data"] == {"n": 7}, dead
    assert "card declined" in dead[0]["errorMessage"], dead
    print("ok: dead letter")

    replayed = await queen.admin.retry_message(dead[0]["partitionId"], "pay-7")
    assert replayed["success"], replayed
    assert (await queen.queue(name("payments")).dlq().get())["messages"] == []
    popped = await queen.queue(name("payments")).group("billing").wait(False).pop()
    assert [message["data"]["n"] for message in popped] == [7], popped
    result = await queen.ack(popped[0], True, {"group": "billing"})
    assert result["success"], result
    assert await queen.queue(name("payments")).group("billing").wait(False).pop() == []
    print("ok: replay")


async def main():
    url = os.environ["LANEWAY_URL"]
    async with Queen(url) as queen:
        await consume_acks(queen)
        await repeated_push_is_duplicate(queen)
        await failing_handler_dead_letters(queen)


asyncio.run(main())
