"""The kubelet's PodResources v1 answer: which devices each container holds, according to the kubelet.

In: the kubelet's socket. Out: for each claim of a pod, the devices that the driver reported.
Source: kubelet podresources/v1 (messages rebuilt here from the field numbers that the scenarios need).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_STRING, _MESSAGE = 9, 11
_ONE, _MANY = 1, 3
# message → fields as (name, number, label, message that it contains or "")
_MESSAGES = {
    "ListPodResourcesRequest": (),
    "ListPodResourcesResponse": (("pod_resources", 1, _MANY, "PodResources"),),
    "PodResources": (
        ("name", 1, _ONE, ""),
        ("namespace", 2, _ONE, ""),
        ("containers", 3, _MANY, "ContainerResources"),
    ),
    "ContainerResources": (("name", 1, _ONE, ""), ("dynamic_resources", 5, _MANY, "DynamicResource")),
    "DynamicResource": (
        ("claim_name", 2, _ONE, ""),
        ("claim_namespace", 3, _ONE, ""),
        ("claim_resources", 4, _MANY, "ClaimResource"),
    ),
    "ClaimResource": (
        ("cdi_devices", 1, _MANY, "CDIDevice"),
        ("driver_name", 2, _ONE, ""),
        ("pool_name", 3, _ONE, ""),
        ("device_name", 4, _ONE, ""),
        ("share_id", 5, _ONE, ""),
    ),
    "CDIDevice": (("name", 1, _ONE, ""),),
}


@dataclass(frozen=True, slots=True, order=True)
class Held:
    """One device of one claim in one container, as the kubelet reports it."""

    container: str
    claim: str
    driver: str
    pool: str
    device: str
    cdi: tuple[str, ...]


def held(kubelet_root: Path, namespace: str, pod: str) -> list[Held]:
    """Return the devices that the containers of a pod hold, according to the kubelet."""
    with grpc.insecure_channel(f"unix:{kubelet_root / 'pod-resources' / 'kubelet.sock'}") as channel:
        call = channel.unary_unary(
            "/v1.PodResourcesLister/List",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=_message("ListPodResourcesResponse").FromString,
        )
        answer = call(_message("ListPodResourcesRequest")(), timeout=10, wait_for_ready=True)
    all_held: list[Held] = []
    for found in answer.pod_resources:
        if (found.namespace, found.name) == (namespace, pod):
            for container in found.containers:
                for used in container.dynamic_resources:
                    all_held += _devices(container.name, used)
    return all_held


def _devices(container: str, used: Any) -> list[Held]:
    devices: list[Held] = []
    before: set[str] = set()
    for device in used.claim_resources:
        # Kubelets up to 1.36 repeat, with each device, the ids of the devices before it.
        own = tuple(item.name for item in device.cdi_devices if item.name not in before)
        before.update(own)
        place = (device.driver_name, device.pool_name, device.device_name)
        devices.append(Held(container, used.claim_name, *place, own))
    return devices


@cache
def _message(name: str) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package="v1", syntax="proto3")
    for message, entries in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for field, number, label, holds in entries:
            described.field.add(
                name=field,
                number=number,
                label=label,
                type=_MESSAGE if holds else _STRING,
                type_name=f".v1.{holds}" if holds else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{name}"))
