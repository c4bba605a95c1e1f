"""Admissions: the verdict on each viewer, kept for half a minute.

In: `PresentedIdentity`. Out: `AdmittedViewer`, or None. Rights that were taken away are no longer used once the verdict
is half a minute old. Many requests of one viewer wait for one verdict. While the API server does not answer, no viewer
is admitted on an old verdict. Tokens that were never accepted are asked about in threads of their own and at a limited
pace, by peer and in all, so that viewers who were admitted before do not wait for them, and a peer that tries one token
after the other takes little of the API server's time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import Scope

from dra_driver.base.errors import DriverError
from dra_driver.tools.console.backend import Backend
from dra_driver.tools.console.cluster_reader import UNSEEN_SECONDS, WorkBudget
from dra_driver.tools.console.guard import FOREIGN, document, is_same_origin
from dra_driver.tools.console.lookups import Commands, UsageSource, ViewerLookups
from dra_driver.tools.console.responses import owner_of_user, to_give_up
from dra_driver.tools.console.sign_in import (
    AdmittedViewer,
    PresentedIdentity,
    RightsResolver,
    TrustedProxy,
    ViewerSessions,
    presented_identity,
)
from dra_driver.tools.console.worker_client import WorkerClient, WorkerSpawner
from dra_driver.tools.webhook.fleet import names_of

_MAX_PEERS = 1_000
FRESH_SECONDS = 30.0
_MAX_KNOWN = 1_000  # accepted identities; and as many refused ones
_MAX_OF_USER = 16
_AT_ONCE = 4  # verdicts that are asked for at the same time: of known viewers, and of unknown ones


@dataclass(slots=True)
class TokenBucket:
    """`burst` at once, and then `rate` a second."""

    burst: float
    rate: float
    level: float
    filled_at: float

    def fill(self, now: float) -> float:
        """Return how many may pass now."""
        self.level = min(self.burst, self.level + (now - self.filled_at) * self.rate)
        self.filled_at = now
        return self.level


class Pace:
    """The buckets of all peers, and the one that they share."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._in_all = TokenBucket(60.0, 4.0, 60.0, clock())
        self._peers: dict[str, TokenBucket] = {}

    def may_pass(self, peer: str) -> bool:
        """Return whether a token of a peer may be shown to the API server now, and count it if it may."""
        now = self._clock()
        own = self._peers.pop(peer, None) or TokenBucket(20.0, 1.0, 20.0, now)
        self._peers[peer] = own  # at the end, so that it is dropped last
        if len(self._peers) > _MAX_PEERS:
            del self._peers[next(iter(self._peers))]
        if min(own.fill(now), self._in_all.fill(now)) < 1.0:
            return False
        own.level -= 1.0
        self._in_all.level -= 1.0
        return True


class TooFastError(Exception):
    """Too many tokens that were never accepted came at the same time."""


class Admissions:
    """The verdicts, by the digest of an identity."""

    def __init__(self, resolver: RightsResolver, clock: Callable[[], float] = time.monotonic) -> None:
        self._resolver, self._clock = resolver, clock
        self._known: dict[str, tuple[float, AdmittedViewer]] = {}
        self._refused: dict[str, float] = {}
        self._asked: dict[str, asyncio.Task[AdmittedViewer | None]] = {}
        self._pace = Pace(clock)
        self._for_known = ThreadPoolExecutor(_AT_ONCE, "known viewers")
        self._for_unknown = ThreadPoolExecutor(_AT_ONCE, "unknown viewers")

    async def admit(self, one: PresentedIdentity, peer: str = "") -> AdmittedViewer | None:
        """Return the viewer; None if the cluster does not know them.

        Raises: DriverError if that can't be found out; TooFastError.
        """
        digest, now = one.digest, self._clock()
        at, admitted = self._known.get(digest, (float("-inf"), None))
        if now - at < FRESH_SECONDS:
            return admitted
        if now - self._refused.get(digest, float("-inf")) < FRESH_SECONDS:
            return None
        if digest not in self._asked:
            is_known = admitted is not None or bool(one.user)  # a name comes from a proxy that has proved its own
            if not is_known and not self._pace.may_pass(peer):
                raise TooFastError
            self._asked[digest] = asyncio.create_task(self._resolved(digest, one, is_known=is_known))
        return await asyncio.shield(self._asked[digest])

    async def _resolved(self, digest: str, one: PresentedIdentity, *, is_known: bool) -> AdmittedViewer | None:
        threads = self._for_known if is_known else self._for_unknown
        try:
            began, admitted = await asyncio.get_running_loop().run_in_executor(threads, self._resolve, one)
            self._keep(digest, began, admitted)
            return admitted
        finally:
            del self._asked[digest]

    def _resolve(self, one: PresentedIdentity) -> tuple[float, AdmittedViewer | None]:
        return self._clock(), self._resolver.resolve(one)

    def _keep(self, digest: str, began: float, admitted: AdmittedViewer | None) -> None:
        self._known.pop(digest, None)  # removed first, so that it becomes the last entry, which is dropped last
        if admitted is None:
            self._refused.pop(digest, None)
            self._refused[digest] = began
            if len(self._refused) > _MAX_KNOWN:
                del self._refused[next(iter(self._refused))]
            return
        own = {key: (admitted.user, at) for key, (at, other) in self._known.items() if other.user == admitted.user}
        if len(own) >= _MAX_OF_USER:
            del self._known[to_give_up(own)]
        elif len(self._known) >= _MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[digest] = began, admitted

    def close(self) -> None:
        """End the threads."""
        for one in (self._for_known, self._for_unknown):
            one.shutdown(wait=False, cancel_futures=True)


