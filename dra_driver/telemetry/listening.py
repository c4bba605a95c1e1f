"""An HTTP server at HOST:PORT, for whichever IP version the cluster has.

In: a parsed address. Out: a bound server. If no host is given, it listens on both IP versions, because on an IPv6-only
cluster the kubelet's probes reach a pod only by IPv6.
"""

from __future__ import annotations

import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class HttpServer(ThreadingHTTPServer):
    """A server with one thread per connection."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        host = address[0]
        self._is_for_both = not host and socket.has_dualstack_ipv6()
        if self._is_for_both or ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind for both IP versions explicitly, since the kernel's default depends on a setting of the node."""
        if self._is_for_both:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()
