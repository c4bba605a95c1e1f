"""The start of a thread, which fails while the process, its pod or its machine may have no more of them."""

from __future__ import annotations

import threading

from dra_driver.model.errors import NodeError, Retry


def start_thread(thread: threading.Thread) -> None:
    """Start a thread. The caller records it only after this, so that the next attempt is made with a new one.

    Raises: NodeError("node.thread").
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise no_thread(thread.name, error) from error


def no_thread(name: str, error: RuntimeError) -> NodeError:
    """Return the error for a thread that Python could not start."""
    return NodeError(
        "thread",
        f"the thread {name} can't be started: {error}",
        hint="raise the limit of processes of the pod (podPidsLimit) or of the machine",
        retry=Retry.NOW,
    )
