"""Lookups for a viewer: the doctor's findings, usage and cost, and dashboards, as far as each is available.

In: a question, and what its viewer may read. Out: a document. The doctor uses the viewer's own credentials, so it is
not available if the console does not have them. A Prometheus has data of all namespaces: viewers who may not read all
claims see its data of those namespaces whose claims they may read, and no dashboards or readings of GPUs.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dra_driver.base.errors import DriverError, InputError
from dra_driver.base.names import is_dns_label
from dra_driver.base.wire import Wire
from dra_driver.kube.kubeconfig import secret_file
from dra_driver.tools.console.cluster_reader import Rights, WorkBudget
from dra_driver.tools.console.events import NoPlaceError
from dra_driver.tools.console.responses import MAX_BYTES, WorkerResponse, of_fault, refusal, written

if TYPE_CHECKING:
    from dra_driver.tools.usage.from_prometheus import PrometheusAddress

# Documents of the commands `dra-driver doctor` and `dra-driver usage`, each run in a process of its own.

SECONDS = 60.0
FRESH_SECONDS = 15.0
_MAX_KNOWN, _MAX_KEPT = 8, 1 << 20  # answers, and bytes of each
_MAX_SHOWN = 2_000  # the most characters that are shown of a failed command's output
BUSY = refusal(503, "busy", "too many other lookups wait: try again in a moment")
_WITH_DOCUMENT = frozenset({0, 1, 5})  # exit statuses of commands that wrote their document


class Commands:
    """Runs commands for viewers whose rights are equal, one at a time; a console runs only some for all its viewers.

    `kubeconfig` is the text of a kubeconfig with the viewer's own token, if commands are to use that token. Each
    command gets it in a file of its own, in memory only, so that it can't see the token of another viewer.
    """

    def __init__(self, budget: WorkBudget, kubeconfig: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self.kubeconfig, self._clock = kubeconfig, clock
        self._known: dict[tuple[str, ...], tuple[float, WorkerResponse]] = {}
        self._asked: dict[tuple[str, ...], asyncio.Task[WorkerResponse]] = {}
        self.places, self._memory = budget.commands.of_backend(), budget.command_bytes

    async def run(self, *words: str) -> WorkerResponse:
        """Return the document that a command writes, or its message as an error."""
        at, answer = self._known.get(words, (float("-inf"), refusal(500, "bug", "")))
        if self._clock() - at < FRESH_SECONDS:
            return answer
        if words not in self._asked:
            self._asked[words] = asyncio.create_task(self._ran(words))
        return await asyncio.shield(self._asked[words])

    async def _ran(self, words: tuple[str, ...]) -> WorkerResponse:
        try:
            async with self.places.place():
                answer = await self._answer(words)
        except NoPlaceError:
            return BUSY
        else:
            self._keep(words, answer)
            return answer
        finally:
            del self._asked[words]

    def _keep(self, words: tuple[str, ...], answer: WorkerResponse) -> None:
        self._known.pop(words, None)
        if len(answer.body) <= _MAX_KEPT:
            self._known[words] = self._clock(), answer
        while len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]

    async def _answer(self, words: tuple[str, ...]) -> WorkerResponse:
        if not self.kubeconfig:
            return await _document_of(words, self._memory)
        with secret_file(self.kubeconfig.encode()) as file:
            return await _document_of((*words, "--kubeconfig", file.path), self._memory, file.descriptor)

    @property
    def has_viewer(self) -> bool:
        """Whether commands use the viewer's own token."""
        return bool(self.kubeconfig)


async def _document_of(words: tuple[str, ...], memory: int, *descriptors: int) -> WorkerResponse:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dra_driver", *words, "--output", "json",
        stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, pass_fds=descriptors,
    )  # fmt: skip
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (memory, memory))
    try:
        async with asyncio.timeout(SECONDS):
            stdout, stderr = await asyncio.gather(_read(process.stdout, MAX_BYTES), _read(process.stderr, 1 << 16))
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        return refusal(422, "question.too-slow", f"this took longer than {SECONDS:g} s and was ended")
    if process.returncode in _WITH_DOCUMENT and stdout.startswith(b"{") and len(stdout) < MAX_BYTES:
        return WorkerResponse(200, stdout)
    text = stderr.decode(errors="replace")[-_MAX_SHOWN:].strip()
    return refusal(502, "command", text.removeprefix("dra-driver: ") or f"{words[0]} ended with {process.returncode}")


async def _read(stream: asyncio.StreamReader | None, maximum: int) -> bytes:
    """Return the beginning of a stream; the rest is read and dropped."""
    found = bytearray()
    while stream is not None and (chunk := await stream.read(1 << 16)):
        found += chunk[: maximum - len(found)]
    return bytes(found)


# The values of `views.usage.report.Grouping`. Importing that module would double the time until the first page.
GROUPINGS = ("claim", "pod", "namespace", "class", "node", "pool")
_MAX_HOURS = 1_000_000  # the dashboard itself has a lower limit
QUESTIONS = frozenset({"offers", "doctor", "usage", "dashboard", "readings"})
_OFF = {
    "doctor": "the doctor reads a cluster with your own kubeconfig, which this console does not have",
    "usage": "this console has no source of usage data",
    "dashboard": "this console has no Prometheus to ask",
    "readings": "this console has no Prometheus to ask",
}
_HOW = {
    "doctor": "start dra-driver console on a cluster, or run dra-driver doctor",
    "usage": "name a Prometheus: --prometheus URL",
    "dashboard": "name a Prometheus: --prometheus URL",
    "readings": "name a Prometheus: --prometheus URL",
}


