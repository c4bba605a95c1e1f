"""Runs of many cases with objects and files and of a share of those with arguments, and the bugs that they found."""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.base.errors import ExitCode
from tests.tools.support.hostile.cases import argument_cases, object_cases
from tests.tools.support.hostile.command import ran
from tests.tools.support.hostile.files import hostile_files
from tests.tools.support.hostile.node_files import Workplace
from tests.tools.support.hostile.serving import import_all, served
from tests.tools.support.hostile.serving_cases import file_cases, flag_cases, special_files, spoiled_cases

SLOW_SECONDS = 3.0


@dataclass(slots=True)
class Found:
    """The result: how often each status came, and the cases that ended in a bug, with their output."""

    statuses: Counter[int] = field(default_factory=Counter)
    bugs: list[tuple[list[str], str]] = field(default_factory=list)

    def add(self, case: list[str], status: int, said: str, seconds: float, *, is_bug: bool, slow_s: float) -> None:
        """Count a case, and show it if it was slow or a bug."""
        self.statuses[status] += 1
        if seconds > slow_s:
            print(f"slow: {seconds:.1f} s: {[one[:80] for one in case]}", file=sys.stderr, flush=True)
        if is_bug:
            shown = said[said.find("Traceback") :] if "Traceback" in said else said
            print(
                f"bug: {[one[:120] for one in case]}: {status}\n  {shown.strip()[-1500:]}", file=sys.stderr, flush=True
            )
            self.bugs.append((case, said))


def fuzz(found: Found, cases: int, seed: int, *, share: float = 1.0, seconds: float = 1e9) -> None:
    """Run commands that end by themselves, in this process."""
    rng, over = random.Random(seed), time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as name:
        files = hostile_files(Path(name))
        given = object_cases(Path(name), rng)
        todo = [case for case in argument_cases(files) if rng.random() < share] if share else []
        rng.shuffle(todo)
        for number in range(len(todo) + cases):
            if time.monotonic() > over:
                break
            case = todo[number] if number < len(todo) else next(given)
            began = time.monotonic()
            status, said = ran(case)
            is_bug = status == ExitCode.BUG
            if is_bug and number >= len(todo):
                kept = {path.name: path.read_text()[:400_000] for path in Path(name).glob("one.*")}
                said += json.dumps(kept)[-3000:]
            found.add(case, status, said, time.monotonic() - began, is_bug=is_bug, slow_s=SLOW_SECONDS)


def fuzz_serving(found: Found, cases: int, seed: int, *, share: float = 1.0, seconds: float = 1e9) -> None:
    """Run agent, supervisor, webhook and demo, each case as a process of its own."""
    if shutil.which("openssl") is None:
        raise RuntimeError("openssl is not installed: it makes the certificates")
    import_all()
    rng, over = random.Random(seed), time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as name:
        place = Workplace(Path(name))
        files = [*hostile_files(Path(name)), *special_files(Path(name))]
        given = spoiled_cases(place, rng)
        fixed = [*flag_cases(place, files), *file_cases(place, files)] if share else []
        todo = [case for case in fixed if rng.random() < share]
        rng.shuffle(todo)
        for number in range(len(todo) + cases):
            if time.monotonic() > over:
                break
            prepare, case, what = todo[number] if number < len(todo) else next(given)
            prepare()
            done = served(case, place.folder)
            found.add([case[0], what], done.status, done.said, done.seconds, is_bug=done.is_bug, slow_s=10.0)
            if number % 100 == 99:
                print(f"{number + 1:,} cases, {dict(found.statuses)}", file=sys.stderr, flush=True)
