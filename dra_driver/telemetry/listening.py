"""Listening: an HTTP server at HOST:PORT, of whichever IP version the cluster has.

In: an address as it was written, already taken apart. Out: a bound server. Without a host it listens on both IP
versions: on a cluster of IPv6 alone the kubelet's probes come to a pod by no other. It decides nothing about requests.
"""

from __future__ import annotations

import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class HttpServer(ThreadingHTTPServer):
    """A server with a thread for each connection."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        host = address[0]
        self._is_for_both = not host and socket.has_dualstack_ipv6()
        if self._is_for_both or ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind; the kernel's default for IPv6 sockets is a setting of the node's, so it is not relied on."""
        if self._is_for_both:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()
