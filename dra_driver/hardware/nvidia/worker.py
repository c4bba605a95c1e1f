"""Threads that make library calls, so that a call that never returns does not block anything else.

A worker is one daemon thread that does its jobs one after another. A job marks each library call before making it, so
that other threads can see which call is in flight and since when. A call can't be interrupted; a thread that waits for
a job stops waiting after its own time limit, and the job's result can be taken later. A job that only reads is
preempted by one that changes something: it is abandoned between two library calls, and started again later.

A worker's thread runs on the core of the thread that waits for it: waking a thread on a core that sleeps takes longer
than most work on one GPU. Only speed depends on this. Source: sched_setaffinity(2); docs/decisions/0014.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from dra_driver.model.errors import NodeError
from dra_driver.model.machine import cores_of_process, present_core
from dra_driver.telemetry.thread_start import start_thread

T = TypeVar("T")


class LibraryCall(Generic[T]):
    """One piece of work and, once it is done, its result."""

    is_done = False  # whether the work has ended, successfully or not
    _is_dropped = False
    _error: BaseException | None = None

    def __init__(self, work: Callable[[], T], *, is_preemptible: bool = False) -> None:
        self._work = work
        self.is_preemptible = is_preemptible
        self._working = threading.Lock()  # held until then; an Event would make a condition and a second lock
        self._working.acquire()
        self._result: list[T] = []

    def run(self) -> None:
        """Do the work, unless its result is no longer needed; only the worker's thread calls this, and `end` after it.

        Raises: JobPreempted, and nothing else: the work has then not been done.
        """
        if self._is_dropped:
            return
        try:
            self._result.append(self._work())
        except JobPreempted:
            raise
        except BaseException as error:  # noqa: BLE001 - handed to whoever takes the result
            self._error = error

    def end(self) -> None:
        """Wake the threads that wait for the end of the work."""
        self.is_done = True
        self._working.release()

    def refuse(self, error: Exception) -> None:
        """End without having begun; taking the result raises the error."""
        self._error = error
        self.end()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the work; return whether it came in time. Any number of threads may wait."""
        if not self.is_done and self._working.acquire(timeout=min(max(0.0, timeout_s), threading.TIMEOUT_MAX)):
            self._working.release()
        return self.is_done

    def drop(self) -> None:
        """Declare that the result is no longer needed; work that has not begun is skipped."""
        self._is_dropped = True

    def take(self) -> T:
        """Return the result of finished work, or raise what the work raised."""
        if self._error is not None:
            raise self._error
        return self._result[0]


class JobPreempted(BaseException):
    """A job is abandoned for another one. No handler of ordinary errors in the job may catch this."""


class WorkerStopped(Exception):
    """The worker was stopped before this job was submitted."""


class JobQueue:
    """The jobs that wait for one thread.

    The thread is woken by an eventfd. While Python writes to one, it releases the interpreter's lock, so that the woken
    thread, on the same core, begins at once. One that is woken by a lock or a `SimpleQueue` would first have to wait
    for the interpreter's lock, which is two more changes of threads for each job.
    Source: eventfd(2); docs/decisions/0014.
    """

    def __init__(self) -> None:
        self._jobs: deque[LibraryCall[object] | None] = deque()
        self._count = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_CLOEXEC)

    def add(self, job: LibraryCall[object] | None) -> None:
        """Add a job without waking the thread; None is the last. The caller has to call `wake` once for each job."""
        self._jobs.append(job)

    def wake(self) -> None:
        """Let the thread take one more job. The caller should hold no lock that the thread needs."""
        os.eventfd_write(self._count, 1)

    def take(self) -> LibraryCall[object] | None:
        """Wait for the next job, and return it. After None, the queue can't be used any more."""
        os.eventfd_read(self._count)
        job = self._jobs.popleft()
        if job is None:
            self.close()
        return job

    def close(self) -> None:
        """Free the descriptor of a queue that no thread takes jobs from."""
        os.close(self._count)


class Worker:
    """One daemon thread, started with its first job."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._call: tuple[str, float] | None = None  # the call in flight, and since when (monotonic seconds)
        self._jobs = 0  # jobs that are waiting or running
        self._urgent = 0  # those of them that are not preemptible
        self._is_preemptible = False  # whether the running job is preempted by them
        self._is_stopped = False
        self._place = CorePinning()

    def submit(self, work: Callable[[], T], *, is_preemptible: bool = False) -> LibraryCall[T]:
        """Queue `work` behind the jobs that are already waiting. A stopped worker refuses it with WorkerStopped.

        Preemptible work must be harmless to abandon before any library call, and to begin again.

        Raises: NodeError("node.thread").
        """
        job = LibraryCall(work, is_preemptible=is_preemptible)
        with self._lock:
            if self._is_stopped:
                job.refuse(WorkerStopped(self._name))
                return job
            if self._thread is None:
                self._thread = self._begin()
            (self._place.unpin if is_preemptible else self._place.pin)(self._thread)
            self._jobs += 1
            self._urgent += not is_preemptible
            self._queue.add(job)  # type: ignore[arg-type]
        self._queue.wake()
        return job

    def _begin(self) -> threading.Thread:
        """Start the thread, and return it. Raises: NodeError("node.thread"); the next job tries again."""
        self._queue = JobQueue()
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            start_thread(thread)
        except NodeError:
            self._queue.close()
            raise
        return thread

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
            is_over = self._is_stopped or self._thread is None
            self._is_stopped = True
            if is_over:
                return
            self._queue.add(None)
        self._queue.wake()

    def _run(self) -> None:
        while (job := self._queue.take()) is not None:
            self.mark("start")
            self._is_preemptible = job.is_preemptible
            is_done = True
            try:
                job.run()
            except JobPreempted:
                is_done = False
            self._is_preemptible, self._call = False, None
            if is_done:
                with self._lock:
                    self._jobs -= 1
                    self._urgent -= not job.is_preemptible
                job.end()  # last, because the thread that waits may go on at once
            else:
                self._put_back(job)

    def _put_back(self, job: LibraryCall[object]) -> None:
        with self._lock:
            if self._is_stopped:
                self._jobs -= 1
                job.refuse(WorkerStopped(self._name))
                return
            self._queue.add(job)
        self._queue.wake()


class CorePinning:
    """Where one thread runs: on the core of the one that waits for it, or wherever this process may run."""

    def __init__(self) -> None:
        self._core = -1  # -1 while the thread is not bound
        self._is_refused = False

    def pin(self, thread: threading.Thread) -> None:
        """Let a thread run on the core on which the calling one runs now."""
        native_id = thread.native_id
        if self._is_refused or native_id is None:
            return
        try:
            core = present_core()
            if core != self._core:
                os.sched_setaffinity(native_id, (core,))
                self._core = core
        except (OSError, AttributeError):
            self._is_refused = True

    def unpin(self, thread: threading.Thread) -> None:
        """Let a thread run wherever this process may run. The calling thread may itself be bound to a core."""
        if self._core < 0 or thread.native_id is None:
            return
        try:
            os.sched_setaffinity(thread.native_id, cores_of_process())
            self._core = -1
        except OSError:
            self._is_refused = True
