"""URLs in expressions.

In: texts and URLs. Out: URLs, their parts, or a `CelError`. Nothing is fetched.

Source: Kubernetes' CEL URL library over Go's net/url (an absolute URI or an absolute path; Go's escaping rules), which
refuses a second colon in a host from Go 1.26 on, with which Kubernetes is built since 1.36.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes

from dra_driver.selectors.values.quoting import quote
from dra_driver.selectors.values.values import CelError, Url

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+\-.]*):")
_PORT = re.compile(r":[0-9]*")
_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")
_USER = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*")
_HOST_CHARACTERS = re.compile(r"(?:[A-Za-z0-9\-_.~!$&'()*+,;=:\[\]<>\"]|[^\x00-\x7f]|%(?:25|[89a-fA-F][0-9a-fA-F]))*")
_PATH_KEPT = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~$&+,/:;=@")
_PATH_VALID = re.compile(r"[A-Za-z0-9\-_.~$&+,/:;=@!'()*\[\]%]*")


class _BadUrl(Exception):
    """The server does not accept the text as a URL."""


def to_url(text: str, *, strict: bool = False) -> Url:
    """Evaluate url(); `strict` refuses a second colon in a host, as 1.36 and later do."""
    try:
        _parse(text, request=True, strict=strict)
        before, _, fragment = text.partition("#")
        _check_escapes(fragment)
        return _parse(before, request=False, strict=strict)
    except _BadUrl as bad:
        raise CelError(f"URL parse error during conversion from string: parse {quote(text)}: {bad}") from bad


def is_request_uri(text: str, *, strict: bool = False) -> str | None:
    """Return what is wrong with a URI, or None if it is valid."""
    try:
        _parse(text, request=True, strict=strict)
    except _BadUrl as bad:
        return f"parse {quote(text)}: {bad}"
    return None


def _check_escapes(text: str) -> None:
    found = _BAD_ESCAPE.search(text)
    if found is not None:
        raise _BadUrl(f'invalid URL escape "{text[found.start() :][:3]}"')


def _parse(text: str, *, request: bool, strict: bool) -> Url:
    if any(char < " " or char == "\x7f" for char in text):
        raise _BadUrl("net/url: invalid control character in URL")
    if not text and request:
        raise _BadUrl("empty url")
    if text == "*":
        return Url(text, "", "", "", "", "*", ())
    scheme, rest = "", text
    found = _SCHEME.match(text)
    if found is not None:
        scheme, rest = found[1].lower(), text[found.end() :]
    elif text.startswith(":"):
        raise _BadUrl("missing protocol scheme")
    path, _, query = rest.partition("?")
    normal = f"{scheme}:{rest}" if scheme else rest
    if not path.startswith("/"):
        if scheme:
            return Url(normal, scheme, "", "", "", "", _query(query))  # an opaque URL, such as mailto:
        _check_relative(path, request=request)
    host = ""
    if path.startswith("//") and (scheme or (not request and not path.startswith("///"))):
        authority, slash, path = path[2:].partition("/")
        path = slash + path
        host = _host(authority, strict=strict)
    _check_escapes(path)
    name, port = _split_port(host)
    return Url(normal, scheme, host, name, port, _escaped(path), _query(query))


def _check_relative(path: str, *, request: bool) -> None:
    if request:
        raise _BadUrl("invalid URI for request")
    if ":" in path.partition("/")[0]:
        raise _BadUrl("first path segment in URL cannot contain colon")


def _host(authority: str, *, strict: bool) -> str:
    user, at, host = authority.rpartition("@")
    if host.startswith("["):
        end = host.rfind("]")
        if end < 0:
            raise _BadUrl("missing ']' in host")
        port = host[end + 1 :]
    else:
        colon = host.find(":") if strict else host.rfind(":")
        port = host[colon:] if colon >= 0 else ""
    if port and not _PORT.fullmatch(port):
        raise _BadUrl(f'invalid port "{port}" after host')
    valid = _HOST_CHARACTERS.match(host)
    if valid is None or valid.end() != len(host):
        wrong = host[valid.end() if valid else 0]
        raise _BadUrl(f'invalid character "{wrong}" in host name')
    if at and (not _USER.fullmatch(user) or _BAD_ESCAPE.search(user)):
        raise _BadUrl("net/url: invalid userinfo")
    return unquote_to_bytes(host).decode("utf-8", "replace")


def _split_port(host: str) -> tuple[str, str]:
    name, port = host, ""
    colon = host.rfind(":")
    if colon >= 0 and _PORT.fullmatch(host[colon:]):
        name, port = host[:colon], host[colon + 1 :]
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    return name, port


def _escaped(path: str) -> str:
    if _PATH_VALID.fullmatch(path):
        return path
    return "".join(chr(byte) if byte in _PATH_KEPT else f"%{byte:02X}" for byte in unquote_to_bytes(path))


def _query(text: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    values: dict[str, list[str]] = {}
    for part in text.split("&"):
        if not part or ";" in part:
            continue
        key, _, value = part.partition("=")
        if _BAD_ESCAPE.search(key) or _BAD_ESCAPE.search(value):
            continue
        values.setdefault(_unescaped(key), []).append(_unescaped(value))
    return tuple((key, tuple(found)) for key, found in values.items())


def _unescaped(text: str) -> str:
    return unquote_to_bytes(text.replace("+", " ")).decode("utf-8", "replace")


def _is_url(text: str, *, strict: bool = False) -> bool:
    return is_request_uri(text, strict=strict) is None


URLS: dict[str, dict[tuple[type, ...], Any]] = {
    "url": {(str,): to_url},
    "isURL": {(str,): _is_url},
    "url since 1.36": {(str,): partial(to_url, strict=True)},
    "isURL since 1.36": {(str,): partial(_is_url, strict=True)},
    "getScheme": {(Url,): lambda url: url.scheme},
    "getHost": {(Url,): lambda url: url.host},
    "getHostname": {(Url,): lambda url: url.hostname},
    "getPort": {(Url,): lambda url: url.port},
    "getEscapedPath": {(Url,): lambda url: url.escaped_path},
    "getQuery": {(Url,): lambda url: {key: list(values) for key, values in url.query}},
}
