"""Faults of a file that the agent keeps: real locks, kills, limits and damage."""

import os
import resource
import signal
import sqlite3
import subprocess
import sys
from contextlib import contextmanager

_HOLD = """
import sqlite3, sys
held = sqlite3.connect(sys.argv[1], isolation_level=None)
held.execute("PRAGMA locking_mode=EXCLUSIVE")  # so that it can't be read either
held.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked(path):
    """Let another process hold the file's lock."""
    command = [sys.executable, "-c", _HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        yield
        holder.stdin.close()


def leave_hot_journal(path, table, rows=200):
    """Kill a process in a transaction that has changed the file already, so that the change has to be undone."""
    pid = os.fork()
    if not pid:
        try:
            connection = sqlite3.connect(path, isolation_level=None)
            connection.execute("PRAGMA cache_size=1")  # so that changes reach the file before the commit
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(f"DELETE FROM {table}")
            connection.execute("CREATE TABLE filler (body TEXT)")
            connection.executemany("INSERT INTO filler VALUES (?)", [("x" * 4000,)] * rows)
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    assert path.with_name(f"{path.name}-journal").stat().st_size


@contextmanager
def without_descriptors():
    """Let this process open no further file."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def damage_all(folder, part, damage=b"garbage" * 999):
    """Damage the state, and remove a part's older file, from which it could be read again."""
    (folder / "state.db").write_bytes(damage)
    (folder / part).unlink(missing_ok=True)


def state_of(folder):
    """Return what is in a folder, byte by byte, without what SQLite and locks need for a moment."""
    passing = (".open", ".lock")
    return {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file() and not one.name.endswith(passing)}
