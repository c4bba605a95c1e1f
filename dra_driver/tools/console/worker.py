"""The worker process: one thread that holds the board, and answers every question in a child of its own.

In: `BoardUpdate` from the console, in order, and questions, each on a socket of its own. Out: answers, and the progress
of loading. A child sees the board as it was when the question came, has a time limit, and ends with its answer. So an
expression that takes too long delays no other question, and the memory that it uses is freed with the child.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from dra_driver.base.errors import DriverError, InputError
from dra_driver.base.wire import Wire
from dra_driver.tools.console.board import Board, attention
from dra_driver.tools.console.board_updates import UpdateApplier
from dra_driver.tools.console.fleet_page import MAX_NODES, FleetFilter, fleet_page, fleet_summary
from dra_driver.tools.console.pages_of_claims import MAX_ROWS, claim_page, claims_page, device_page, explanation, key_of
from dra_driver.tools.console.playground import completions, explain_on, try_selector
from dra_driver.tools.console.questions import Question, count_of, device_id_of, text_of, texts_of, trial_of
from dra_driver.tools.console.responses import SendMessage, WorkerResponse, of_fault, progress_lines, refusal, written
from dra_driver.tools.console.what_if import MAX_TEXT as MAX_PASTED
from dra_driver.tools.console.what_if import FleetChange, what_if
from dra_driver.tools.world.access import ProgressLines
from dra_driver.tools.world.shapes import ShapeChecker

# How long each question may be worked on, and which ones take much memory.

QUICK_SECONDS = 0.9  # for questions whose answer the user waits for while typing
LONG_SECONDS = 20.0

HEAVY = frozenset({"what-if", "explanation"})  # they simulate the scheduler with copies of the board's objects

SECONDS: dict[str, float] = {
    "summary": LONG_SECONDS,
    "attention": LONG_SECONDS,
    "fleet": QUICK_SECONDS,
    "device": QUICK_SECONDS,
    "claims": LONG_SECONDS,
    "claim": QUICK_SECONDS,
    "explanation": LONG_SECONDS,
    "what-if": LONG_SECONDS,
    "selector": QUICK_SECONDS,
    "selector/explain": QUICK_SECONDS,
    "selector/completions": QUICK_SECONDS,
}


# The questions that a page may ask of the board.


def _summary(board: Board, _question: Question) -> Wire:
    return fleet_summary(board).wire()


def _fleet(board: Board, question: Question) -> Wire:
    fields = ("name", "labels", "model", "namespace", "state", "expression")
    wanted = FleetFilter(**{name: text_of(question, name) for name in fields})
    offset = count_of(question, "offset", 0, 10**8)
    return fleet_page(board, wanted, offset, count_of(question, "count", MAX_NODES, MAX_NODES)).wire()


def _device(board: Board, question: Question) -> Wire:
    return device_page(board, text_of(question, "node"), device_id_of(question)).wire()


def _selector(board: Board, question: Question) -> Wire:
    return try_selector(board.fleet(), trial_of(question, board.rules.kubernetes)).wire()


def _selector_on(board: Board, question: Question) -> Wire:
    device = board.published_device(text_of(question, "node"), device_id_of(question))
    return explain_on(device, board.source, trial_of(question, board.rules.kubernetes)).wire()


def _claims(board: Board, question: Question) -> Wire:
    offset, count = count_of(question, "offset", 0, 10**8), count_of(question, "count", MAX_ROWS, MAX_ROWS)
    name, namespace, by = (text_of(question, field) for field in ("name", "namespace", "by"))
    return claims_page(board, name, namespace, offset, count, by=by).wire()


def _claim(board: Board, question: Question) -> Wire:
    namespace, name, read = text_of(question, "namespace"), text_of(question, "name"), question.get("read")
    return claim_page(board, namespace, name, _checked(*read) if read else None).wire()


def _checked(claim: Wire, pods: Sequence[Wire]) -> tuple[Wire, list[Wire]]:
    """Return a claim that was just read, and those of its pods that have the shape of a pod.

    Raises: InputError for a claim that does not have the shape of a claim.
    """
    checker = ShapeChecker()
    checker.check("ResourceClaim", claim, "cluster")
    if key_of(claim) is None:
        raise InputError("object", "cluster: a ResourceClaim has no name")
    known = []
    for pod in pods:
        with contextlib.suppress(InputError):
            checker.check("Pod", pod, "cluster")
            known.append(pod)
    return claim, [pod for pod in known if key_of(pod) is not None]


def _explanation(board: Board, question: Question) -> Wire:
    return explanation(board, *(text_of(question, name) for name in ("kind", "namespace", "name"))).wire()


def _attention(board: Board, _question: Question) -> Wire:
    return attention(board).wire()


def _what_if(board: Board, question: Question) -> Wire:
    pairs = tuple(one.partition("=") for one in texts_of(question, "recut"))
    change = FleetChange(
        text_of(question, "objects", MAX_PASTED),
        texts_of(question, "picked"),
        texts_of(question, "added"),
        texts_of(question, "drained"),
        texts_of(question, "lost"),
        tuple((node, profile) for node, _, profile in pairs),
    )
    return what_if(board, change).wire()


def _completions(board: Board, question: Question) -> Wire:
    trial = trial_of(question, board.rules.kubernetes)
    return {"candidates": completions(board.fleet(), trial, text_of(question, "before"))}


ANSWERS: dict[str, Callable[[Board, Question], Wire]] = {
    "summary": _summary,
    "fleet": _fleet,
    "device": _device,
    "claims": _claims,
    "claim": _claim,
    "explanation": _explanation,
    "attention": _attention,
    "what-if": _what_if,
    "selector": _selector,
    "selector/explain": _selector_on,
    "selector/completions": _completions,
}


_MAX_QUESTION = 4 << 20  # bytes
Load = Callable[[ProgressLines], Board]


def run_worker(load: Load, feed: Connection, questions: socket.socket) -> NoReturn:
    """Load the board, answer questions until the console is gone, and end the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to both processes; the console ends first
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that the kernel removes ended children without a wait
    code = 0
    try:
        _serve(_loaded(load, feed.send), feed, questions)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the console is gone
    except _FaultError:
        code = 1
    except BaseException:  # noqa: BLE001  the process was forked: an exception would go on in the console's code
        sys.excepthook(*sys.exc_info())
        code = 70
    os._exit(code)


