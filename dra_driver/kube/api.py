"""KubeApi: one function for requests to the Kubernetes API server, and one for streams.

In: method, path, wire objects. Out: wire objects, or `ApiError`. Errors of connections end here. A request that
may have had an effect is never sent again: a GET is repeated once if a kept connection turns out to be dead, and any
request is repeated once after a 401 if a newer token is found.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from ssl import SSLError
from typing import Literal, NamedTuple
from urllib.parse import urlencode
from weakref import WeakKeyDictionary

from dra_driver import __version__
from dra_driver.base.errors import ApiError, Retry
from dra_driver.base.telemetry.logs import fields
from dra_driver.base.wire import ClaimWire, Wire
from dra_driver.kube import answers
from dra_driver.kube.answers import Parse, check_claim, check_node
from dra_driver.kube.connection import MAX_BYTES, BrokenError, CertificateError, Connection, LargeTurn, TooLargeError
from dra_driver.kube.connections import Connections, LineStream
from dra_driver.kube.kubeconfig import Credentials
from dra_driver.kube.paths import EVENTS, claim_path, node_path, within

REQUEST_SECONDS = 10.0
CLAIM_MEMORY = 4 << 20  # of one parsed claim: many are read at once; one with a few devices takes 50 KiB
_USER_AGENT = f"dra-driver/{__version__}"
_LEADING_DIGITS = re.compile(r"\d*")


@dataclass(frozen=True, slots=True)
class ServerVersion:
    """The version that the API server reports. `minor` is 0 if it reports none (a build without a version)."""

    major: int
    minor: int
    git: str


class _Answer(NamedTuple):
    """A whole answer; `generation` is that of the connection that it came from."""

    status: int
    body: bytes
    retry_after: str
    generation: int


class KubeApi:
    """A client of one API server. All methods may be called from any thread.

    At most `connections` requests are under way at once; further calls wait for a connection, within their own timeout.
    `clock` returns seconds and decides how long idle connections are kept. Every answer is bounded in size and time.
    """

    def __init__(
        self, credentials: Credentials, *, connections: int = 16, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._server, self._tokens = credentials.server, credentials.tokens
        self._connections = Connections(credentials, size=connections, clock=clock)

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Wire | None = None,
        query: Mapping[str, str] | None = None,
        timeout_s: float = REQUEST_SECONDS,
        content_type: str = "application/json",
        parse: Parse = answers.parse,
    ) -> Wire:
        """Send one request and return the decoded object of the answer.

        A GET may be sent twice, any other request only if the first try provably had no effect. After a 401 a token
        file is read again, and the request is sent once more if the token has changed.

        `path` is below the server's address (`kube.paths`), and `query` is encoded here. `timeout_s` is the limit for
        the whole answer, all tries together. By `content_type` the server tells the kinds of PATCH apart. `parse` reads
        the object from the answer's bytes.

        Raises: ApiError; its `status` is 0 if no whole answer came ("api.unreachable", "api.timeout", "api.tls",
        "api.answer-too-large"), otherwise the HTTP status with which the server refused. `retry` tells whether the same
        request can succeed later, and `retry_after_s` how many seconds the server asks to wait (0 if it asks nothing).

        Source: Kubernetes API concepts; API conventions, "Response Status Kind".
        """
        encoded = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        target = self._target(path, query)
        turn = LargeTurn(time.monotonic() + timeout_s)
        try:
            answer = self._send(method, target, encoded, content_type, turn)
            if answer.status == 401 and self._tokens.reread():
                answer = self._send(method, target, encoded, content_type, turn)
            return self._decoded(answer, method, path, parse)
        finally:
            turn.end()

    def _decoded(self, answer: _Answer, method: str, path: str, parse: Parse) -> Wire:
        """Return the object of an answer. Raises: ApiError."""
        try:
            return answers.decode(answer.status, answer.body, answer.retry_after, method=method, path=path, parse=parse)
        except ApiError as err:
            if err.code == "api.bad-answer" or not answer.body.startswith(b"{"):
                # This connection is not used again after such an answer.
                self._connections.discard_generation(answer.generation)
            raise

    def stream(self, path: str, *, query: Mapping[str, str], max_s: float) -> LineStream:
        """Return a GET whose answer comes line by line, on its own connection; `LineStream.open` sends it.

        Nothing is sent here, so that the caller has something to close before anything can hang. After `max_s`
        seconds the stream ends, whatever has arrived by then.
        """
        target = self._target(path, query)

        def connect() -> tuple[Connection, str, dict[str, str]]:
            return self._connections.own_connection(), target, self._headers()

        return LineStream(connect, self._tokens.reread, path, max_s=max_s)

    def get_claim(self, namespace: str, name: str, *, timeout_s: float = REQUEST_SECONDS) -> ClaimWire:
        """Read a ResourceClaim. Raises: ApiError."""
        parse = partial(answers.parse, memory=CLAIM_MEMORY)
        claim = self.request("GET", claim_path(namespace, name), timeout_s=timeout_s, parse=parse)
        check_claim(claim, namespace, name)
        return claim

    def get_node(self, name: str) -> Wire:
        """Read a Node. Raises: ApiError."""
        node = self.request("GET", node_path(name))
        check_node(node, name)
        return node

    def server_version(self) -> ServerVersion:
        """Return the server's version; "35+" counts as 35. Raises: ApiError."""
        answer = self.request("GET", "/version")
        return ServerVersion(
            major=_number(answer.get("major")),
            minor=_number(answer.get("minor")),
            git=str(answer.get("gitVersion", "")),
        )

    def authorization(self) -> str:
        """Return the value of the Authorization header that requests have now; "" for none."""
        return self._tokens.authorization()

    def close(self) -> None:
        """Close idle connections."""
        self._connections.close()

    def _target(self, path: str, query: Mapping[str, str] | None) -> str:
        target = self._connections.prefix + path
        return f"{target}?{urlencode(query)}" if query else target

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": _USER_AGENT}
        if authorization := self._tokens.authorization():
            headers["Authorization"] = authorization
        return headers

    def _send(self, method: str, target: str, body: bytes | None, content_type: str, turn: LargeTurn) -> _Answer:
        """Send a request; repeat it once if it provably had no effect (or is a GET) and a new connection may help."""
        headers = self._headers()
        if body is not None:
            headers["Content-Type"] = content_type
        is_retry = False
        while True:
            try:
                return self._exchange(method, target, headers, body, turn)
            except (OSError, ValueError) as err:  # a ValueError means that the request itself can't be written
                if is_retry or not _may_resend(method, err):
                    raise self._unanswered(method, target, err) from err
                is_retry = True

    def _exchange(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, turn: LargeTurn
    ) -> _Answer:
        connection, has_failed = self._connections.acquire(turn.until), True
        try:
            answer = connection.ask(method, target, headers, body, turn.until)
            whole = answer.whole(turn)
            has_failed = False
        finally:
            self._connections.release(connection, has_failed=has_failed)
        return _Answer(answer.status, whole, answer.headers.get("retry-after", ""), connection.generation)

    def _unanswered(self, method: str, target: str, err: Exception) -> ApiError:
        """Return the error for a request that got no answer."""
        path = target.partition("?")[0]
        if isinstance(err, TooLargeError):
            what = f"{self._server} sent an answer that is compressed or larger than {MAX_BYTES >> 20} MiB"
            return ApiError("answer-too-large", f"{method} {path}: {what}", retry=Retry.LATER)
        if isinstance(err, (CertificateError, SSLError)):
            return ApiError(
                "tls",
                f"{method} {path}: {self._server} did not prove its identity: {err}",
                hint="check the CA in the kubeconfig or ServiceAccount",
                retry=Retry.LATER,
            )
        if isinstance(err, TimeoutError):
            return ApiError("timeout", f"{method} {path}: {self._server} did not answer in time", retry=Retry.NOW)
        return ApiError("unreachable", f"{method} {path}: {self._server} can't be reached: {err}", retry=Retry.NOW)


