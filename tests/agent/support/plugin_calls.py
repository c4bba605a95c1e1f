"""Calls of the agent by the kubelet."""

import grpc

from dra_driver.embedded.kubelet.plugin_calls import ClaimRef, Plugin
from dra_driver.plugin._proto.k8s.dra.v1 import api_pb2 as v1
from dra_driver.plugin.kubelet.methods import VERSIONS


def wire(ref: ClaimRef) -> v1.Claim:
    return v1.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid)


def call(plugin: Plugin, method: str, request, seconds: float):
    with grpc.insecure_channel(f"unix:{plugin.endpoint}") as channel:
        return begin(channel, method, request, seconds).result()


def begin(channel: grpc.Channel, method: str, request, seconds: float):
    """Send a call and let it run."""
    rpc = channel.unary_unary(
        f"/{VERSIONS['v1.DRAPlugin']}/{method}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=getattr(v1, f"{method}Response").FromString,
    )
    return rpc.future(request, timeout=seconds)
