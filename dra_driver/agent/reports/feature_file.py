"""FeatureFile: the labels of this node, in the file from which Node Feature Discovery takes them.

In: the labels that the vendor has for the node. Out: a file, rewritten when the labels change and before the file
expires. After the agent is removed from a node, the labels end when the file expires; while the GPUs do not answer, the
labels stay.
Source: node-feature-discovery v0.19, local source: `name=value` lines, hidden files ignored, `# +expiry-time=`, 64 KiB.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dra_driver.agent.reports.node_labels import LabelSource
from dra_driver.model.errors import NodeError, Retry

EXPIRY_SECONDS = 24 * 3600.0
REFRESH_SECONDS = EXPIRY_SECONDS / 2


class FeatureFile:
    """One file in the folder of features. The instance that has the node's role keeps it up to date."""

    def __init__(self, path: Path, labels: LabelSource, *, clock: Callable[[], float] = time.time) -> None:
        self._path, self._labels, self._clock = path, labels, clock
        self._written: tuple[Mapping[str, str], float] | None = None

    def tidy(self) -> int:
        """Write the current labels into the file; return 1 if it changed. Raises: NodeError("node.feature-file")."""
        labels, now = self._labels.now(), self._clock()
        if labels is None:
            return 0
        if self._written is not None and self._written[0] == labels and self._is_fresh(now) and self._is_there(labels):
            return 0
        was = self._written[0] if self._written else None
        try:
            self._write(labels, now)
        except OSError as exc:
            message = f"the labels of this node can't be written to {self._path}: {exc.strerror or exc}"
            hint = "mount the folder writable, or start the agent with --node-labels off"
            raise NodeError("feature-file", message, hint=hint, retry=Retry.LATER) from exc
        self._written = labels, now
        return int(was != labels)

    def _is_fresh(self, now: float) -> bool:
        return self._written is not None and 0 <= now - self._written[1] < REFRESH_SECONDS

    def _is_there(self, labels: Mapping[str, str]) -> bool:
        return not labels or self._path.exists()

    def _write(self, labels: Mapping[str, str], now: float) -> None:
        if not labels:
            self._path.unlink(missing_ok=True)
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_name(f".{self._path.name}")
        unfinished.unlink(missing_ok=True)
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, 0o644)  # whatever the umask
            file.write(feature_text(labels, now + EXPIRY_SECONDS).encode())
        unfinished.replace(self._path)


def feature_text(labels: Mapping[str, str], expiry: float) -> str:
    """Return the content of the file. `expiry` is in seconds since 1970.

    >>> print(feature_text({"nvidia.com/gpu.count": "8"}, 0), end="")
    # +expiry-time=1970-01-01T00:00:00Z
    nvidia.com/gpu.count=8
    """
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(expiry))
    return "".join([f"# +expiry-time={stamp}\n", *(f"{name}={labels[name]}\n" for name in sorted(labels))])
