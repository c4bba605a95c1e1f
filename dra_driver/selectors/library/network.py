"""IP addresses and CIDR blocks in expressions.

In: texts, addresses, blocks. Out: addresses, blocks, bools, ints, or a `CelError`. Nothing is looked up.

Source: Kubernetes' CEL ip and cidr libraries over Go's netip (no zones, no leading zeros, no IPv4-mapped
addresses).
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from dra_driver.selectors.values.equality import NO_SUCH_OVERLOAD
from dra_driver.selectors.values.quoting import quote
from dra_driver.selectors.values.values import CelError, Cidr, Ip

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
