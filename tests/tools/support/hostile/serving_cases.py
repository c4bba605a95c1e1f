"""Cases for commands that serve: hostile texts in every flag, hostile files in the place of every file they read."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from dra_driver.base.flags import FLAGS
from dra_driver.node.mps.supervisor import _FLAGS as MPS_FLAGS
from dra_driver.tools import main
from tests.tools.support.hostile.node_files import (
    DEVICE_PLUGIN,
    EXAMPLE,
    EXPECTED,
    GEOMETRIES,
    KUBECONFIG,
    PROFILE,
    SHARING,
    Workplace,
)
from tests.tools.support.hostile.spoiling import places, spoiled, yaml_of
from tests.tools.support.hostile.texts import TEXTS, VALUES

COMMANDS = ("agent", "mps", "webhook", "demo")
_READ: dict[str, tuple[str, ...]] = {
    "agent": ("kubeconfig", "sharing.yaml", "geometries.yaml", "profile.yaml", "token", "ca.crt", "registry", "cdi",
              "plugins", "plugins/gpu.nvidia.com", "plugins/gpu.nvidia.com/ledger.db", "pod-resources",
              "plugins/gpu.nvidia.com/unprepared", "cdi/gpu.nvidia.com-x.json", "pod-resources/kubelet.sock"),
    "mps": ("profile.yaml", "plugins", "plugins/gpu.nvidia.com", "plugins/gpu.nvidia.com/mps",
            "plugins/gpu.nvidia.com/mps/supervisor.sock", "plugins/gpu.nvidia.com/mps/supervisor.lock",
            "plugins/gpu.nvidia.com/mps/d", "plugins/gpu.nvidia.com/mps/d/x"),
    "webhook": ("kubeconfig", "tls/tls.crt", "tls/tls.key", "ca.crt", "token"),
    "demo": ("profile.yaml", "examples", "examples/one.yaml", "examples/node/profile.yaml", "examples/node/rules.yaml"),
}  # fmt: skip
_WIRES: dict[str, tuple[tuple[str, Any], ...]] = {
    "agent": (("kubeconfig", KUBECONFIG), ("sharing.yaml", SHARING), ("sharing.yaml", DEVICE_PLUGIN),
              ("geometries.yaml", GEOMETRIES), ("profile.yaml", PROFILE)),
    "mps": (("profile.yaml", PROFILE),),
    "webhook": (("kubeconfig", KUBECONFIG),),
    "demo": (("profile.yaml", PROFILE), ("examples/node/rules.yaml", SHARING), ("examples/one.yaml", EXAMPLE)),
}  # fmt: skip
_USERS: tuple[dict[str, Any], ...] = (
    {"tokenFile": "token"}, {"tokenFile": "fifo"}, {"tokenFile": "/dev/zero"}, {"tokenFile": "folder"},
    {"client-certificate": "ca.crt", "client-key": "/dev/zero"}, {"client-certificate-data": "eA=="},
    {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "yes"}},
    {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sleep", "args": ["600"]}},
    {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "echo", "args": ["{}"]}},
    {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./nothing"}},
)  # fmt: skip
Case = tuple[Callable[[], None], list[str], str]  # what to do before, the arguments, and what is wrong


def special_files(folder: Path) -> list[Path]:
    """Make files that are not regular: a FIFO without a writer, a socket without a listener, a device."""
    fifo, deaf = folder / "fifo", folder / "socket"
    os.mkfifo(fifo)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(deaf))
    return [fifo, deaf, Path("/dev/zero"), Path("/dev/full")]


def flag_cases(place: Workplace, files: list[Path]) -> Iterator[Case]:
    """Try each command with every text and file in every flag."""
    for command in COMMANDS:
        for flag in _flags(command):
            for text in (*TEXTS, *map(str, files)):
                if "\x00" not in text:
                    yield place.renew, [*place.arguments(command), f"{flag}={text}"], f"{flag}={text[:80]}"


def file_cases(place: Workplace, files: list[Path]) -> Iterator[Case]:
    """Try each command with every hostile file in the place of every file that it reads."""
    for command, names in _READ.items():
        for name in names:
            for file in files:
                yield _replaced(place, name, file), place.arguments(command), f"{name} is {file.name}"
    for user in _USERS:
        wire = {**KUBECONFIG, "users": [{"name": "u", "user": user}]}
        for command in ("agent", "webhook"):
            yield _written(place, "kubeconfig", wire), place.arguments(command), str(wire)[:300]
    for path in ("fifo", "/dev/zero", "folder", "empty.yaml", "not-utf-8.yaml", "long-line.yaml"):
        cluster = {"server": "https://127.0.0.1:9", "certificate-authority": path}
        wire = {**KUBECONFIG, "clusters": [{"name": "c", "cluster": cluster}]}
        for command in ("agent", "webhook"):
            yield _written(place, "kubeconfig", wire), place.arguments(command), str(wire)[:300]


def spoiled_cases(place: Workplace, rng: random.Random) -> Iterator[Case]:
    """Yield endless cases of each command, each with a file that is wrong in one place."""
    rows = [(command, *row) for command, found in _WIRES.items() for row in found]
    where = {id(wire): list(places(wire)) for _, _, wire in rows}
    while True:
        command, name, wire = rng.choice(rows)
        path, by, gone = rng.choice(where[id(wire)]), rng.choice(VALUES), rng.random() < 0.2
        what = f"{name}: {path} is {'gone' if gone else repr(by)[:80]}"
        yield _written(place, name, spoiled(wire, path, by, gone=gone)), place.arguments(command), what


def _flags(command: str) -> list[str]:
    if command == "agent":
        return [flag.name for flag in FLAGS]
    if command == "mps":
        return [flag.name for flag in MPS_FLAGS]
    found = main.cli.get_command(click.Context(main.cli), command)
    assert found is not None
    return [one.opts[0] for one in found.params if isinstance(one, click.Option) and not one.is_flag]


def _replaced(place: Workplace, name: str, file: Path) -> Callable[[], None]:
    def prepare() -> None:
        place.renew()
        (place.folder / name).parent.mkdir(parents=True, exist_ok=True)
        place.replace(name, file)

    return prepare


def _written(place: Workplace, name: str, wire: Any) -> Callable[[], None]:
    def prepare() -> None:
        place.renew()
        place.write(name, (EXPECTED if name == "examples/one.yaml" else "") + yaml_of(wire))

    return prepare
