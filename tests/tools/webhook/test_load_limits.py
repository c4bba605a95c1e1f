"""Load limits: bodies and reviews beyond the limits wait, and are refused when that takes too long."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from dra_driver.tools.webhook.handler import MAX_REVIEWS, SMALL_BYTES, LoadLimits, OverloadedError

LARGE = 10 * SMALL_BYTES


async def is_refused(context):
    try:
        async with context:
            return False
    except OverloadedError:
        return True


def test_small_bodies_do_not_count():
    async def run():
        limits = LoadLimits(("/a",), max_bytes=0)
        async with limits.for_body(SMALL_BYTES), limits.for_body(SMALL_BYTES):
            pass

    asyncio.run(run())


def test_large_bodies_count_with_all_their_bytes_until_their_review_ends():
    async def run():
        limits = LoadLimits(("/a",), max_bytes=2 * LARGE, wait_s=0.01)
        async with limits.for_body(LARGE), limits.for_body(LARGE):
            assert await is_refused(limits.for_body(LARGE))
        assert not await is_refused(limits.for_body(2 * LARGE))

    asyncio.run(run())


def test_a_body_that_waits_is_admitted_when_another_is_done():
    async def run():
        limits = LoadLimits(("/a",), max_bytes=LARGE, wait_s=60)
        async with limits.for_body(LARGE):
            second = asyncio.create_task(is_refused(limits.for_body(LARGE)))
            await asyncio.sleep(0)
            assert not second.done()
        assert await second is False

    asyncio.run(run())


def test_one_large_review_of_a_path_runs_at_a_time_and_small_ones_beside_it():
    async def run():
        limits = LoadLimits(("/a", "/b"), wait_s=0.01)
        async with limits.for_review("/a", LARGE), limits.for_review("/a", 1), limits.for_review("/b", LARGE):
            assert await is_refused(limits.for_review("/a", LARGE))
        assert not await is_refused(limits.for_review("/a", LARGE))

    asyncio.run(run())


def test_reviews_of_one_path_do_not_count_for_another_path():
    async def run():
        limits = LoadLimits(("/a", "/b"), wait_s=0.01)
        async with AsyncExitStack() as held:
            for _ in range(MAX_REVIEWS):
                await held.enter_async_context(limits.for_review("/a", 1))
            assert await is_refused(limits.for_review("/a", 1))
            assert await is_refused(limits.for_review("/a", LARGE))
            assert not await is_refused(limits.for_review("/b", 1))
        assert not await is_refused(limits.for_review("/a", LARGE))

    asyncio.run(run())
