"""Warnings about containers with several claims under MPS, of which only one works: a container has one MPS daemon.

In: a Pod, or an object that makes pods, as anyone may have written it, and the claims and templates that it names, read
from its own namespace. Out: a sentence for each such container. Only containers that use more than one claim, or more
than one request, are looked at. What can't be read in the time that a review has gives no warning.
Source: NVIDIA, "Multi-Process Service": a client finds its daemon by one folder, and sees the daemon's devices alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol

from dra_driver.kube.paths import CLAIMS, TEMPLATES, named, within
from dra_driver.model.errors import ApiError
from dra_driver.model.fifo_cache import FifoCache
from dra_driver.model.names import is_dns_label, is_dns_subdomain
from dra_driver.model.wire import Wire
from dra_driver.webhook.fleet import PublishedFleet
from dra_driver.webhook.images import pod_of
from dra_driver.webhook.objects import device_part, items, mapping

_REVIEW_SECONDS, _REQUEST_SECONDS = 0.5, 0.3  # the API server waits for a second, and then goes on without an answer
_KEPT_SECONDS = 30.0  # a controller makes many equal pods; the specs of claims and templates don't change
_MAX_KEPT, _MAX_CONTAINERS, _MAX_CLAIMS, _MAX_READ, _MAX_NAMED = 256, 64, 64, 8, 4
_MPS_SELECTOR = re.compile(r"""sharingStrategy\s*==\s*["']MPS["']""")
_PATHS = {"ResourceClaim": CLAIMS, "ResourceClaimTemplate": TEMPLATES}
_ClaimKey = tuple[str, str, str]  # kind, namespace, name
_Uses = list[tuple[str, str]]  # the entries of a pod's claims, each with a request of it, or "" for all of them


class ObjectApi(Protocol):
    """Reads single objects from the API server."""

    def request(self, method: str, path: str, *, timeout_s: float) -> Wire:
        """Return an object. Raises: ApiError."""


class MpsAdvisor:
    """Advises on the claims of pods. Any thread may ask."""

    def __init__(self, api: ObjectApi, fleet: PublishedFleet, drivers: Collection[str]) -> None:
        self._api, self._fleet, self._drivers = api, fleet, drivers
        self._kept: FifoCache[_ClaimKey, tuple[float, frozenset[str]]] = FifoCache(_MAX_KEPT)

    def warnings(self, wire: Any, namespace: str) -> list[str]:
        """Return a sentence for each container of a pod or pod template that can't use all of its claims."""
        spec = mapping(pod_of(wire).get("spec"))
        containers = dict(_containers(spec))
        if not containers or not self._fleet.is_known or not is_dns_label(namespace):
            return []
        wanted = dict.fromkeys(entry for uses in containers.values() for entry, _ in uses)
        sources = {name: key for name, key in _sources(spec, namespace) if name in wanted}
        until = time.monotonic() + _REVIEW_SECONDS
        under_mps = {name: self._requests_of(key, until) for name, key in islice(sources.items(), _MAX_READ)}
        found = ((container, list(_under_mps(uses, under_mps))) for container, uses in containers.items())
        return [_sentence(container, names) for container, names in found if len(names) > 1]

    def _requests_of(self, key: _ClaimKey, until: float) -> frozenset[str]:
        """Return the requests of a claim or template that are under MPS; none if it can't be read in time."""
        kept, now = self._kept.get(key), time.monotonic()
        if kept is not None and kept[0] > now:
            return kept[1]
        if until <= now:
            return frozenset()
        kind, namespace, name = key
        path = named(within(_PATHS[kind], namespace), name)
        try:
            wire = self._api.request("GET", path, timeout_s=min(_REQUEST_SECONDS, until - now))
        except ApiError:
            return frozenset()
        _, devices = device_part(kind, wire)
        found = frozenset(self._under_mps(devices))
        self._kept.keep(key, (now + _KEPT_SECONDS, found))
        return found

    def _under_mps(self, devices: Mapping[str, Any]) -> Iterator[str]:
        """Yield the names of a claim's requests whose devices are under MPS, by a config or by their class."""
        configured = [
            entry for entry in items(devices.get("config")) if self._is_mps_config(mapping(entry.get("opaque")))
        ]
        named_by_all = any(not entry.get("requests") for entry in configured)
        named_by = {str(name).partition("/")[0] for entry in configured for name in _listed(entry.get("requests"))}
        for request in items(devices.get("requests")):
            name = str(request.get("name"))
            expressions = list(self._expressions(request))
            is_ours = any(driver in text for driver in self._drivers for text in expressions)
            if is_ours and (named_by_all or name in named_by or any(map(_MPS_SELECTOR.search, expressions))):
                yield name

    def _is_mps_config(self, opaque: Mapping[str, Any]) -> bool:
        sharing = mapping(mapping(opaque.get("parameters")).get("sharing"))
        return opaque.get("driver") in self._drivers and sharing.get("strategy") == "MPS"

    def _expressions(self, request: Mapping[str, Any]) -> Iterator[str]:
        """Yield the selectors of a request, of its alternatives and of their classes."""
        for part in (mapping(request.get("exactly")), *items(request.get("firstAvailable"))):
            for entry in items(part.get("selectors")):
                yield str(mapping(entry.get("cel")).get("expression"))
            yield from self._fleet.selectors_of(str(part.get("deviceClassName"))) or ()


def _containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, _Uses]]:
    """Yield the containers that use several claims, or several requests of one."""
    for field in ("initContainers", "containers"):
        for container in islice(items(spec.get(field)), _MAX_CONTAINERS):
            entries = islice(items(mapping(container.get("resources")).get("claims")), _MAX_CLAIMS)
            uses = [(str(entry.get("name")), str(entry.get("request") or "")) for entry in entries]
            if len(uses) > 1:
                yield str(container.get("name")), uses


def _sources(spec: Mapping[str, Any], namespace: str) -> Iterator[tuple[str, _ClaimKey]]:
    """Yield the entries of a pod's claims, each with the claim or template that it names."""
    for entry in islice(items(spec.get("resourceClaims")), _MAX_CLAIMS):
        for kind, field in (
            ("ResourceClaim", "resourceClaimName"),
            ("ResourceClaimTemplate", "resourceClaimTemplateName"),
        ):
            name = entry.get(field)
            if isinstance(name, str) and is_dns_subdomain(name):
                yield str(entry.get("name")), (kind, namespace, name)


def _under_mps(uses: Iterable[tuple[str, str]], under_mps: Mapping[str, frozenset[str]]) -> Iterator[str]:
    """Yield each request under MPS that a container uses, once, as "entry/request"."""
    named = ((entry, request, name) for entry, request in uses for name in under_mps.get(entry, frozenset()))
    yield from sorted({f"{entry}/{name}" for entry, request, name in named if request in ("", name)})


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _sentence(container: str, requests: list[str]) -> str:
    listed = ", ".join(requests[:_MAX_NAMED]) + (" …" if len(requests) > _MAX_NAMED else "")
    text = "are under MPS, and a container has one MPS daemon: only one works, unless they are shares of one GPU"
    return f"container {container}: {listed} {text}"
