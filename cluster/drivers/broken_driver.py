"""The driver, broken on purpose: `python broken_driver.py FAULT agent …`. The lane must fail and say why.

In: the name of a fault. Out: this tree's agent, with one thing done wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dra_driver.__main__ import main
from dra_driver.node.kubelet import registration, server


def wrong_socket() -> None:
    """Register a service socket with the kubelet that no server listens on."""
    true = registration.Registration.get_info

    def get_info(self: Any, *arguments: Any) -> Any:
        answer = true(self, *arguments)
        answer.endpoint = "/run/nobody.sock"
        return answer

    registration.Registration.get_info = get_info


def wrong_device() -> None:
    """Report a device other than the one that was allocated."""
    true = server._encode

    def encode(*arguments: Any, **named: Any) -> Any:
        device = true(*arguments, **named)
        device.device_name = "gpu-of-somebody-else"
        return device

    server._encode = encode


def missing_cdi_file() -> None:
    """Report CDI devices that no file defines."""
    true = server.PrepareCall.__call__

    def prepare(self: Any, *arguments: Any) -> Any:
        answer = true(self, *arguments)
        for file in Path(sys.argv[sys.argv.index("--cdi-root") + 1]).iterdir():
            file.unlink()
        return answer

    server.PrepareCall.__call__ = prepare


FAULTS: dict[str, Callable[[], None]] = {
    "wrong-socket": wrong_socket,
    "wrong-device": wrong_device,
    "missing-cdi-file": missing_cdi_file,
}

if __name__ == "__main__":
    FAULTS[sys.argv.pop(1)]()
    sys.exit(main())
