"""A watch that runs in a thread."""

import queue
import threading

from dra_driver.kube.watch import Watch
from tests.support.waiting import PATIENCE_S


class Follower:
    """Runs a watch in a thread and collects its events."""

    def __init__(self, watch: Watch) -> None:
        self.watch, self.events = watch, queue.Queue()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        for event in self.watch.events():
            self.events.put(event)

    def next(self, kind, timeout: float = PATIENCE_S):
        event = self.events.get(timeout=timeout)
        assert isinstance(event, kind), event
        return event

    def stop(self) -> None:
        """End the watch and check that its thread ends at once."""
        self.watch.stop()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
