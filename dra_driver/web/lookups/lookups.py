"""Lookups for a viewer: the doctor's findings, usage and cost, and dashboards, as far as each is available.

In: a question, and what its viewer may read. Out: a document. The doctor uses the viewer's own credentials, so it is
not available if the console does not have them. A Prometheus has data of all namespaces: viewers who may not read all
claims see its data of those namespaces whose claims they may read, and no dashboards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dra_driver.model.errors import DriverError, InputError
from dra_driver.model.names import is_dns_label
from dra_driver.model.wire import Wire
from dra_driver.web.lookups.commands import BUSY, Commands
from dra_driver.web.places import NoPlaceError
from dra_driver.web.rights import Rights
from dra_driver.web.worker.responses import WorkerResponse, of_fault, refusal, written

# The values of `views.usage.report.Grouping`. Importing that module would double the time until the first page.
GROUPINGS = ("claim", "pod", "namespace", "class", "node", "pool")
_MAX_HOURS = 1_000_000  # the dashboard itself has a lower limit
QUESTIONS = frozenset({"offers", "doctor", "usage", "dashboard"})
_OFF = {
    "doctor": "the doctor reads a cluster with your own kubeconfig, which this console does not have",
    "usage": "this console has no source of usage data",
    "dashboard": "this console has no Prometheus to ask",
}
_HOW = {
    "doctor": "start dra-driver console on a cluster, or run dra-driver doctor",
    "usage": "name a Prometheus: --prometheus URL",
    "dashboard": "name a Prometheus: --prometheus URL",
}


@dataclass(frozen=True, slots=True)
class UsageSource:
    """The source of usage data: the URL of a Prometheus, files with its token and authorities, a file with prices."""

    prometheus: str = ""
    token_file: str = ""
    ca_file: str = ""
    prices: str = ""

    def words(self) -> list[str]:
        """Return the options of `dra-driver usage` for it."""
        named = {"--prometheus": self.prometheus, "--token-file": self.token_file, "--ca-file": self.ca_file}
        named["--prices"] = self.prices
        return [word for name, value in named.items() if value for word in (name, value)]


@dataclass(frozen=True, slots=True)
class ViewerLookups:
    """The lookups of viewers with equal rights.

    `cluster` are the options of a command that uses the viewer's own credentials; empty if the console has none.
    """

    source: UsageSource
    commands: Commands
    cluster: tuple[str, ...] = ()
    rights: Rights | None = None

    async def answer(self, name: str, given: Mapping[str, Any]) -> WorkerResponse:
        """Return the answer to one of `QUESTIONS`."""
        offers = self._offers()
        if name == "offers":
            return WorkerResponse(200, written(offers))
        if not offers[name]:
            return refusal(404, "off", _OFF[name], _HOW[name])
        try:
            if name == "doctor":
                return await self.commands.run("doctor", "--only", "cluster", *self.cluster)
            return await (self._usage(given) if name == "usage" else self._dashboard(given))
        except DriverError as fault:
            return of_fault(fault)

    def _offers(self) -> dict[str, Any]:
        """Return what this viewer may look up; usage is limited to `namespaces`."""
        rights, has_prometheus = self.rights, bool(self.source.prometheus)
        sees_all = rights is None or "ResourceClaim" in rights.everywhere
        has_cluster = bool(self.cluster) or self.commands.has_viewer
        places = [] if sees_all or rights is None else list(rights.places("ResourceClaim"))
        usage = (has_prometheus and (sees_all or bool(places))) or has_cluster
        dashboards = has_prometheus and sees_all
        return {"doctor": has_cluster, "usage": usage, "dashboard": dashboards, "namespaces": places}

    async def _usage(self, given: Mapping[str, Any]) -> WorkerResponse:
        """Return the usage. Raises: InputError."""
        namespace, grouping = str(given.get("namespace") or ""), str(given.get("by") or "namespace")
        days = _number(given, "days", 7, 400)
        if namespace and not is_dns_label(namespace):
            raise InputError("question", "`namespace` is not a valid name of a namespace")
        if grouping not in GROUPINGS:
            raise InputError("question", f"`by` must be one of {', '.join(GROUPINGS)}")
        if self.rights is not None and not self.rights.sees("ResourceClaim", namespace):
            raise InputError("question", "usage of this namespace may not be read", hint="choose one of your own")
        words = ["usage", "--by", grouping, *self.source.words()]
        if self.source.prometheus:
            words += ["--since", f"{days}d"]
        else:
            words += self.cluster
        return await self.commands.run(*words, *(("--namespace", namespace) if namespace else ()))

    async def _dashboard(self, given: Mapping[str, Any]) -> WorkerResponse:
        """Return a dashboard. Raises: InputError, UsageError."""
        source, name = self.source, str(given.get("name") or "fleet")
        hours = _number(given, "hours", 6, _MAX_HOURS)
        try:
            async with self.commands.places.place():
                return WorkerResponse(200, written(await asyncio.to_thread(_drawn, source, name, hours)))
        except NoPlaceError:
            return BUSY


def _drawn(source: UsageSource, name: str, hours: int) -> Wire:
    """Return the document of a dashboard. Raises: InputError, UsageError."""
    from dra_driver.views.usage.from_prometheus import PrometheusAddress  # noqa: PLC0415  the first page waits for none
    from dra_driver.views.usage.panels import dashboard  # noqa: PLC0415

    address = PrometheusAddress(source.prometheus, source.token_file, source.ca_file)
    return dashboard(address, name, hours, datetime.now(UTC)).wire()


def _number(given: Mapping[str, Any], name: str, default: int, maximum: int) -> int:
    text = str(given.get(name) or default)
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= maximum):
        raise InputError("question", f"{name} is not a number from 1 to {maximum:,}")
    return int(text)
