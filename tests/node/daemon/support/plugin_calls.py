"""Calls of the agent by the kubelet."""

from collections.abc import Callable
from typing import TypeVar

import grpc

from dra_driver.node._proto import dra_v1_pb2 as v1
from dra_driver.node.kubelet.methods import VERSIONS
from dra_driver.simulator.plugin_watcher import ClaimRef, Plugin

T = TypeVar("T")


def wire(ref: ClaimRef) -> v1.Claim:
    return v1.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid)


def call(plugin: Plugin, method: str, request, seconds: float):
    with grpc.insecure_channel(f"unix:{plugin.endpoint}") as channel:
        return begin(channel, method, request, seconds).result()


def answered(ask: Callable[[], T]) -> T:
    """Return what a call returns. Call again, as the kubelet does, if a busy machine's answer came after the deadline.

    Raises: grpc.RpcError if five calls in a row were answered too late, or for another reason.
    """
    for _ in range(4):
        try:
            return ask()
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
    return ask()


def begin(channel: grpc.Channel, method: str, request, seconds: float):
    """Send a call and let it run."""
    rpc = channel.unary_unary(
        f"/{VERSIONS['v1.DRAPlugin']}/{method}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=getattr(v1, f"{method}Response").FromString,
    )
    return rpc.future(request, timeout=seconds)
