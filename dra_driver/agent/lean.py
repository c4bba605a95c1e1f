"""Lean imports: libraries come in without the modules that they import and that an agent never uses.

`grpc` imports its asyncio half, `urllib3` looks for an HTTP/2 library through importlib.metadata: together 40 modules,
1.3 MiB of resident memory. They are kept out only while the libraries themselves are imported; whoever imports one of
them later gets the real one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def lean_imports() -> Iterator[None]:
    """Stand empty modules in for those that are not needed, as far as nobody has imported them yet."""
    metadata = ModuleType("importlib.metadata")
    metadata.version = _no_version  # type: ignore[attr-defined]
    stand_ins = {m.__name__: m for m in (metadata, ModuleType("grpc.aio")) if m.__name__ not in sys.modules}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, module in stand_ins.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


def _no_version(name: str) -> str:
    raise ImportError(f"{name}: versions of libraries are not looked up here")
