"""Readers of edits for tests: their mounts and hooks, and the document rendered from them."""

from __future__ import annotations

import json
import time

from dra_driver.hardware.nvidia.edits import edits as edits_module
from dra_driver.hardware.nvidia.edits.edits import common_edits
from dra_driver.node.cdi import render
from tests.node.cdi.support import cdi_schema

KIND = "k8s.gpu.nvidia.com/claim"
DEBIAN = "/usr/lib/x86_64-linux-gnu"


def places(edits):
    """Return container path -> host path of all mounts."""
    return {mount.container_path: mount.host_path for mount in edits.mounts}


def commands(edits, argv=("nvidia-cdi-hook",)):
    """Return command -> arguments of all hooks."""
    assert all(hook.args[: len(argv)] == argv and hook.name == "createContainer" for hook in edits.hooks)
    return {hook.args[len(argv)]: hook.args[len(argv) + 1 :] for hook in edits.hooks}


def checked(common, **devices):
    """Render, check against the schema, and return the document."""
    document = json.loads(render(KIND, devices or {"7f-gpu": common}, common))
    cdi_schema.check(document)
    return document


def settled_edits(roots, version):
    """Return the common edits once the driver root has settled."""
    deadline = time.monotonic() + 60
    while not (edits_module._known_roots.get(roots) and edits_module._known_roots[roots].is_settled):
        assert time.monotonic() < deadline
        found = common_edits(roots, version)
    return found
