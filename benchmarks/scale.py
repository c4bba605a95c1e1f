"""Scale: how one agent loads a big cluster, and how a big cluster slows down an agent.

Two counting API servers run side by side, one with 100,000 claims, 110,000 pods and 80,000 slices, the other with the
claims of one node and nothing else; agents are started on them alternately. Then many real agents are started, a batch
at a time, and their requests are scaled to 10,000 nodes with the settings of the chart.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.figures import Report
from benchmarks.large_cluster import ONE_NODES
from dra_driver.node.slices.server_facts import FRESH_SECONDS

NODES = 10_000
AGENTS = 200
BATCH = 20
ROUNDS = 5
CLAIMS = ONE_NODES  # claims that the kubelet reports and the ledger does not know
SETTLED_SECONDS = 3.0  # after the first slices; all requests of a start are made by then
STEADY_SECONDS = 150.0  # two rounds of everything that runs once a minute
LIFETIME_SECONDS = 390.0  # mean lifetime of a watch: the agent asks for 4 to 9 minutes
MAX_STARTS = 12
_OWN_WRITES = {f"{verb} resourceslices" for verb in ("create", "update", "delete")}
_MANIFEST = Path(__file__).parents[1] / "deploy/manifests/driver.yaml"


class Server:
    """A counting API server in its own process."""

    def __init__(self, kind: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.large_cluster", kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.url = self._answer()["url"]

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command and return what was counted so far."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


class Agent:
    """A real agent with its own node, folders and token."""

    def __init__(self, server: Server, name: str) -> None:
        self.server, self.name = server, name
        self.folder = Path(tempfile.mkdtemp(prefix="drab"))
        for part in ("cdi", "reg", "plugins", "pod-resources"):
            (self.folder / part).mkdir()
        server.ask(create=[{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}])
        self._write_kubeconfig()
        self.kubelet = self.folder / "pod-resources/kubelet.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "dra_driver", "agent", "--node-name", self.name]
        command += ["--hardware", "simulated:dgx-h100", "--kubeconfig", f"{self.folder}/kubeconfig"]
        command += ["--cdi-root", f"{self.folder}/cdi", "--kubelet-registrar-directory-path", f"{self.folder}/reg"]
        command += ["--kubelet-plugins-directory-path", f"{self.folder}/plugins"]
        self.started_at = time.monotonic()
        with (self.folder / "agent.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait_published(self, seconds: float = 120.0) -> float:
        """Return the seconds from the start until the devices are in the API server."""
        while not self.server.ask()["devices"].get(self.name):
            if (
                time.monotonic() - self.started_at > seconds
                or self._process is None
                or self._process.poll() is not None
            ):
                raise RuntimeError((self.folder / "agent.log").read_text())
            time.sleep(0.005)
        return time.monotonic() - self.started_at

    def peak_mib(self) -> float:
        """Return the agent's peak memory in MiB."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024

    def asked(self) -> tuple[Counter[str], int]:
        """Return how often the agent has made each request, and how many bytes it has read."""
        answer = self.server.ask()
        return Counter(answer["counts"].get(self.name, {})), int(answer["bytes"].get(self.name, 0))

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write_kubeconfig(self) -> None:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "crowd", "cluster": {"server": self.server.url}}],
            "users": [{"name": "agent", "user": {"token": self.name}}],
            "contexts": [{"name": "crowd", "context": {"cluster": "crowd", "user": "agent"}}],
            "current-context": "crowd",
        }
        (self.folder / "kubeconfig").write_text(json.dumps(config))


def run(report: Report, *, agents: int = AGENTS, rounds: int = ROUNDS, steady_s: float = STEADY_SECONDS) -> None:
    """Measure starts, a steady period, and a rollout."""
    with _server("full") as full, _server("empty") as empty:
        _starts(report, full, empty, rounds)
        _steady(report, full, steady_s)
        _rollout(report, full, agents)


@contextmanager
def _agents(server: Server, names: Sequence[str], *, claims: int = 0) -> Iterator[list[Agent]]:
    """Yield agents, with kubelets that report the given number of claims to each."""
    agents = [Agent(server, name) for name in names]
    command = [sys.executable, "-m", "benchmarks.pod_resources", str(claims), *(str(agent.kubelet) for agent in agents)]
    kubelets = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert kubelets.stdout is not None
        kubelets.stdout.readline()
        yield agents
    finally:
        for agent in agents:
            agent.stop()
        kubelets.terminate()
        kubelets.wait(10)


@contextmanager
def _server(kind: str) -> Iterator[Server]:
    server = Server(kind)
    try:
        yield server
    finally:
        server.stop()