class _FaultError(Exception):
    """The board can't be loaded; the reason was sent to the console."""


def _loaded(load: Load, send: SendMessage) -> Board:
    try:
        board = load(progress_lines(send))
    except DriverError as fault:
        send(("fault", fault.code, str(fault.message), fault.hint, int(fault.exit_code)))
        raise _FaultError from fault
    _precompute(board)
    gc.collect()
    gc.freeze()  # so that the objects of the board stay in pages that children share
    send(("ready", board.version))
    return board


def _serve(board: Board, feed: Connection, questions: socket.socket) -> None:
    updates = UpdateApplier()
    while True:
        ready, _, _ = select.select([feed.fileno(), questions.fileno()], [], [])
        before = board.version
        while feed.poll():  # updates come first, so that a viewer who asks after a notice of a change sees the change
            updates.apply(board, feed.recv())
        if board.version != before:
            feed.send(("version", board.version))
        if questions.fileno() in ready:
            message, descriptors, _, _ = socket.recv_fds(questions, 64, 1)
            if not message:
                return
            _precompute(board)
            for descriptor in descriptors:
                _answer_in_child(board, descriptor, int(message), feed, questions)


def _precompute(board: Board) -> None:
    """Compute here what every child would otherwise compute again. Any fault in it is reported by the child."""
    with contextlib.suppress(Exception):
        board.slices_by_node()
        board.held()
        board.fleet()


def _answer_in_child(board: Board, descriptor: int, memory: int, *others: Any) -> None:
    with socket.socket(fileno=descriptor) as line:
        if os.fork():
            return
        try:
            for one in others:
                one.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _answer(board, line, memory)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the console no longer waits for it
        finally:
            os._exit(0)


def _answer(board: Board, line: socket.socket, memory: int) -> None:
    """Answer the question on a line, with so many bytes of memory beyond what the worker holds."""
    soft = _held_memory() + memory
    resource.setrlimit(resource.RLIMIT_AS, (soft, soft))
    signal.setitimer(signal.ITIMER_REAL, 5.0)  # ends the process if the question has not arrived in time
    content = b"".join(iter(lambda: line.recv(1 << 16), b""))
    if len(content) > _MAX_QUESTION:
        line.sendall(refusal(413, "input.too-large", "the question is too long").packed())
        return
    question = json.loads(content)
    signal.setitimer(signal.ITIMER_REAL, SECONDS[question["ask"]])
    with _ended_with(line):
        content = _answered(board, question).packed()
    line.sendall(content)


@contextlib.contextmanager
def _ended_with(line: socket.socket) -> Iterator[None]:
    """Have the kernel end this process, by SIGIO, when the console closes the line: it does not wait for the answer.

    Raises: BrokenPipeError if the line is closed already.
    """
    flags = fcntl.fcntl(line, fcntl.F_GETFL)
    fcntl.fcntl(line, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(line, fcntl.F_SETFL, flags | os.O_ASYNC)
    closed = select.poll()
    closed.register(line, 0)  # an event of its own is only that the other end is closed
    if closed.poll(0):
        raise BrokenPipeError
    yield
    fcntl.fcntl(line, fcntl.F_SETFL, flags)  # room for the answer is such a signal, too


def _answered(board: Board, question: Question) -> WorkerResponse:
    """Answer one question. Raises nothing."""
    try:
        return WorkerResponse(200, written(ANSWERS[str(question["ask"])](board, question)))
    except DriverError as fault:
        return of_fault(fault)
    except (MemoryError, RecursionError):
        return refusal(422, "input.too-large", "this needs more memory than one question may use")
    except Exception:  # noqa: BLE001  a bug must cost no more than this answer; the process ends with it
        traceback.print_exc()
        return refusal(500, "bug", "this is a bug in dra-driver: the terminal of the console shows it")


def _held_memory() -> int:
    """Return the size of this process's address space in bytes; 4 GiB if the kernel does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123  opened for every question
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 4 << 30
