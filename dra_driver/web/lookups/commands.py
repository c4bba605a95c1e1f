"""Documents of the commands `dra-driver doctor` and `dra-driver usage`, each run in a process of its own.

In: the arguments of a command. Out: its document. A process has a time limit and a memory limit. An answer is kept for
some seconds, and used again if the same viewer asks the same question.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import sys
import time
from collections.abc import Callable

from dra_driver.kube.credentials.secret_file import secret_file
from dra_driver.web.places import NoPlaceError
from dra_driver.web.work_budget import WorkBudget
from dra_driver.web.worker.responses import MAX_BYTES, WorkerResponse, refusal

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
