"""TLS of the metrics port, which loads 4 MiB that an agent without it does not need."""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from dra_driver.base.machine import Stamp, stamp_of
from dra_driver.base.telemetry.logs import fields

log = logging.getLogger(__name__)

CHECK_SECONDS = 10.0  # how often the files are checked


class MountedCertificate:
    """TLS with the certificate in a folder that is renewed, such as a mounted Secret: `tls.crt` and `tls.key`.

    A new certificate is used for new connections within seconds; one that can't be used is logged, and the last good
    one stays in use. While there is none, no connection is accepted: nothing is ever sent unencrypted instead. It is
    not thread-safe.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._files, self._clock = (folder / "tls.crt", folder / "tls.key"), clock
        self._context: ssl.SSLContext | None = None
        self._stamps: tuple[Stamp | None, ...] | None = None
        self._checked_at = float("-inf")

    def secure(self, sock: socket.socket) -> socket.socket:
        """Return a socket that encrypts; the handshake is part of its first read.

        Raises: OSError if there is no certificate, or the client is gone.
        """
        if self._clock() - self._checked_at >= CHECK_SECONDS:
            self._checked_at = self._clock()
            self._check()
        if self._context is None:
            raise ConnectionAbortedError("no certificate")
        return self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    def _check(self) -> None:
        stamps = tuple(stamp_of(file) for file in self._files)
        if stamps == self._stamps and self._context is not None:
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION  # otherwise a send might have to wait for data from the client
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(*self._files, password=_no_password)
        except (OSError, ValueError) as error:
            log.warning(
                "certificate of the metrics port can't be used",
                extra=fields(file=str(self._files[0]), err=str(error)),
            )
            return
        self._context, self._stamps = context, stamps
        log.info("certificate of the metrics port in use", extra=fields(file=str(self._files[0])))


def _no_password() -> str:
    """Return an empty password, so that an encrypted key is an error instead of a prompt on the terminal."""
    return ""
