"""A machine for these tests: a fake library, a fake node, and the vendor's code reading both by the real ctypes path.

Each test loads its own copy of the library, so nothing is shared between tests of one process.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

from dra_driver.hardware.facts import Facts
from dra_driver.hardware.nvidia import discovery, observation
from dra_driver.hardware.nvidia.hardware import NvidiaHardware
from dra_driver.hardware.nvidia.library import SONAME
from dra_driver.hardware.nvidia.published import NvidiaGpu
from dra_driver.hardware.port import Roots
from tests.support.fake_nvml import Gpu, State, build
from tests.support.nodes.fake_node import FakeNode


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use the fake library: it has to be compiled."""
    for item in items:
        is_ours = isinstance(item, pytest.Function) and Path(__file__).parent in item.path.parents
        if is_ours and "machine" in item.fixturenames:
            item.add_marker(pytest.mark.gcc)


@pytest.fixture(autouse=True)
def _short_waits_for_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a thread that watches GPUs look often, since a test that begins or ends a watch waits for its next look."""
    monkeypatch.setattr(observation, "WAIT_MS", 20)


@pytest.fixture(autouse=True)
def _patient_fingerprints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a fingerprint wait for as long as a busy machine may take; the tests of hanging calls shorten that."""
    monkeypatch.setattr(discovery, "PROBE_S", 60.0)


@dataclass
class Machine:
    """A node with a driver: change `state` and call `write`, or change `node`."""

    folder: Path
    node: FakeNode
    state: State
    made: list[NvidiaHardware] = field(default_factory=list)

    @property
    def library(self) -> Path:
        return self.folder / "lib" / SONAME

    @property
    def log(self) -> Path:
        return self.folder / "calls"

    def install_library(self, *, without: tuple[str, ...] = ()) -> Path:
        return build(self.folder / "lib", without=without)

    def add(self, *gpus: Gpu) -> list[Gpu]:
        """Put GPUs in: on the bus, under the kernel driver, and in the library."""
        for gpu in gpus:
            self.node.add_gpu(gpu.pci, gpu.minor)
        self.state.gpus.extend(gpus)
        self.write()
        return list(gpus)

    def write(self) -> None:
        self.state.write(self.folder / "state")

    def hardware(self, **options: float) -> NvidiaHardware:
        """Return the vendor; unless a test says otherwise, it waits as long as a busy machine may take."""
        made = NvidiaHardware(self.node.roots, **{"call_timeout_s": 60.0, "patience_s": 60.0, **options})
        self.made.append(made)
        return made

    def discover(self) -> Facts:
        return self.hardware().discover()

    def calls(self, function: str) -> int:
        """Count the calls of a library function so far."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return sum(line.split()[1] == function for line in lines)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A node with a loaded driver and an installed library, and no GPU yet."""
    node = FakeNode(tmp_path / "node")
    node.load_driver()
    made = Machine(tmp_path, node, State())
    made.install_library()
    made.write()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "lib"))
    monkeypatch.setenv("FAKE_NVML_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("FAKE_NVML_LOG", str(made.log))
    monkeypatch.setenv("FAKE_NVML_PROC", str(tmp_path / "node/proc"))
    yield made
    made.state.faults.clear()
    for gpu in made.state.gpus:
        gpu.heal()
    made.write()
    for hardware in made.made:
        while (session := hardware._use.session) and session.has_calls_in_flight():
            time.sleep(0.01)  # a call that hung goes on now, and must not be counted in the next test's log
        hardware.close()


PROGRAM = """
import json, sys
from dra_driver.hardware.nvidia.hardware import NvidiaHardware
from dra_driver.hardware.port import Roots
from dra_driver.base.errors import HardwareError
hardware = NvidiaHardware(Roots(**json.loads(sys.argv[1])))
for line in sys.stdin:
    answer = {"pynvml": "pynvml" in sys.modules}
    try:
        if line == "discover\\n":
            facts = hardware.discover()
            answer["gpus"] = [gpu.pci_address for gpu in facts.gpus]
            answer["waiting_for"] = facts.waiting_for
            answer["driver_version"] = facts.driver_version
            answer["codes"] = [problem.code for problem in facts.problems]
        else:
            answer["fingerprint"] = hash(hardware.fingerprint())
    except HardwareError as error:
        answer["error"] = error.code
    print(json.dumps(answer), flush=True)
"""


class OtherProcess:
    """The vendor in a process of its own, which has never loaded a library before. Use as a context manager."""

    def __init__(self, roots: Roots, **environ: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps(roots._asdict())],
            env={**environ, "PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=60)

    def ask(self, verb: str) -> dict[str, Any]:
        self._process.stdin.write(verb + "\n")
        return json.loads(self._process.stdout.readline())

    def discover(self) -> dict[str, Any]:
        return self.ask("discover")

    def fingerprint(self) -> int:
        return int(self.ask("fingerprint")["fingerprint"])


def by_address(facts: Facts) -> dict[str, NvidiaGpu]:
    return {gpu.pci_address: gpu for gpu in facts.gpus}


def codes(facts: Facts) -> set[str]:
    return {problem.code for problem in facts.problems}


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="device nodes can be made by root only")
