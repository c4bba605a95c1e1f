"""The session of a console on the loopback address: a one-time token is exchanged for a cookie that requests need.

In: the headers of a request. Out: whether it may go on. A page of another origin has no access: its requests name
another host, or another origin, or lack the cookie, which is never sent with a request that another site made.

Source: RFC 6265bis (SameSite, HttpOnly); Fetch Metadata (Sec-Fetch-Site).
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie

_BYTES = 32
_READING = frozenset({"GET", "HEAD"})


def _random() -> str:
    return secrets.token_urlsafe(_BYTES)


@dataclass(slots=True)
class ConsoleSession:
    """The one-time token, and the session made with it. `hosts` are the values of Host under which pages are served."""

    hosts: Collection[str]
    cookie_name: str
    token: str = field(default_factory=_random)
    _secret: str = field(default_factory=_random)

    def exchange(self, token: str) -> str | None:
        """Return the value of the cookie in exchange for the token, which becomes invalid; None for a wrong token."""
        if not self.token or not hmac.compare_digest(token.encode(), self.token.encode()):
            return None
        self.token = ""
        return self._secret

    def is_known(self, cookies: str) -> bool:
        """Return whether the Cookie header of a request contains the session's cookie."""
        try:
            found = SimpleCookie(cookies).get(self.cookie_name)
        except CookieError:
            return False
        return found is not None and hmac.compare_digest(found.value.encode(), self._secret.encode())

    def is_from_here(self, method: str, host: str, origin: str, site: str) -> bool:
        """Return whether a request was made by a page of this console, or by a person who opened its address."""
        # Another host name that leads to this address is an attack (DNS rebinding).
        return host in self.hosts and is_same_origin(method, host, origin, site)


def is_same_origin(method: str, host: str, origin: str, site: str) -> bool:
    """Return whether a request to one of the console's hosts was made by a page of it, or by a person."""
    if origin and origin not in {f"http://{host}", f"https://{host}"}:
        return False
    if method in _READING:
        return site in {"", "same-origin", "none"}
    return bool(origin) and site in {"", "same-origin"}
