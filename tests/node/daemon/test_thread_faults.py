"""A real agent for which threads can't be started, or whose threads end: it works as a whole, or it ends."""

import os
import re
import signal
import subprocess
import urllib.error
import urllib.request

import pytest

from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.simulator.store import SLICES
from tests.node.daemon.support.claims import claim
from tests.node.daemon.support.thread_faults import variables
from tests.support.agents.agent_process import stage
from tests.support.plugin.parts import in_thread
from tests.support.waiting import until

EVERYTHING = (
    "--metrics-address=127.0.0.1:0",
    "--claim-status=on",
    "--node-condition=on",
    "--remediation=on",
    "--lease-namespace=default",
    "--telemetry-interval=1",
    "--validate=/bin/true",
)
# The threads that an agent needs from its start on, or from the moment when it has the node's role.
OF_START = ("log", "status", f"driver-{NVIDIA_DRIVER}", "same-name", "device-plugin", "foreign-claims")
OF_SERVICE = ("scanner", "role", "registration_0", "prepare_0", "unprepare_0")
OF_ROLE = (
    *("validation", "health", "slice-watch", "publisher", "reaper", "metering", "remediation", "claim-status"),
    "health-condition",
)


@pytest.fixture
def here():
    with stage() as it:
        (it.folder / "faults").mkdir()
        yield it


def start(here, *flags, limit=""):
    return here.start("simulated:dgx-h100", *EVERYTHING, *flags, environment=variables(here.folder / "faults", limit))


def error_of(answer):
    return answer if isinstance(answer, str) else ""


def fail(here, name):
    (here.folder / "faults" / name).touch()


def raise_limit(here):
    for fault in (here.folder / "faults").iterdir():
        if fault.is_file():
            fault.unlink()


def assert_works(here):
    here.kubelet.wait_registered(NVIDIA_DRIVER)
    until(lambda: len(here.devices()) == 8, "eight devices")
    until(lambda: is_ready(here), "readiness")
    assert fetch(here, "/healthz") == (200, "ok\n")


def is_ready(here):
    try:
        return "status page open" in here.log() and fetch(here, "/readyz")[0] == 200
    except OSError:  # the agent ends
        return False


def fetch(here, path):
    port = re.search(r"status page open .*:(\d+)", here.log())[1]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("name", [*OF_START, *OF_SERVICE, *OF_ROLE])
def test_an_agent_one_of_whose_parts_can_t_start_ends_with_its_name(here, name):
    fail(here, name)
    agent = start(here)
    assert agent.wait(60) == 5
    assert f"the thread {name} can't be started" in here.log()
    assert "node.thread" in here.log()
    assert not list(here.kubelet.registrar_dir.rglob("*.sock*")), "a socket was left"
    assert not list((here.kubelet.plugins_dir / NVIDIA_DRIVER).glob("*.sock*")), "a socket was left"


def test_an_agent_that_ended_because_a_part_could_not_start_works_at_the_next_start(here):
    fail(here, "publisher")
    assert start(here).wait(60) == 5
    raise_limit(here)
    start(here)
    assert_works(here)


def test_an_agent_that_gets_the_role_without_threads_ends_in_order_and_leaves_prepared_claims_alone(here):
    first = start(here, "--pod-uid", "0" * 36)
    assert_works(here)
    ref = claim(here, here.devices()[0])
    plugin = here.kubelet.wait_registered(NVIDIA_DRIVER)
    assert not error_of(plugin.prepare([ref])[ref.uid])
    second = start(here, "--pod-uid", "1" * 36)
    here.kubelet.wait_registered(NVIDIA_DRIVER, instances=2)
    fail(here, "publisher")
    first.send_signal(signal.SIGKILL)
    assert second.wait(60) == 5
    assert "the thread publisher can't be started" in here.log(1)
    steps = [here.log(1).index(step) for step in ("role gained", "role given up", "stopped", "node.thread]")]
    assert steps == sorted(steps)
    assert [ref.uid in file.name for file in here.kubelet.cdi_dir.iterdir()] == [True]
    raise_limit(here)
    start(here)
    assert_works(here)
    assert not here.kubelet.wait_registered(NVIDIA_DRIVER).unprepare([ref])[ref.uid]
    assert list(here.kubelet.cdi_dir.iterdir()) == []


def test_an_agent_without_further_threads_answers_calls_and_is_whole_once_the_limit_is_raised(here):
    start(here)
    assert_works(here)
    plugin = here.kubelet.wait_registered(NVIDIA_DRIVER)
    names = here.devices()
    refs = [claim(here, name, f"c{index}") for index, name in enumerate(names[:4])]
    fail(here, "all")
    assert [error_of(answer) for answer in plugin.prepare(refs).values()] == [""] * 4
    waiting = claim(here, names[0], "waiting")
    assert "node.thread" in error_of(plugin.prepare([waiting])[waiting.uid]), "the call can't wait without a thread"
    assert fetch(here, "/healthz")[0] == 200
    raise_limit(here)
    later, answers = in_thread(lambda: plugin.prepare([waiting])[waiting.uid])
    assert set(plugin.unprepare(refs).values()) == {""}
    later.join(60)
    assert error_of(answers[0]) == "", "the next attempt waited, and got the device"
    assert_works(here)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize("limit", range(4, 40, 3))
def test_an_agent_with_few_threads_ends_or_works_as_a_whole(here, limit):
    user = 50_000 + os.getpid() % 10_000
    fail(here, "limit")
    subprocess.run(["chown", "-R", f"{user}:{user}", here.folder], check=True)
    agent = start(here, limit=f"{user}:{limit}")
    until(lambda: agent.poll() is not None or is_ready(here), "an end, or a ready agent")
    raise_limit(here)  # with too few, a device is published only once the command that tests it could be started
    until(lambda: agent.poll() is not None or (is_ready(here) and len(here.devices()) == 8), "an end, or all devices")
    if agent.poll() is not None:
        # 1: the test's own thread could not be started; SIGABRT: grpcio ends the process that gets no thread for it
        assert agent.poll() in {1, 5, -signal.SIGABRT}
        return
    assert_works(here)
    plugin = here.kubelet.wait_registered(NVIDIA_DRIVER)
    ref = claim(here, here.devices()[0])
    assert not error_of(plugin.prepare([ref])[ref.uid])
    assert not plugin.unprepare([ref])[ref.uid]
    assert here.end(agent) == 0


@pytest.mark.parametrize("name", ["scanner", "health", "metering", "publisher"])
def test_an_agent_one_of_whose_threads_has_ended_is_not_alive(here, name):
    agent = start(here)
    assert_works(here)
    fail(here, f"end-{name}")
    here.kubelet.restart()  # wipes the slices, so that each thread has something to do
    until(lambda: fetch(here, "/healthz") == (503, f"the thread {name} has ended\n"), "the probe of liveness")
    raise_limit(here)
    assert here.end(agent) == 0


def test_what_a_restart_does_not_cure_is_no_reason_to_restart(here):
    start(here)
    assert_works(here)
    here.api.faults.fail_next(500, count=100_000)
    here.kubelet.resources.stop()
    for found in here.api.items(SLICES):
        here.api.delete(SLICES, found["metadata"]["name"])
    until(lambda: fetch(here, "/readyz")[0] == 503, "an agent that is not ready")
    assert fetch(here, "/healthz") == (200, "ok\n")
    here.kubelet.resources.start()
