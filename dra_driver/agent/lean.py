"""Lean imports: libraries are loaded without the modules that they import and that an agent never uses.

`grpc` imports its asyncio half and asyncio itself, and its server imports all of typing_extensions for one decorator;
`protobuf` imports its implementation in Python beside the one in C that it uses. Together that is 70 modules and 4 MiB
of resident memory. They are kept out only while the libraries themselves are imported: code that imports one of them
later gets the real one, and so does a library that kept a stand-in, when it first uses it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")

_PACKAGES = ("asyncio", "grpc.aio")
_UNUSED = (*_PACKAGES, "google.protobuf.internal.python_message")


class _Later(ModuleType):
    """A stand-in for a module, until one of its attributes is asked for."""

    def __getattr__(self, name: str) -> Any:
        is_asked_of_any = name != "__path__" or self.__name__ not in _PACKAGES
        if name.startswith("__") and is_asked_of_any:  # the import machinery asks every module for it
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def lean_imports() -> Iterator[None]:
    """Replace modules that are not needed by stand-ins, except those that have been imported already."""
    wanted = (*map(_Later, _UNUSED), _typing_extensions())
    stand_ins = {module.__name__: module for module in wanted if module.__name__ not in sys.modules}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, module in stand_ins.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


def _typing_extensions() -> ModuleType:
    module = _Later("typing_extensions")
    module.override = _override  # type: ignore[attr-defined]
    return module


def _override(method: Callable[..., T]) -> Callable[..., T]:
    """Return the method unchanged, as the decorator of that name does at run time."""
    return method
