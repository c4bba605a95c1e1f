"""The sessions of viewers who have signed in: a cookie is a random name for one, and useless anywhere else.

In: a token that the cluster has accepted, and later the Cookie header of requests. Out: the identity to which a session
belongs. Sessions are in memory only, under the digests of their names. A session ends when its viewer signs out, when
it is not used for half an hour, after eight hours, and when the cluster no longer accepts its token.

Source: RFC 6265bis (the prefix `__Host-`); OWASP Session Management Cheat Sheet (identifiers, idle and absolute ends).
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers

from dra_driver.tools.console.responses import owner_of_user, to_give_up

# The identity that a request presents: a token of the API server, or a user in the headers of a trusted proxy.

MAX_TOKEN = 16_000  # characters; the head of a request may have 16 KiB
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")  # the characters that are allowed in a header


@dataclass(frozen=True, slots=True)
class PresentedIdentity:
    """The identity in a request: a token, or a user with groups for whom a proxy vouches."""

    token: str = field(default="", repr=False)
    user: str = ""
    groups: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """A name for the identity that does not reveal its token."""
        return hashlib.sha256(json.dumps([self.token, self.user, *self.groups]).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class TrustedProxy:
    """The proxy whose headers are trusted: the names that its certificate may have, and which headers it sends."""

    names: frozenset[str]
    user_header: str = "x-remote-user"
    group_header: str = "x-remote-group"


def presented_identity(
    headers: Headers,
    certificate_names: frozenset[str],
    proxy: TrustedProxy | None,
    of_session: Callable[[str], PresentedIdentity | None],
) -> PresentedIdentity | None:
    """Return the identity in a request; None if there is none that can be trusted.

    Headers of a proxy count only on a connection with the proxy's certificate; on any other they are ignored.
    `of_session` returns whose session a Cookie header names.
    """
    if proxy is not None and certificate_names & proxy.names:
        users = headers.getlist(proxy.user_header)
        if len(users) == 1 and users[0].strip():
            return PresentedIdentity(user=users[0].strip(), groups=tuple(headers.getlist(proxy.group_header)))
        if users:
            return None
    sent = headers.getlist("authorization")
    if sent:
        scheme, _, token = sent[0].partition(" ")
        return (
            PresentedIdentity(token.strip())
            if len(sent) == 1 and scheme.lower() == "bearer" and is_token(token)
            else None
        )
    return of_session(headers.get("cookie", ""))


def is_token(text: str) -> bool:
    """Return whether a text can be a token."""
    return len(text) <= MAX_TOKEN and _TOKEN.fullmatch(text.strip()) is not None


IDLE_SECONDS = 1_800.0
WHOLE_SECONDS = 8 * 3_600.0
MAX_SESSIONS = 1_000
MAX_OF_USER = 16
_BYTES = 32


@dataclass(slots=True)
class _Session:
    identity: PresentedIdentity
    user: str
    began: float
    used: float

    def is_over(self, now: float) -> bool:
        return now - self.used > IDLE_SECONDS or now - self.began > WHOLE_SECONDS


class ViewerSessions:
    """All sessions. `cookie` is the name of the cookie. Call all methods in the event loop."""

    def __init__(self, cookie: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.cookie, self._clock = cookie, clock
        self._sessions: dict[bytes, _Session] = {}

    def __len__(self) -> int:
        """Return how many sessions are held."""
        return len(self._sessions)

    def begin(self, identity: PresentedIdentity, user: str) -> str:
        """Begin a session of a user whom the cluster has just accepted; return the value of its cookie."""
        name, now = secrets.token_urlsafe(_BYTES), self._clock()
        self._drop(lambda one: one.is_over(now))
        own = {key: (user, one.used) for key, one in self._sessions.items() if one.user == user}
        if len(own) >= MAX_OF_USER:
            del self._sessions[to_give_up(own)]
        elif len(self._sessions) >= MAX_SESSIONS:
            of_all = {key: (owner_of_user(one.user), one.used) for key, one in self._sessions.items()}
            del self._sessions[to_give_up(of_all)]
        self._sessions[_key(name)] = _Session(identity, user, now, now)
        return name

    def identity(self, cookies: str) -> PresentedIdentity | None:
        """Return whose session the Cookie header of a request names; None if it names none that goes on."""
        # The digest of what was sent is looked up, so the time that this takes says nothing about any session's name.
        key, now = _key(self._named(cookies)), self._clock()
        session = self._sessions.get(key)
        if session is None:
            return None
        if session.is_over(now):
            del self._sessions[key]
            return None
        session.used = now
        return session.identity

    def end(self, cookies: str) -> None:
        """End the session that a Cookie header names, if it names one."""
        self._sessions.pop(_key(self._named(cookies)), None)

    def end_all_of(self, identity: PresentedIdentity) -> None:
        """End all sessions with a token that the cluster no longer accepts."""
        self._drop(lambda one: one.identity == identity)

    def _drop(self, is_dropped: Callable[[_Session], bool]) -> None:
        self._sessions = {key: one for key, one in self._sessions.items() if not is_dropped(one)}

    def _named(self, cookies: str) -> str:
        try:
            found = SimpleCookie(cookies).get(self.cookie)
        except CookieError:
            return ""
        return found.value if found else ""


def _key(name: str) -> bytes:
    return hashlib.sha256(name.encode(errors="replace")).digest()