def _starts(report: Report, full: Server, empty: Server, rounds: int) -> None:
    """Start an agent on each server in turn, and measure the starts."""
    seconds: dict[str, list[float]] = {"full": [], "empty": []}
    memory: dict[str, list[float]] = {"full": [], "empty": []}
    asked: Counter[str] = Counter()
    read = 0
    for number in range(rounds):
        for kind, server in (("empty", empty), ("full", full)):
            with _agents(server, [f"start-{number}"], claims=CLAIMS) as (agent,):
                agent.start()
                seconds[kind].append(agent.wait_published())
                time.sleep(SETTLED_SECONDS)
                memory[kind].append(agent.peak_mib())
                if kind == "full":
                    asked, read = max((asked, read), agent.asked(), key=lambda one: (one[0].total(), one[1]))
    _print(asked)
    beyond = sum(count for what, count in asked.items() if what not in _OWN_WRITES) - CLAIMS
    report.add("a start's requests beyond slices and unknown claims", beyond, "requests", budget=MAX_STARTS)
    report.add("a start reads", read / 1000, "KB", budget=200)
    start, alone = (statistics.median(seconds[kind]) for kind in ("full", "empty"))
    report.add("start, empty cluster", alone, "s")
    report.add("start, 100,000 claims", start, "s")
    report.add("start, 100,000 claims, slower by", (start / alone - 1) * 100, "%", budget=10)
    peak, least = (statistics.median(memory[kind]) for kind in ("full", "empty"))
    report.add("memory (peak), empty cluster", least, "MiB")
    report.add("memory (peak), 100,000 claims", peak, "MiB")
    report.add("memory (peak), 100,000 claims, more by", peak - least, "MiB", budget=2)


def _steady(report: Report, server: Server, seconds: float) -> None:
    """Measure what one agent does while nothing happens."""
    with _agents(server, ["steady"], claims=CLAIMS) as (agent,):
        agent.start()
        agent.wait_published()
        time.sleep(SETTLED_SECONDS)
        before, _ = agent.asked()
        time.sleep(seconds)
        asked = agent.asked()[0] - before
    _print(asked)
    lists = sum(count for what, count in asked.items() if what.startswith("list"))
    report.add(f"lists in a steady {seconds:.0f} s", lists, "lists", budget=0)
    # A watch lasts longer than this period and is then renewed; the version is requested once an hour.
    rate = asked.total() / seconds + 1 / LIFETIME_SECONDS + 1 / FRESH_SECONDS
    report.add(f"steady requests of {NODES} agents", rate * NODES, "requests/s", budget=100)


def _rollout(report: Report, server: Server, agents: int) -> None:
    """Start many agents, a batch at a time; count per agent, and scale to a cluster that rolls out the chart."""
    per_agent: list[Counter[str]] = []
    seconds: list[float] = []
    for first in range(0, agents, BATCH):
        with _agents(server, [f"node-{number}" for number in range(first, min(first + BATCH, agents))]) as batch:
            for agent in batch:
                agent.start()
            seconds += [agent.wait_published() for agent in batch]
            time.sleep(SETTLED_SECONDS)
            per_agent += [agent.asked()[0] for agent in batch]
        print(f"  {first + len(batch)} of {agents} agents", flush=True)
    total = sum(per_agent, Counter[str]())
    _print(total, agents)
    requests, most = total.total() / agents, max(counts.total() for counts in per_agent)
    report.add(f"requests of one start, mean of {agents} agents", requests, "requests")
    report.add(f"requests of one start, most of {agents} agents", most, "requests", budget=MAX_STARTS + 10)
    lists = sum(count for what, count in total.items() if what.startswith("list")) / agents
    report.add(f"lists of one start, mean of {agents} agents", lists, "lists", budget=1)
    _scaled(report, requests, min(seconds))


def _scaled(report: Report, requests: float, quickest_s: float) -> None:
    """Compute the load of a whole rollout: the DaemonSet replaces a batch of agents, then the next, without a pause."""
    manifest = _MANIFEST.read_text()
    at_once = _agents_at_once(manifest, NODES)
    turn = _number(r"^ *initialDelaySeconds: (\d+)", manifest) or quickest_s  # and the time of a start in addition
    rate = requests * at_once / turn
    print(
        f"  {NODES} nodes: {requests:.1f} requests an agent x {at_once} at once (the chart) / {turn:.2f} s a turn"
        f" (the readiness probe's delay, else the quickest start, {quickest_s:.2f} s; pulls and sandboxes on top)"
        f" = {rate:.1f} requests/s; {requests * NODES:,.0f} requests in all, {NODES / at_once * turn / 60:,.0f} minutes"
    )
    report.add(f"rollout of {NODES} agents", rate, "requests/s", budget=100)


def _number(pattern: str, text: str) -> float:
    found = re.search(pattern, text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def _agents_at_once(manifest: str, nodes: int) -> int:
    """Return how many agents a rollout replaces at the same time; a percentage is rounded up."""
    found = re.findall(r'^ *max(?:Surge|Unavailable): "?(\d+)(%?)"?$', manifest, re.MULTILINE)
    return max((-(-int(number) * nodes // 100) if percent else int(number) for number, percent in found), default=1)


def _print(asked: Counter[str], agents: int = 1) -> None:
    for what, count in sorted(asked.items()):
        print(f"    {count / agents:8.2f}  {what}", flush=True)


def main(arguments: Sequence[str]) -> None:
    """Run with fewer agents and rounds: `python -m benchmarks.scale AGENTS ROUNDS STEADY_SECONDS`."""
    report = Report()
    run(report, agents=int(arguments[0]), rounds=int(arguments[1]), steady_s=float(arguments[2]))
    print("\n" + report.table())


if __name__ == "__main__":
    main(sys.argv[1:])
