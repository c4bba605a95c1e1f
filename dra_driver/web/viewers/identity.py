"""The identity that a request presents: a token of the API server, or a user in the headers of a trusted proxy.

In: the headers of a request, the names in the verified certificate of the connection, and whose session its cookie
names. Out: `PresentedIdentity`, or None.

Source: Kubernetes, "Authenticating Proxy" (X-Remote-User, X-Remote-Group); RFC 6750 (Bearer).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.datastructures import Headers

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
