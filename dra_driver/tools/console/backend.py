"""A backend: a worker process, the reader that feeds it, and the pages that show its answers.

In: messages of the worker. Out: notices for pages, and answers. A console on the loopback address has one backend; one
in a cluster has one for all viewers whose rights are equal. Below `/api/v1`, questions are answered with documents of
`--output json`, and changes are sent as events.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from dra_driver.base.errors import DriverError, ExitCode, InputError, NodeError
from dra_driver.base.names import is_dns_label, is_dns_subdomain
from dra_driver.tools.console.cluster_reader import ClusterReader, HistorySubject, OnDemandReading, ReadAccess
from dra_driver.tools.console.events import MAX_STREAMS, MayContinue, Notices
from dra_driver.tools.console.lookups import QUESTIONS, ViewerLookups
from dra_driver.tools.console.responses import WorkerResponse, of_fault, refusal, written
from dra_driver.tools.console.worker import SECONDS
from dra_driver.tools.console.worker_client import WorkerClient
from dra_driver.tools.world.access import DocumentKind, OutputDocument

# The parameters of these questions are in the address; those of all other questions are in a JSON body.
_ASKED_BY_ADDRESS = frozenset({"summary", "attention", "fleet", "device", "claims", "claim", "explanation"})

_MAX_READS = 2  # claims that are read for the viewers of one backend at the same time
_GONE = "the process that holds the fleet has ended"


class ConsoleApi:
    """The handlers of `/api/v1`."""

    def __init__(
        self, worker: WorkerClient, notices: Notices, reader: ClusterReader | None, lookups: ViewerLookups
    ) -> None:
        self._worker, self._notices, self._reader, self._lookups = worker, notices, reader, lookups
        self._reads = asyncio.Semaphore(_MAX_READS)

    async def question(self, request: Request) -> Response:
        """Answer a question, whose parameters are in the address or in a JSON object."""
        name = request.path_params["name"]
        if name in QUESTIONS and request.method != "POST":
            return _response(await self._lookups.answer(name, request.query_params))
        if name == "history":
            return _response(await self._history(request.query_params))
        if name not in SECONDS:
            return _response(refusal(404, "no-question", f"there is no /api/v1/{name[:80]}"))
        given: Any = dict(request.query_params)
        if request.method == "POST":
            try:
                given = json.loads(await request.body())
            except (ValueError, RecursionError):
                given = None
            except ClientDisconnect:
                return _response(refusal(413, "input.too-large", "the request is too long"))
        elif name not in _ASKED_BY_ADDRESS:
            return _response(refusal(405, "method", f"/api/v1/{name} is asked with POST"))
        if not isinstance(given, dict):
            return _response(refusal(400, "question", "the body is not a JSON object"))
        if self._notices.latest("state") != "ready":
            return _response(refusal(503, "loading", "the fleet is being read"))
        asked = {**given, "ask": name}
        if name == "claim" and self._reader is not None:
            try:
                async with self._reads:
                    asked["read"] = await asyncio.to_thread(self._reader.objects_of_claim, *_claim_of(given))
            except DriverError as fault:
                return _response(of_fault(fault))
        else:
            asked.pop("read", None)
        return _response(await self._answer_while_connected(request, asked))

    async def _history(self, given: Mapping[str, Any]) -> WorkerResponse:
        """Return what has happened to an object, as far as the viewer's own credentials may read it."""
        if self._reader is None or not self._lookups.has_own_cluster:
            return refusal(404, "off", "Events are read with your own credentials, which this console does not have")
        try:
            async with self._reads:
                content = await asyncio.to_thread(self._reader.history, HistorySubject.of(given))
        except DriverError as fault:
            return of_fault(fault)
        return WorkerResponse(200, written(OutputDocument(DocumentKind.HISTORY, content).wire()))

    async def _answer_while_connected(self, request: Request, asked: Mapping[str, Any]) -> WorkerResponse:
        """Return the worker's answer; as soon as nobody waits for it any more, end the work on it."""
        answer = asyncio.ensure_future(self._worker.ask(asked))
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            return answer.result() if answer.done() else refusal(503, "gone", "nobody waits for the answer")
        finally:
            answer.cancel()
            gone.cancel()

    async def events(self, request: Request) -> Response:
        """Stream the changes for as long as the authorizer would still admit the request."""
        if self._notices.streams >= MAX_STREAMS:
            return _response(refusal(503, "busy", f"{MAX_STREAMS} pages are open already"))
        may_continue: MayContinue | None = request.scope.get("may_continue")
        return StreamingResponse(self._notices.stream(may_continue), media_type="text/event-stream")


async def _disconnected(request: Request) -> None:
    """Wait until the connection of a request is closed."""
    while (await request.receive())["type"] != "http.disconnect":
        pass  # what is left of the body


def _claim_of(given: Mapping[str, Any]) -> tuple[str, str]:
    """Return the namespace and the name of a claim. Raises: InputError for texts that the API has for neither."""
    namespace, name = str(given.get("namespace")), str(given.get("name"))
    if not is_dns_label(namespace) or not is_dns_subdomain(name):
        raise InputError("question", "the namespace and the name of a claim are needed")
    return namespace, name


def _response(found: WorkerResponse) -> Response:
    return Response(found.body, found.status, media_type="application/json")


class Backend:
    """The parts that answer the pages of one viewer, or of all viewers with equal rights.

    `ended` is called once the worker is gone; `fault` then says why.
    """

    def __init__(
        self, worker: WorkerClient, access: ReadAccess | None, lookups: ViewerLookups, ended: Callable[[], None]
    ) -> None:
        rights = lookups.rights
        self.worker, self.notices = worker, Notices()
        self.reader = ClusterReader(access, worker.send, rights) if access is not None else None
        self.reading = OnDemandReading(self.reader, self.notices) if self.reader is not None else None
        self.api = ConsoleApi(worker, self.notices, self.reader, lookups)
        self.fault: DriverError | None = None
        self._ended = ended

    def on_message(self, message: tuple[Any, ...] | None) -> None:
        """Handle a message of the worker; None means that its process has ended."""
        match message:
            case None:
                self.fault = self.fault or NodeError("desk-gone", _GONE, hint="the lines above may say why")
                self.notices.end()
                self._ended()
            case ("fault", code, text, hint, status):
                self.fault = _LoadError(code, text, hint, status)
            case ("progress", noun, done, total):
                self.notices.post("progress", {"noun": noun, "done": done, "total": total})
            case ("ready", version):
                self.notices.post("state", "ready")
                self.notices.post("version", version)
            case ("version", version):
                self.notices.post("version", version)

    def close(self) -> None:
        """End the reading, the streams and the worker."""
        self.notices.end()
        if self.reader is not None:
            self.reader.stop()
        self.worker.close()


class _LoadError(DriverError):
    """A fault that the worker reported while it loaded."""

    def __init__(self, code: str, message: str, hint: str, status: int) -> None:
        super().__init__(code, message, hint=hint)
        self.code, self.exit_code = code, ExitCode(status)
