"""A watch that runs in a thread."""

import queue
import threading
import time

from dra_driver.kube.watch import Watch


class Follower:
    """Runs a watch in a thread and collects its events."""

    def __init__(self, watch: Watch) -> None:
        self.watch, self.events = watch, queue.Queue()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        for event in self.watch.events():
            self.events.put(event)

    def next(self, kind, timeout: float = 10.0):
        event = self.events.get(timeout=timeout)
        assert isinstance(event, kind), event
        return event

    def stop(self) -> float:
        started = time.monotonic()
        self.watch.stop()
        self.thread.join(10)
        assert not self.thread.is_alive()
        return time.monotonic() - started
