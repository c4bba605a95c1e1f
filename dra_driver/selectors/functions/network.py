"""IP addresses and CIDR blocks in expressions.

In: texts, addresses, blocks. Out: addresses, blocks, bools, ints, or a `CelError`. Nothing is looked up.

Source: Kubernetes' CEL ip and cidr libraries over Go's netip (no zones, no leading zeros, no IPv4-mapped
addresses).
"""

from __future__ import annotations

import ipaddress
import re
from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes

from dra_driver.selectors.values.equality import NO_SUCH_OVERLOAD
from dra_driver.selectors.values.messages import quote
from dra_driver.selectors.values.values import CelError, Cidr, Ip, Url

_PREFIX_LENGTH = re.compile(r"0|[1-9][0-9]{0,2}")
_BROADCAST = ipaddress.IPv4Address("255.255.255.255")


def to_ip(text: str) -> Ip:
    """Evaluate ip()."""
    address = _address(text)
    if address is None:
        if "%" in text and _address(text.partition("%")[0]) is not None:
            raise CelError(f"IP address {quote(text)} with zone value is not allowed")
        raise CelError(
            f"IP Address {quote(text)} parse error during conversion from string: "
            f"ParseAddr({quote(text)}): unable to parse IP"
        )
    if _is_mapped(address):
        raise CelError(f"IPv4-mapped IPv6 address {quote(text)} is not allowed")
    return Ip(address)


def to_cidr(text: str) -> Cidr:
    """Evaluate cidr(); host bits are kept."""
    before, slash, after = text.rpartition("/")
    address = _address(before) if slash else None
    if address is None or not _PREFIX_LENGTH.fullmatch(after) or int(after) > address.max_prefixlen:
        twice = "network address parse error during conversion from string: " * 2
        reason = "no '/'" if not slash else "bad prefix"
        raise CelError(f"{twice}netip.ParsePrefix({quote(text)}): {reason}")
    if _is_mapped(address):
        raise CelError(
            "network address parse error during conversion from string: "
            f"IPv4-mapped IPv6 address {quote(text)} is not allowed"
        )
    return Cidr(address, int(after))


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    if "%" in text or len(text) > 60:
        return None
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _is_mapped(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None


def _is(read: Any) -> Any:
    def test(text: str) -> bool:
        try:
            read(text)
        except CelError:
            return False
        return True

    return test


def _masked(address: Any, prefix: int) -> int:
    host_bits = int(address.max_prefixlen) - prefix
    return int(address) >> host_bits << host_bits


def _same_family(left: Any, right: Any) -> bool:
    return bool(left.version == right.version)


def _contains_ip(block: Cidr, ip: Ip) -> bool:
    if not _same_family(block.address, ip.address):
        return False
    return _masked(block.address, block.prefix) == _masked(ip.address, block.prefix)


def _contains_ip_text(block: Cidr, text: str) -> bool:
    try:
        return _contains_ip(block, to_ip(text))
    except CelError as error:
        raise CelError(NO_SUCH_OVERLOAD) from error  # the server drops the reason here


def _contains_cidr(block: Cidr, other: Cidr) -> bool:
    return block.prefix <= other.prefix and _contains_ip(block, Ip(other.address))


def _mask(block: Cidr) -> Cidr:
    return Cidr(type(block.address)(_masked(block.address, block.prefix)), block.prefix)


def _is_link_local_multicast(ip: Ip) -> bool:
    number = int(ip.address)
    if ip.address.version == 4:
        return number >> 8 == 0xE00000
    return number >> 112 & 0xFF0F == 0xFF02


def _is_link_local_unicast(ip: Ip) -> bool:
    number = int(ip.address)
    if ip.address.version == 4:
        return number >> 16 == 0xA9FE
    return number >> 118 == 0xFE80 >> 6


def _is_loopback(ip: Ip) -> bool:
    number = int(ip.address)
    return number >> 24 == 127 if ip.address.version == 4 else number == 1


def _is_multicast(ip: Ip) -> bool:
    number = int(ip.address)
    return number >> 28 == 0xE if ip.address.version == 4 else number >> 120 == 0xFF


def _is_unspecified(ip: Ip) -> bool:
    return int(ip.address) == 0


def _is_global_unicast(ip: Ip) -> bool:
    if _is_unspecified(ip) or ip.address == _BROADCAST:
        return False
    return not (_is_loopback(ip) or _is_multicast(ip) or _is_link_local_unicast(ip))


NETWORK: dict[str, dict[tuple[type, ...], Any]] = {
    "ip": {(str,): to_ip},
    ".ip": {(Cidr,): lambda block: Ip(block.address)},
    "isIP": {(str,): _is(to_ip)},
    "ip.isCanonical": {(str,): lambda text: str(to_ip(text).address) == text},
    "family": {(Ip,): lambda ip: ip.address.version},
    "isUnspecified": {(Ip,): _is_unspecified},
    "isLoopback": {(Ip,): _is_loopback},
    "isLinkLocalMulticast": {(Ip,): _is_link_local_multicast},
    "isLinkLocalUnicast": {(Ip,): _is_link_local_unicast},
    "isGlobalUnicast": {(Ip,): _is_global_unicast},
    "cidr": {(str,): to_cidr},
    "isCIDR": {(str,): _is(to_cidr)},
    "prefixLength": {(Cidr,): lambda block: block.prefix},
    "masked": {(Cidr,): _mask},
    "containsIP": {(Cidr, Ip): _contains_ip, (Cidr, str): _contains_ip_text},
    "containsCIDR": {
        (Cidr, Cidr): _contains_cidr,
        (Cidr, str): lambda block, text: _contains_cidr(block, to_cidr(text)),
    },
}


# URLs in expressions.

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
