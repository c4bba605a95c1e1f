"""Threads that make library calls, so that a call that never returns does not block anything else.

A worker is one daemon thread that does its jobs one after another. A job marks each library call before making it, so
that other threads can see which call is in flight and since when. A call can't be interrupted; a thread that waits for
a job stops waiting after its own time limit (`ended`), and the job's result can be taken later. A job that only reads
is preempted by one that changes something: it is abandoned between two library calls, and started again later.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from dra_driver.telemetry.thread_start import start_thread

T = TypeVar("T")


class JobPreempted(BaseException):
    """A job is abandoned for another one. No handler of ordinary errors in the job may catch this."""


class WorkerStopped(Exception):
    """The worker was stopped before this job was submitted."""


@dataclass(slots=True)
class _Job:
    """One piece of work, and the future that gets its result."""

    work: Callable[[], Any]
    future: Future[Any]
    is_preemptible: bool
    is_begun: bool = False

    def begin(self) -> bool:
        """Return whether the work is to be done; it is not if the future was cancelled before it began."""
        if not self.is_begun:
            self.is_begun = self.future.set_running_or_notify_cancel()
        return self.is_begun


def ended(job: Future[Any], timeout_s: float) -> bool:
    """Wait for the end of a job; return whether it came within `timeout_s` seconds."""
    seconds = min(max(0.0, timeout_s), threading.TIMEOUT_MAX)
    return bool(concurrent.futures.wait((job,), seconds).done)


class Worker:
    """One daemon thread, started with its first job."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()  # None is the last
        self._lock = threading.Lock()
        self._call: tuple[str, float] | None = None  # the call in flight, and since when (monotonic seconds)
        self._jobs = 0  # jobs that are waiting or running
        self._urgent = 0  # those of them that are not preemptible
        self._is_preemptible = False  # whether the running job is preempted by them
        self._is_stopped = False

    def submit(self, work: Callable[[], T], *, is_preemptible: bool = False) -> Future[T]:
        """Queue `work` behind the jobs that are already waiting. A stopped worker refuses it with WorkerStopped.

        Preemptible work must be harmless to abandon before any library call, and to begin again. A future that is
        cancelled before its work has begun is skipped.

        Raises: NodeError("node.thread"); the next job tries again to start the thread.
        """
        job = _Job(work, Future(), is_preemptible)
        with self._lock:
            if self._is_stopped:
                job.future.set_exception(WorkerStopped(self._name))
                return job.future
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                start_thread(thread)
                self._thread = thread
            self._jobs += 1
            self._urgent += not is_preemptible
            self._queue.put(job)
        return job.future

    def mark(self, call: str) -> None:
        """Record that the running job makes this library call now. Raises: JobPreempted instead if it is preempted."""
        if self._is_preemptible and self._urgent:
            raise JobPreempted
        self._call = (call, time.monotonic())

    @property
    def is_busy(self) -> bool:
        """Return whether a job is running or waiting."""
        return self._jobs > 0

    def waits_for(self) -> tuple[str, float]:
        """Return the call in flight and for how many seconds it has been so; ("", 0.0) when idle."""
        call = self._call
        return (call[0], time.monotonic() - call[1]) if call else ("", 0.0)

    def stop(self) -> None:
        """End the thread after the jobs that are already waiting."""
        with self._lock:
            if not self._is_stopped:
                self._is_stopped = True
                self._queue.put(None)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            self.mark("start")
            self._is_preemptible = job.is_preemptible
            try:
                give = self._work(job)
            except JobPreempted:
                self._is_preemptible, self._call = False, None
                self._put_back(job)
                continue
            self._is_preemptible, self._call = False, None
            with self._lock:
                self._jobs -= 1
                self._urgent -= not job.is_preemptible
            give()  # last, because the thread that waits may go on at once

    @staticmethod
    def _work(job: _Job) -> Callable[[], None]:
        """Do a job, and return the function that gives its outcome to the future. Raises: JobPreempted."""
        if not job.begin():
            return lambda: None
        try:
            result = job.work()
        except JobPreempted:
            raise
        except BaseException as error:  # noqa: BLE001 - handed to whoever takes the result
            fault = error
            return lambda: job.future.set_exception(fault)
        return lambda: job.future.set_result(result)

    def _put_back(self, job: _Job) -> None:
        with self._lock:
            if self._is_stopped:
                self._jobs -= 1
                job.future.set_exception(WorkerStopped(self._name))
                return
            self._queue.put(job)
