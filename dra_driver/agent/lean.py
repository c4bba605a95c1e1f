"""Lean imports: libraries come in without the modules that they import and that an agent never uses.

`grpc` imports its asyncio half and asyncio itself, its server all of typing_extensions for one decorator; `protobuf`
its implementation in Python beside the one in C that it uses; some look for others through importlib.metadata: together
80 modules, 5 MiB of resident memory. They are kept out only while the libraries themselves are imported; whoever imports
one of them later gets the real one, and so does a library that kept what stood in for it, at its first use.
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
    """Stands in for a module until something in it is asked for."""

    def __getattr__(self, name: str) -> Any:
        is_asked_of_any = name != "__path__" or self.__name__ not in _PACKAGES
        if name.startswith("__") and is_asked_of_any:  # by the import machinery
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def lean_imports() -> Iterator[None]:
    """Let modules that are not needed be stood in for, as far as nobody has imported them yet."""
    wanted = (*map(_Later, _UNUSED), _metadata(), _typing_extensions())
    stand_ins = {module.__name__: module for module in wanted if module.__name__ not in sys.modules}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, module in stand_ins.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


def _metadata() -> ModuleType:
    module = ModuleType("importlib.metadata")
    module.version = _no_version  # type: ignore[attr-defined]
    return module


def _typing_extensions() -> ModuleType:
    module = _Later("typing_extensions")
    module.override = _override  # type: ignore[attr-defined]
    return module


def _no_version(name: str) -> str:
    raise ImportError(f"{name}: versions of libraries are not looked up here")


def _override(method: Callable[..., T]) -> Callable[..., T]:
    """Do what the decorator of that name does when a program runs: nothing."""
    return method