# The backends of all viewers.

log = logging.getLogger(__name__)

_CHECK_SECONDS = 5.0


@dataclass(slots=True)
class _RunningBackend:
    backend: Backend
    task: asyncio.Task[None] | None
    used_at: float
    admitted: AdmittedViewer
    commands: Commands

    @property
    def owner(self) -> str:
        """To whom the backend is counted: to the user for whom it was started."""
        return owner_of_user(self.admitted.user)

    def use_token_of(self, admitted: AdmittedViewer) -> None:
        """Go on with the token of a viewer with equal rights, whom the cluster has accepted later."""
        mine, theirs = self.admitted.access.token, admitted.access.token
        if mine is not None and theirs is not None:
            mine.replace_with(theirs)
            self.commands.kubeconfig = admitted.kubeconfig


class Backends:
    """At most `maximum` backends at the same time. Call all methods in the event loop."""

    def __init__(
        self,
        spawner: WorkerSpawner,
        usage: UsageSource,
        maximum: int,
        budget: WorkBudget,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spawner, self._usage, self._maximum, self._clock = spawner, usage, maximum, clock
        self._budget = budget
        self._running: dict[Hashable, _RunningBackend] = {}

    def of(self, admitted: AdmittedViewer) -> Backend | None:
        """Return the backend of a viewer; None if all backends are in use by others."""
        running = self._running.get(admitted.key)
        if running is None:
            if len(self._running) >= self._maximum and not self._free_one(owner_of_user(admitted.user)):
                return None
            running = self._running[admitted.key] = self._made(admitted)
        running.use_token_of(admitted)
        running.used_at = self._clock()
        return running.backend

    def _made(self, admitted: AdmittedViewer) -> _RunningBackend:
        worker = WorkerClient(self._budget)
        worker.start_by_spawner(self._spawner, "cluster")
        commands = Commands(self._budget, admitted.kubeconfig)
        lookups = ViewerLookups(self._usage, commands, rights=admitted.rights)
        backend = Backend(worker, admitted.access, lookups, lambda: self._end(admitted.key))
        worker.listen(backend.on_message)
        task = asyncio.create_task(backend.reading.run()) if backend.reading else None
        log.info("backend started")
        return _RunningBackend(backend, task, self._clock(), admitted, commands)

    def _free_one(self, newcomer: str) -> bool:
        """End a backend to make room for one of `newcomer`; return whether there was one to end."""
        counts = Counter(one.owner for one in self._running.values())
        held = {key: (one.owner, one.used_at) for key, one in self._running.items()}
        unseen = {key: held[key] for key, one in self._running.items() if not one.backend.notices.streams}
        more = {key: pair for key, pair in held.items() if counts[pair[0]] > counts[newcomer] + 1}
        if not (given_up := unseen or more):
            return False
        self._end(to_give_up(given_up))
        return True

    def _end(self, key: Hashable) -> None:
        running = self._running.pop(key, None)
        if running is not None:
            if running.task is not None:
                running.task.cancel()
            running.backend.close()
            log.info("backend ended")

    async def end_unused(self) -> None:
        """End backends that have been unused for some minutes, until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            for key, one in list(self._running.items()):
                if one.backend.notices.streams:
                    one.used_at = self._clock()
                elif self._clock() - one.used_at > UNSEEN_SECONDS:
                    self._end(key)

    def close(self) -> None:
        """End all backends."""
        for key in list(self._running):
            self._end(key)


# Authorize requests to a console in a cluster: viewers who prove who they are get the backend for their rights.

HEALTH, SIGN_IN, SIGN_OUT = "/healthz", "/sign-in", "/sign-out"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_UNKNOWN_VIEWER = "the cluster does not know this viewer: the token may have expired"


class ViewerAuthorizer:
    """Admits viewers whom the cluster authenticates.

    `hosts` are the names under which pages are opened; those of the loopback address are always allowed.
    """

    def __init__(
        self,
        hosts: frozenset[str],
        sessions: ViewerSessions,
        proxy: TrustedProxy | None,
        admissions: Admissions,
        backends: Backends,
    ) -> None:
        self._hosts, self._sessions, self._proxy = hosts, sessions, proxy
        self._admissions, self._backends = admissions, backends

    async def refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the answer that refuses a request; None if it is admitted."""
        path, host = str(scope["path"]), headers.get("host", "")
        if path == HEALTH:
            return None  # a kubelet's probe uses an IP address as the host, and the answer reveals nothing
        sent = (scope["method"], host, headers.get("origin", ""), headers.get("sec-fetch-site", ""))
        if not self._is_ours(host) or not (is_same_origin(*sent) or _is_visit(path, headers)):
            return PlainTextResponse(FOREIGN, 403)
        if path.startswith("/static/") or path in {SIGN_IN, SIGN_OUT}:
            return None
        one = self._presented(scope, headers)
        scope["is_signed_in"] = one is not None and "authorization" not in headers and not one.user
        if path.startswith("/api/"):
            return await self._with_backend(scope, headers, one)
        return None if one is not None else RedirectResponse(SIGN_IN, 303)

    def _presented(self, scope: Scope, headers: Headers) -> PresentedIdentity | None:
        names = names_of(scope.get("state", {}).get("client_certificate"))
        return presented_identity(headers, names, self._proxy, self._sessions.identity)

    def _is_ours(self, host: str) -> bool:
        """Return whether a Host header names this console, with any port; any other may be DNS rebinding."""
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        return name in _LOOPBACK or host in self._hosts or name in self._hosts

    async def _with_backend(self, scope: Scope, headers: Headers, one: PresentedIdentity | None) -> Response | None:
        """Find the backend of a viewer and put it into the scope; return the answer that refuses if there is none."""
        if one is None:
            return document(401, "no-session", "this request has no token and no user", f"sign in at {SIGN_IN}")
        try:
            backend = await self._backend(one, peer_of(scope))
        except TooFastError:
            return too_fast()
        except DriverError as fault:
            return document(503, fault.code, f"your rights can't be found out now: {fault.message}", fault.hint)
        except _UnknownViewerError:
            return document(401, "no-session", _UNKNOWN_VIEWER, f"sign in at {SIGN_IN}")
        if backend is None:
            return document(503, "busy", "too many viewers with different rights use the console at the same time")

        async def may_continue() -> bool:
            try:
                return self._presented(scope, headers) == one and await self._backend(one, peer_of(scope)) is backend
            except (DriverError, TooFastError, _UnknownViewerError):
                return False

        scope["backend"], scope["may_continue"] = backend, may_continue
        return None

    async def _backend(self, one: PresentedIdentity, peer: str) -> Backend | None:
        admitted = await self._admissions.admit(one, peer)
        if admitted is None:
            self._sessions.end_all_of(one)
            raise _UnknownViewerError
        return self._backends.of(admitted)


class _UnknownViewerError(Exception):
    """A person whom the cluster does not know."""


def peer_of(scope: Scope) -> str:
    """Return the address from which a request came."""
    return str((scope.get("client") or ("",))[0])


def too_fast() -> Response:
    """Return the answer to a token that can't be shown to the API server yet."""
    answer = document(429, "busy", "many unknown tokens came at the same time", "try again in a few seconds")
    answer.headers["retry-after"] = "5"
    return answer


def _is_visit(path: str, headers: Headers) -> bool:
    """Return whether a person followed a link on another site to the first page, which contains no data."""
    return path in {"/", SIGN_IN} and headers.get("sec-fetch-mode") == "navigate" and not headers.get("origin")
