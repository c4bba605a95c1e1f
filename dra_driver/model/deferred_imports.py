"""Deferred imports: libraries are loaded without the modules that they import and that an agent never uses.

`protobuf` imports its implementation in Python beside the one in C that it uses; `prometheus_client` imports three HTTP
servers, and clients of gateways, whose classes it derives from; `dataclasses` imports what reads Python's own source,
for classes without a docstring (from Python 3.12 on it needs that for every class); `argparse` imports translations and
the locale; `pynvml` imports, for Windows, a module that finds a library by running a compiler. Together these are 69
modules and 6 MiB of an agent that serves NVIDIA GPUs. They are replaced only while the libraries themselves are
imported: code that imports one of them later gets the real module, and so does a library that kept a stand-in, when it
first uses it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_UNUSED = ("calendar", "google.protobuf.internal.python_message", "inspect", "ipaddress")
# What prometheus_client/exposition.py imports by name to serve and push metrics; an agent serves its own page instead.
_NAMES = {
    "http.server": ("BaseHTTPRequestHandler",),
    "socketserver": ("ThreadingMixIn",),
    "urllib.error": ("HTTPError",),
    "urllib.request": (
        "BaseHandler",
        "HTTPHandler",
        "HTTPRedirectHandler",
        "HTTPSHandler",
        "Request",
        "build_opener",
    ),
    "wsgiref.simple_server": ("WSGIRequestHandler", "WSGIServer", "make_server"),
}


class _StandIn(ModuleType):
    """A stand-in for a module, which is imported when one of its attributes is needed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import machinery reads these of every module
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


# What prometheus_client/exposition.py reads of `ssl` while it is imported, for the signatures of its servers.
_TLS = ("PROTOCOL_TLS_CLIENT", "PROTOCOL_TLS_SERVER", "SSLContext", "TLSVersion")


@contextmanager
def deferred_imports(*, has_tls: bool = True) -> Iterator[None]:
    """Replace modules that are not needed by stand-ins, except those that have been imported already.

    Without `has_tls` the module `ssl` is replaced, too; what is imported then must never open a TLS connection.
    """
    wanted = (
        *map(_StandIn, _UNUSED),
        _of_values("ctypes.util", find_library=_call_later("ctypes.util", "find_library")),
        _of_values("prometheus_client.decorator", decorate=_call_later("prometheus_client.decorator", "decorate")),
        _of_values("gettext", gettext=_unchanged, ngettext=_singular_or_plural),
        *(_of_names(*each) for each in _NAMES.items()),
        *(() if has_tls else (_of_names("ssl", _TLS),)),
    )
    stand_ins = {module.__name__: module for module in wanted if module.__name__ not in sys.modules}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, module in stand_ins.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


def _of_values(module: str, **values: Any) -> ModuleType:
    """Return a stand-in that has these values."""
    stand_in = _StandIn(module)
    vars(stand_in).update(values)
    return stand_in


def _of_names(module: str, names: tuple[str, ...]) -> ModuleType:
    """Return a stand-in in which these names are empty classes."""
    stand_in = _StandIn(module)
    for name in names:
        setattr(stand_in, name, type(name, (), {}))
    return stand_in


def _call_later(module: str, name: str) -> Callable[..., Any]:
    """Return a function that imports the real function when it is called."""

    def call(*args: Any, **more: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*args, **more)

    return call


def _unchanged(value: str) -> str:
    """Return a text as `gettext` does in English."""
    return value


def _singular_or_plural(singular: str, plural: str, count: int) -> str:
    """Return the text for a number of things, as `ngettext` does in English."""
    return singular if count == 1 else plural