def _may_resend(method: str, err: Exception) -> bool:
    """Return whether sending again can't have an effect twice, and is likely to succeed."""
    if isinstance(err, CertificateError):
        return True  # nothing was sent, and the certificate files may have been replaced by now
    return method == "GET" and isinstance(err, (BrokenError, ConnectionError, SSLError))


def _number(text: object) -> int:
    found = _LEADING_DIGITS.match(str(text or ""))
    return int(found[0]) if found and found[0] else 0


# Events about this node, and about pods that use its devices, as `kubectl describe` shows them.

log = logging.getLogger(__name__)

NAMESPACE = "default"
QUIET_SECONDS = 600.0
MAX = 50
MAX_MESSAGE = 1024  # characters; longer ones are refused by the API server
EventKey = tuple[str, ...]  # the reason and the object
PATH = within(EVENTS, NAMESPACE)


@dataclass(frozen=True, slots=True, order=True)
class PodId:
    """One pod. A later pod of the same name has another UID."""

    namespace: str
    name: str
    uid: str


def node_event(node: str, driver: str, kind: Literal["Normal", "Warning"], reason: str, message: str) -> Wire:
    """Return an event about a Node, which has its name as UID by the kubelet's convention."""
    involved = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}
    return _event(involved, NAMESPACE, node=node, driver=driver, kind=kind, reason=reason, message=message)


