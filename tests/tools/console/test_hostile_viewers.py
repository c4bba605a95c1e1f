"""Viewers who ask for too much: the work for all of them fits into the console's memory, and they take turns."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from dra_driver.tools.console.cluster_reader import WorkBudget
from dra_driver.tools.console.events import NoPlaceError, SharedPlaces
from tests.support.api.guarded_api import EVERYTHING, GuardedApi
from tests.support.chart import ROOT
from tests.support.console.cluster import fill
from tests.support.console.server import running_server
from tests.support.waiting import until
from tests.tools.console.support.slow_claims import CLAIM, SLOW, children_of

ALL = [(one, "") for one in EVERYTHING]
NAMES = ("alice", "bob", "carol", "dave")
MIB = 1 << 20
LIMIT = 1 << 30


@pytest.fixture
def running(tmp_path):
    with GuardedApi() as api, ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as silent:
        fill(api)
        for name in NAMES:
            api.add(f"{name}-token", name, *ALL)
        prometheus = f"http://127.0.0.1:{silent.getsockname()[1]}"
        words = (str(api.write_kubeconfig(tmp_path / "config")), "--prometheus", prometheus)
        server = stack.enter_context(running_server(*words))
        for name in NAMES:
            stack.enter_context(server.looked_at(authorization=f"Bearer {name}-token"))
            until(lambda name=name: server.claims(f"{name}-token") >= {"mine"})
        yield server


def questions_at_work(server):
    """Return the processes that work on questions: children of workers, which are children of the spawner."""
    return children_of(*children_of(*children_of(server.pid)))


def of_status(pid, name):
    try:
        found = re.search(rf"^{name}.*?(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) << 10 if found else 0


def may_add(pid):
    """Return how many bytes the limit of a process lets it add to what its parent holds."""
    try:
        soft = re.search(r"Max address space\s+(\S+)", Path(f"/proc/{pid}/limits").read_text())[1]
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    except OSError:
        return 0
    return 0 if soft == "unlimited" else int(soft) - of_status(parent, "VmSize")


def post(server, name, objects):
    origin = f"http://localhost:{server.port}"
    headers = {"authorization": f"Bearer {name}-token", "origin": origin}
    return server.send("POST", "/api/v1/what-if", {"objects": objects}, **headers)


SLOW_CLAIMS = "---".join(CLAIM.format(number=-number, slow=SLOW.format(number=-number)) for number in range(5))
SLOW_CLAIMS = SLOW_CLAIMS.replace("gpu.nvidia.com", "any")


@pytest.mark.parametrize("length", [len(SLOW_CLAIMS), MIB - 100])
def test_what_ifs_of_all_viewers_together_fit_into_the_memory_of_the_chart(running, length):
    most, sums, text = 0, 0, SLOW_CLAIMS + "\n#" + "x" * (length - len(SLOW_CLAIMS))
    with ThreadPoolExecutor(16) as threads:
        for name in NAMES * 4:
            threads.submit(post, running, name, text)
        until(lambda: len(questions_at_work(running)) >= 2)
        for _ in range(50):
            at_work = questions_at_work(running)
            most, sums = max(most, len(at_work)), max(sums, sum(map(may_add, at_work)))
            processes = {running.pid, *children_of(running.pid)} | at_work | children_of(*children_of(running.pid))
            assert sum(of_status(one, "RssAnon:") for one in processes) < LIMIT
            assert running.ask("alice-token", "offers").status == 200
        assert running.ask("bob-token", "claims").status == 200, "other questions wait for simulations"
        os.kill(running.pid, signal.SIGKILL)  # its viewers would wait for a minute
    assert most == 2
    assert 0 < sums <= 2 * 160 * MIB + 16 * MIB  # the parent may have grown a little since


def test_the_work_that_is_allowed_fits_into_the_limit_of_the_chart():
    work, chart = WorkBudget.within(LIMIT), yaml.safe_load((ROOT / "deploy/helm/values.yaml").read_text())
    assert chart["console"]["resources"]["limits"]["memory"] == "1Gi"
    assert 2 * work.heavy_bytes + 4 * work.quick_bytes + 2 * work.command_bytes <= LIMIT - 128 * MIB
    for places, of_one, in_all in ((work.heavy, 1, 2), (work.quick, 2, 4), (work.commands, 1, 2)):
        assert asyncio.run(most_at_once([places.of_backend()])) == of_one
        assert asyncio.run(most_at_once([places.of_backend() for _ in range(8)])) == in_all


async def most_at_once(backends):
    held = most = 0

    async def work(one):
        nonlocal held, most
        async with one.place():
            held += 1
            most = max(most, held)
            await asyncio.sleep(0)
            held -= 1

    await asyncio.gather(*(work(one) for one in backends for _ in range(3)))
    return most


def test_backends_take_turns_and_one_can_not_fill_the_queue():
    async def requests():
        shared, order = SharedPlaces(1, 1, 8), []
        greedy, modest = shared.of_backend(), shared.of_backend()

        async def work(one, name):
            async with one.place():
                order.append(name)
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(work(greedy, "greedy")) for _ in range(12)]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(work(modest, "modest")))
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(one, NoPlaceError) for one in ended] == [False] * 9 + [True] * 3 + [False]
        assert order.index("modest") <= 2

    asyncio.run(requests())


def test_lookups_of_all_viewers_together_are_some_processes_with_little_memory_each(running):
    spawner = children_of(running.pid)

    def commands():
        return children_of(running.pid) - spawner

    with ThreadPoolExecutor(48) as threads:
        asked = [
            threads.submit(running.ask, f"{name}-token", "usage", f"?days={days}")
            for name in NAMES
            for days in range(1, 13)
        ]
        until(lambda: len(commands()) == 2)
        until(lambda: sum(one.done() for one in asked) >= 12, "the refusal of what is too much")
        assert {one.result().status for one in asked if one.done()} <= {503, 502}
        assert len(commands()) <= 2
        for one in commands():
            limits = Path(f"/proc/{one}/limits").read_text()
            assert int(re.search(r"Max data size\s+(\d+)", limits)[1]) == 192 * MIB
        os.kill(running.pid, signal.SIGKILL)  # its viewers would wait for a minute