@dataclass(frozen=True, slots=True)
class UsageSource:
    """The source of usage data: the URL of a Prometheus, files with its token and authorities, a file with prices."""

    prometheus: str = ""
    token_file: str = ""
    ca_file: str = ""
    prices: str = ""

    def words(self) -> list[str]:
        """Return the options of `dra-driver usage` for it."""
        named = {"--prometheus": self.prometheus, "--token-file": self.token_file, "--ca-file": self.ca_file}
        named["--prices"] = self.prices
        return [word for name, value in named.items() if value for word in (name, value)]


@dataclass(frozen=True, slots=True)
class ViewerLookups:
    """The lookups of viewers with equal rights.

    `cluster` are the options of a command that uses the viewer's own credentials; empty if the console has none.
    """

    source: UsageSource
    commands: Commands
    cluster: tuple[str, ...] = ()
    rights: Rights | None = None

    async def answer(self, name: str, given: Mapping[str, Any]) -> WorkerResponse:
        """Return the answer to one of `QUESTIONS`."""
        offers = self._offers()
        if name == "offers":
            return WorkerResponse(200, written(offers))
        if not offers["dashboard" if name == "readings" else name]:
            return refusal(404, "off", _OFF[name], _HOW[name])
        try:
            if name == "doctor":
                return await self.commands.run("doctor", "--only", "cluster", *self.cluster)
            if name == "usage":
                return await self._usage(given)
            return await (self._dashboard(given) if name == "dashboard" else self._readings(given))
        except DriverError as fault:
            return of_fault(fault)

    @property
    def has_own_cluster(self) -> bool:
        """Whether a cluster is read with the viewer's own credentials."""
        return bool(self.cluster) or self.commands.has_viewer

    def _offers(self) -> dict[str, Any]:
        """Return what this viewer may look up; usage is limited to `namespaces`."""
        rights, has_prometheus = self.rights, bool(self.source.prometheus)
        sees_all = rights is None or "ResourceClaim" in rights.everywhere
        has_cluster = self.has_own_cluster
        places = [] if sees_all or rights is None else list(rights.places("ResourceClaim"))
        usage = (has_prometheus and (sees_all or bool(places))) or has_cluster
        dashboards = has_prometheus and sees_all
        return {"doctor": has_cluster, "usage": usage, "dashboard": dashboards, "namespaces": places}

    async def _usage(self, given: Mapping[str, Any]) -> WorkerResponse:
        """Return the usage. Raises: InputError."""
        namespace, grouping = str(given.get("namespace") or ""), str(given.get("by") or "namespace")
        days = _number(given, "days", 7, 400)
        if namespace and not is_dns_label(namespace):
            raise InputError("question", "`namespace` is not a valid name of a namespace")
        if grouping not in GROUPINGS:
            raise InputError("question", f"`by` must be one of {', '.join(GROUPINGS)}")
        if self.rights is not None and not self.rights.sees("ResourceClaim", namespace):
            raise InputError("question", "usage of this namespace may not be read", hint="choose one of your own")
        words = ["usage", "--by", grouping, *self.source.words()]
        if self.source.prometheus:
            words += ["--since", f"{days}d"]
        else:
            words += self.cluster
        return await self.commands.run(*words, *(("--namespace", namespace) if namespace else ()))

    async def _dashboard(self, given: Mapping[str, Any]) -> WorkerResponse:
        """Return a dashboard. Raises: InputError, UsageError."""
        source, name = self.source, str(given.get("name") or "fleet")
        hours = _number(given, "hours", 6, _MAX_HOURS)
        return await self._asked(lambda: _drawn(source, name, hours))

    async def _readings(self, given: Mapping[str, Any]) -> WorkerResponse:
        """Return what the GPUs of some nodes do now. Raises: InputError, ApiError, UsageError."""
        source, nodes = self.source, str(given.get("nodes") or "").split(",")
        return await self._asked(lambda: _measured(source, nodes))

    async def _asked(self, ask: Callable[[], Wire]) -> WorkerResponse:
        """Ask a Prometheus in a thread, as soon as there is a place."""
        try:
            async with self.commands.places.place():
                return WorkerResponse(200, written(await asyncio.to_thread(ask)))
        except NoPlaceError:
            return BUSY


def _drawn(source: UsageSource, name: str, hours: int) -> Wire:
    """Return the document of a dashboard. Raises: InputError, UsageError."""
    from dra_driver.tools.usage.dashboards import dashboard

    return dashboard(_address(source), name, hours, datetime.now(UTC)).wire()


def _measured(source: UsageSource, nodes: list[str]) -> Wire:
    """Return the document of readings. Raises: InputError, ApiError, UsageError."""
    from dra_driver.tools.usage.dashboards import readings

    return readings(_address(source), nodes, datetime.now(UTC)).wire()


def _address(source: UsageSource) -> PrometheusAddress:
    from dra_driver.tools.usage.from_prometheus import PrometheusAddress

    return PrometheusAddress(source.prometheus, source.token_file, source.ca_file)


def _number(given: Mapping[str, Any], name: str, default: int, maximum: int) -> int:
    text = str(given.get(name) or default)
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= maximum):
        raise InputError("question", f"{name} is not a number from 1 to {maximum:,}")
    return int(text)