def pod_event(pod: PodId, node: str, driver: str, reason: str, message: str) -> Wire:
    """Return a warning about a pod. The chart's admission policy lets an agent create no other kind about pods."""
    involved = {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
    event = _event(involved, pod.namespace, node=node, driver=driver, kind="Warning", reason=reason, message=message)
    return {**event, "reportingComponent": driver, "reportingInstance": node}


def send_event(api: KubeApi, event: Wire) -> bool:
    """Send an event, unless the same one was sent recently; log an event that was not sent or not accepted.

    Return whether it was sent to the API server.
    """
    if not _throttle_of(api).is_due(_key_of(event)):
        log.info("event not repeated", extra=fields(reason=event["reason"], err=event["message"]))
        return False
    try:
        api.request("POST", within(EVENTS, event["metadata"]["namespace"]), body=event)
    except ApiError as error:
        log.warning("event not accepted", extra=fields(reason=event["reason"], code=error.code, err=str(error)))
    return True


def _event(involved: Wire, namespace: str, *, node: str, driver: str, kind: str, reason: str, message: str) -> Wire:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "dra-driver-", "namespace": namespace},
        "involvedObject": involved,
        "type": kind,
        "reason": reason,
        "message": message[:MAX_MESSAGE],
        "source": {"component": driver, "host": node},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


class EventThrottle:
    """The events that were sent in the last ten minutes, at most `MAX`. Every method may be called by any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._at: dict[EventKey, float] = {}

    def is_due(self, key: EventKey) -> bool:
        """Return whether the event may be sent now; if so, it counts as sent."""
        with self._lock:
            now = self._clock()
            self._at = {one: at for one, at in self._at.items() if now - at < QUIET_SECONDS}
            if key in self._at or len(self._at) >= MAX:
                return False
            self._at[key] = now
            return True


class NodeEvents:
    """Sends events about one node. A failure never reaches the caller."""

    def __init__(self, api: KubeApi, *, node: str, driver: str) -> None:
        self._api, self._node, self._driver = api, node, driver

    def send(self, reason: str, message: str, kind: Literal["Normal", "Warning"] = "Normal") -> None:
        """Send an event, unless the same one was sent recently."""
        send_event(self._api, node_event(self._node, self._driver, kind, reason, message))


_throttles: WeakKeyDictionary[KubeApi, EventThrottle] = WeakKeyDictionary()
_throttles_lock = threading.Lock()


def _throttle_of(api: KubeApi) -> EventThrottle:
    with _throttles_lock:
        return _throttles.setdefault(api, EventThrottle())


def _key_of(event: Wire) -> EventKey:
    involved = event["involvedObject"]
    return (event["reason"], involved["kind"], involved.get("namespace", ""), involved["name"], involved["uid"])
