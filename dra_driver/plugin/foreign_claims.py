"""Foreign claims: devices that are still held under names which another driver of our name published on this node.

In: the cluster's claims, our devices. Out: which of our devices stand behind those names, and so must not be offered
yet. The list is read before the first slice, once more a minute later (a scheduler may have used the other driver's
slices meanwhile), and every minute while there is any. A name that can't be resolved withholds every device: better
none than one handed out twice. A partition's name that does not tell its place stands for its whole GPU. Never: a
change to a claim.
Source: NVIDIA's DRA driver (`gpu-<minor>`, `gpu-<minor>-mig-<profile>-<profile id>-<start>`, in older releases
`gpu-<minor>-mig-<profile id>-<start>-<size>`; pool = node name).
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dra_driver.hardware.facts import Problem
from dra_driver.inventory.device import Device
from dra_driver.kube.api import KubeApi
from dra_driver.kube.paths import RESOURCE_GROUP
from dra_driver.model.errors import ApiError
from dra_driver.model.wire import ClaimWire
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

LOOK_SECONDS = 60.0
FIRST_SECONDS = 2.0  # while the API server has not answered yet
PAGE = "500"
CODE = "node.foreign-claim"
_CLAIMS = f"/apis/{RESOURCE_GROUP}/resourceclaims"
_NAME = re.compile(r"gpu-(?P<minor>\d+)(?:-mig-(?P<place>.*))?")
# The text of a profile has a letter.
_PLACES = (re.compile(r"\d+[a-z][a-z0-9-]*-(\d+)-(\d+)"), re.compile(r"(\d+)-(\d+)-\d+"))
_PASSTHROUGH = "gpu-vfio-"  # its GPU is bound to vfio, and so is none of ours

_FORBIDDEN = 403


class ForeignClaims:
    """Keeps what is held under foreign names; `changed` is called after the first answer and when it is another."""

    def __init__(
        self, api: KubeApi, *, node: str, driver: str, changed: Callable[[], None], look_s: float = LOOK_SECONDS
    ) -> None:
        self._api, self._node, self._driver = api, node, driver
        self._changed, self._look_s = changed, look_s
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="foreign-claims", daemon=True)
        self._looks, self._reasons = 0, 0  # answers since there was reason to look; how often there was
        self._held: Mapping[str, str] | None = None  # foreign name → claim; None: nobody has answered yet

    @property
    def is_known(self) -> bool:
        """Say whether there was an answer: before it, nothing may be published."""
        return self._held is not None and self._looks > 0

    def look_again(self) -> None:
        """Take what is known for stale: another driver of our name came or went, and may have left claims."""
        self._reasons += 1
        self._looks = 0
        self._wake.set()

    def offer(self, devices: Sequence[Device]) -> tuple[Device, ...]:
        """Give the devices that no foreign claim holds."""
        taken = behind(self._held or {}, devices)
        return tuple(device for device in devices if device.name not in taken)

    def problems(self) -> tuple[Problem, ...]:
        """Give what is held, each as a problem."""
        return tuple(Problem(CODE, name, f"held by claim {claim}") for name, claim in (self._held or {}).items())

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """End the thread; one that waits for the API server is left behind, it is a daemon."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            try:
                self._look()
            except Exception:
                log.exception("look for foreign claims failed")
            is_settled = self._looks > 1 and not self._held
            pause = self._look_s if self.is_known else min(FIRST_SECONDS, self._look_s)
            self._wake.wait(None if is_settled else pause)

    def _look(self) -> None:
        reasons = self._reasons
        try:
            found = holders(self._claims(), driver=self._driver, node=self._node)
        except ApiError as error:
            log.warning("cannot list claims", extra=fields(code=error.code, err=str(error)))
            if error.status == _FORBIDDEN and not self.is_known:  # an agent that may not look publishes all the same
                self._held, self._looks = {}, 1
                self._changed()
            return
        if reasons != self._reasons:
            return  # asked too early
        is_first, self._looks = not self._looks, self._looks + 1
        if found != self._held:
            for name in found.keys() - (self._held or {}).keys():
                log.warning("a device is held under a foreign name", extra=fields(device=name, claim=found[name]))
            if self._held and not found:
                log.info("no device is held under a foreign name any more")
        if is_first or found != self._held:
            self._held = found
            self._changed()

    def _claims(self) -> Iterator[ClaimWire]:
        token = ""
        while True:
            query = {"limit": PAGE, **({"continue": token} if token else {})}
            answer = self._api.request("GET", _CLAIMS, query=query)
            yield from answer.get("items") or ()
            token = (answer.get("metadata") or {}).get("continue") or ""
            if not token:
                return


def holders(claims: Iterable[ClaimWire], *, driver: str, node: str) -> dict[str, str]:
    """Give each foreign device name with all claims that hold it."""
    found: dict[str, str] = {}
    for name, claim in held(claims, driver=driver, node=node):
        found[name] = f"{found[name]}, {claim}" if name in found else claim
    return found


def held(claims: Iterable[ClaimWire], *, driver: str, node: str) -> Iterator[tuple[str, str]]:
    """Give (foreign device name, claim) of what is allocated from the other driver's pool of this node."""
    for claim in claims:
        for result in _results(claim):
            is_foreign = result.get("driver") == driver and result.get("pool") == node
            if is_foreign and not result.get("adminAccess") and not str(result["device"]).startswith(_PASSTHROUGH):
                yield result["device"], f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"


def behind(names: Iterable[str], devices: Sequence[Device]) -> frozenset[str]:
    """Name those of our devices that stand behind foreign names."""
    taken: set[str] = set()
    for name in names:
        match = _NAME.fullmatch(name)
        found = _same_gpu(match, devices) if match else list(devices)
        taken.update(device.name for device in found)
    return frozenset(taken)


def remove_leftover(cdi_root: Path, file_name: str) -> bool:
    """Remove the CDI file that the other driver wrote for a claim (ours, ending otherwise). Says whether it was."""
    leftover = (cdi_root / file_name).with_suffix(".yaml")
    try:
        leftover.unlink()
    except FileNotFoundError:
        return False
    except OSError as fault:
        log.warning("CDI file of another driver not removed", extra=fields(file=leftover.name, err=str(fault)))
        return False
    log.info("CDI file of another driver removed", extra=fields(file=leftover.name))
    return True


def _results(claim: ClaimWire) -> Iterable[Mapping[str, Any]]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return (allocation.get("devices") or {}).get("results") or ()


def _same_gpu(match: re.Match[str], devices: Sequence[Device]) -> list[Device]:
    """Give the devices of the GPU; of a MIG partition only that one and what could overlap it."""
    of_gpu = [device for device in devices if device.gpu.minor == int(match["minor"])]
    place = next(filter(None, (known.fullmatch(match["place"] or "") for known in _PLACES)), None)
    if place is None:
        return of_gpu
    wanted = (int(place[1]), int(place[2]))
    same = [d for d in of_gpu if d.partition and (d.partition.gi_profile_id, d.partition.start) == wanted]
    return [*same, *(d for d in of_gpu if d.partition is None)] if same else of_gpu
