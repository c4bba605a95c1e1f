"""The address on which a server of a command listens.

In: the value of --address. Out: a host and a port.
"""

from __future__ import annotations

from dra_driver.model.errors import UsageError


def read_address(text: str, example: str) -> tuple[str, int]:
    """Read HOST:PORT; the host is "" for all addresses. Raises: UsageError("usage.address"), which shows `example`."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UsageError("address", f"--address={text!r} is not HOST:PORT", hint=f"for example {example}")
    return host.strip("[]"), int(port)
