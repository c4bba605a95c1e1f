"""RequestMetadata: what a container can read about the devices of one request of its claim.

In: the claim on this node and the name of the driver. Out: for each request a value that knows the path of
its file in the container, and renders the file: a stream of JSON objects, one for each version of the API, the newest
first, because a reader takes the first one that it knows.
Source: KEP-5304; k8s.io/dynamic-resource-allocation/api/metadata, v1beta1 (1.37) and v1alpha1 (1.36): fields and paths.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from dra_driver.claims.allocated.claim_on_node import ClaimedDevice, ClaimOnNode
from dra_driver.hardware.published.rows import STANDARD
from dra_driver.inventory.device import AttributeValue
from dra_driver.inventory.wire import attribute_wire
from dra_driver.model.limits import DEVICE_ATTRIBUTES_AND_CAPACITIES

GROUP = "metadata.resource.k8s.io"
VERSIONS = ("v1beta1", "v1alpha1")
CONTAINER_FOLDER = "/var/run/kubernetes.io/dra-device-attributes"
UUID = "uuid"
PCI_BUS_ID = f"{STANDARD}pciBusID"
_HEAD = '{"kind":"DeviceMetadata","apiVersion":"'
_GENERATION = re.compile(
    rb'\{"kind":"DeviceMetadata","apiVersion":"[^"]*","metadata":\{"uid":"[^"]*","generation":(\d{1,18}),'
)
_DEVICES = 128  # devices whose rendered attributes are cached


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """One device in the file. `made` is its name if Prepare makes it: its UUID is not known before."""

    pool: str
    name: str
    attributes: tuple[tuple[str, AttributeValue], ...]
    made: str = ""


@dataclass(frozen=True, slots=True)
class RequestMetadata:
    """The devices of one request of a claim. `carrier` names the device in the CDI file that gets the mount.

    `request` is `name/subrequest` if an alternative was chosen; paths contain only the name (`base_request`).
    `pod_claim_name` is the entry of the pod's `resourceClaims` for which the claim was made from a template.
    """

    driver: str
    namespace: str
    claim: str
    uid: str
    pod_claim_name: str
    request: str
    devices: tuple[DeviceEntry, ...]
    carrier: str

    @property
    def base_request(self) -> str:
        """The request's name without the chosen alternative."""
        return self.request.partition("/")[0]

    @property
    def container_path(self) -> str:
        """The path of the file in containers."""
        return container_path(self.driver, self.claim, self.pod_claim_name, self.base_request)

    def render(self, generation: int, uuids: Mapping[str, str]) -> bytes:
        """Return the file's content. `uuids` are those of the partitions that Prepare has made, by device name."""
        devices = ",".join(self._device(entry, uuids) for entry in self.devices)
        pod_claim = f',"podClaimName":"{self.pod_claim_name}"' if self.pod_claim_name else ""
        body = (  # names were checked when the claim was read: they need no escaping
            f'"metadata":{{"uid":"{self.uid}","generation":{generation},"name":"{self.claim}",'
            f'"namespace":"{self.namespace}"}}{pod_claim},"requests":[{{"name":"{self.request}","devices":[{devices}]}}]'
        )
        return "".join(f'{_HEAD}{GROUP}/{version}",{body}}}\n' for version in VERSIONS).encode()

    def _device(self, entry: DeviceEntry, uuids: Mapping[str, str]) -> str:
        uuid = uuids.get(entry.made)
        attributes = _attributes_text(((UUID, uuid), *entry.attributes) if uuid else entry.attributes)
        return f'{{"driver":"{self.driver}","pool":"{entry.pool}","name":"{entry.name}","attributes":{attributes}}}'


def container_path(driver: str, claim: str, pod_claim_name: str, base_request: str) -> str:
    """Return the path of a request's file in containers; it names a template's claim as the pod does."""
    kind, name = ("resourceclaimtemplates", pod_claim_name) if pod_claim_name else ("resourceclaims", claim)
    return f"{CONTAINER_FOLDER}/{kind}/{name}/{base_request}/{driver}-metadata.json"


def plan_metadata(on_node: ClaimOnNode, driver: str) -> tuple[RequestMetadata, ...]:
    """Return the metadata of each request of a claim; `driver` is the name of this driver."""
    claim, made = on_node.claim, on_node.made
    by_request: dict[str, list[ClaimedDevice]] = {}
    for one in on_node.results:
        by_request.setdefault(one.result.request, []).append(one)
    return tuple(
        RequestMetadata(
            driver=driver,
            namespace=claim.namespace,
            claim=claim.name,
            uid=claim.uid,
            pod_claim_name=claim.pod_claim_name,
            request=request,
            devices=tuple(_entry(one, made) for one in results),
            carrier=results[0].in_file,
        )
        for request, results in by_request.items()
    )


def _entry(one: ClaimedDevice, made: frozenset[str]) -> DeviceEntry:
    result, device = one.result, one.device
    place = {PCI_BUS_ID: device.gpu.pci_address} if device.gpu.pci_address else {}  # a channel has no PCI address
    attributes = tuple({**place, **device.attributes}.items())
    return DeviceEntry(result.pool, result.device, attributes, result.device if result.device in made else "")


@lru_cache(_DEVICES, typed=True)  # typed, because True and 1 are different values here
def _attributes_text(attributes: tuple[tuple[str, AttributeValue], ...]) -> str:
    most = sorted(attributes[:DEVICE_ATTRIBUTES_AND_CAPACITIES])
    return json.dumps({name: attribute_wire(value) for name, value in most}, separators=(",", ":"))


def generation_of(content: bytes) -> int:
    """Return the generation of a file's content, or 0 if `render` did not make it."""
    found = _GENERATION.match(content)
    return int(found[1]) if found else 0
