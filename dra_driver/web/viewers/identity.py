"""The identity that a request presents: a token of the API server, or a user in the headers of a trusted proxy.

In: the headers of a request, and the names in the verified certificate of the connection. Out: `PresentedIdentity`, or
None.

Source: Kubernetes, "Authenticating Proxy" (X-Remote-User, X-Remote-Group); RFC 6750 (Bearer).
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers

MAX_TOKEN = 3_800  # characters of a token in a cookie, of which a browser keeps 4,096 bytes
_MAX_HEADER = 64 << 10  # characters of a token in a header; a proxy may send longer ones than fit into a cookie
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")  # the characters that are allowed both in a cookie and in a header


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
    headers: Headers, certificate_names: frozenset[str], proxy: TrustedProxy | None, cookie: str
) -> PresentedIdentity | None:
    """Return the identity in a request; None if there is none that can be trusted.

    Headers of a proxy count only on a connection with the proxy's certificate; on any other they are ignored.
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
    token = _of_cookie(headers.get("cookie", ""), cookie)
    return PresentedIdentity(token) if is_token(token) else None


def is_token(text: str, maximum: int = _MAX_HEADER) -> bool:
    """Return whether a text can be a token."""
    return len(text) <= maximum and _TOKEN.fullmatch(text.strip()) is not None


def _of_cookie(text: str, name: str) -> str:
    try:
        found = SimpleCookie(text).get(name)
    except CookieError:
        return ""
    return found.value if found else ""
