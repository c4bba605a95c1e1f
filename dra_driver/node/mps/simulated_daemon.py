"""A simulated MPS control daemon: it understands the real program's commands, starts servers and sends clients to them.

It makes the same files as the real daemon in its folders, starts a server process when the first client comes, and
keeps track of limits and clients. Only the standard library is imported.
Source: NVIDIA Multi-Process Service, architecture and nvidia-cuda-mps-control(1).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress

from dra_driver.node.mps.simulated_folders import PID_FILE, Folders

# A simulated MPS server as its control daemon sees it: a process, and a socket on which it takes commands.


class ServerProcess:
    """One server process as the control daemon sees it."""

    def __init__(self, pid: int, uid: int, line: socket.socket) -> None:
        self.pid, self.uid, self._line = pid, uid, line
        self.percentage, self.memory = 100.0, 0

    def ask(self, text: str) -> str:
        """Send the server a line and return its answer; "" if the server is gone."""
        try:
            self._line.sendall(f"{text}\n".encode())
            return read_line(self._line)
        except OSError:
            return ""

    def clients(self) -> list[int]:
        """Return the clients' pids."""
        return [int(word) for word in self.ask("LIST").split()]

    def has_ended(self) -> bool:
        """Return whether the process is gone."""
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        except ChildProcessError:
            return True


def read_line(connection: socket.socket) -> str:
    """Read one line, or whatever came before the other side closed the connection."""
    data = b""
    while not data.endswith(b"\n") and (part := connection.recv(1)):
        data += part
    return data.decode(errors="replace").strip()


SERVER = f"{os.path.dirname(os.path.abspath(__file__))}/simulated_server.py"  # noqa: PTH100, PTH120
_ANSWER_S = 2.0
_MIB_OF = {"M": 1, "G": 1024}


class Refused(Exception):
    """The daemon refuses a command."""


class Daemon:
    """The control daemon. A subclass may refuse, delay or break commands."""

    def __init__(self, folders: Folders, *, is_multi_user: bool) -> None:
        self.folders, self.is_multi_user = folders, is_multi_user
        self.percentage, self.memory = 100.0, dict[str, int]()
        self.servers: list[ServerProcess] = []
        self.pending: list[tuple[socket.socket, int]] = []
        self.quits_at: float | None = None

    @classmethod
    def run(cls, folders: Folders, words: list[str]) -> int:
        """Serve in a device's folders, in the background with `-d`; return the program's exit status."""
        if folders.running():
            os.write(1, b"An instance of this daemon is already running\n")
            return 1
        for folder in (folders.pipe, folders.log):
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        made = cls(folders, is_multi_user="-multiuser-server" in words)
        made.before_start()
        if "-d" in words:
            _detach()
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        made.serve()
        return 0

    def before_start(self) -> None:
        """Do nothing; a subclass may act here before the daemon begins, in the program's first process."""

    def before(self, command: str) -> None:
        """Do nothing; a subclass may act here before a command is executed. Raises: Refused."""

    def serve(self) -> None:
        """Make the files, and serve until the `quit` command."""
        sockets = [self._listen("control", 0o666), self._listen("control_privileged", 0o755)]
        self._make_files()
        self.folders.append_log(
            "control", "Control", f"Starting control daemon using socket {self.folders.path('control')}"
        )
        pipe = self.folders.pipe
        self.folders.append_log(
            "control", "Control", f"To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={pipe}"
        )
        while not self._is_over():
            waits = 0.02 if self.pending or self.quits_at is not None else 0.5 if self.servers else None
            for ready in select.select(sockets, [], [], waits)[0]:
                connection, _ = ready.accept()
                self._handle(connection)
            self._check_servers()
        with suppress(OSError):
            os.unlink(self.folders.path(PID_FILE))  # noqa: PTH108 - like the real program, whose sockets stay

    def do(self, line: str) -> str:
        """Execute a command and return its output. Raises: Refused."""
        self.folders.append_log("control", "Control", f"Cmd:{line}")
        name, *words = line.split() or [""]
        act = getattr(self, f"_do_{name}", None)
        if act is None:
            raise Refused(f"Unrecognized command: {name}")
        self.before(line)
        try:
            return str(act(*words))
        except (TypeError, ValueError, KeyError) as exc:
            raise Refused(f"Invalid arguments: {line}") from exc

    # Commands, by the real program's names

    def _do_get_server_list(self) -> str:
        return "\n".join(str(server.pid) for server in self.servers)

    def _do_get_server_status(self, pid: str) -> str:
        return "ACTIVE" if self._server(pid).ask("STATUS") else "FAULT"

    def _do_start_server(self, option: str, uid: str) -> str:
        if option != "-uid":
            raise ValueError(option)
        self._start_server(0 if self.is_multi_user else int(uid))
        return ""

    def _do_shutdown_server(self, pid: str, force: str = "") -> str:
        self._server(pid).ask("STOP" if force == "-f" else "DRAIN")
        return ""

    def _do_get_client_list(self, pid: str) -> str:
        return "\n".join(str(client) for client in self._server(pid).clients())

    def _do_get_device_client_list(self, pid: str = "") -> str:
        servers = [self._server(pid)] if pid else self.servers
        return "\n".join(f"0 {client}" for server in servers for client in server.clients())

    def _do_ps(self) -> str:
        rows = ["PID ID SERVER DEVICE NAMESPACE COMMAND"]
        rows += [f"{pid} 0 {server.pid} 0 0 client" for server in self.servers for pid in server.clients()]
        return "\n".join(rows)

    def _do_terminate_client(self, server: str, client: str) -> str:
        self._server(server).ask(f"DROP {int(client)}")
        return ""

    def _do_get_default_active_thread_percentage(self) -> str:
        return f"{self.percentage:.1f}"

    def _do_set_default_active_thread_percentage(self, value: str) -> str:
        self.percentage = _percentage(value)
        return f"{self.percentage:.1f}"

    def _do_get_active_thread_percentage(self, pid: str) -> str:
        return f"{self._server(pid).percentage:.1f}"

    def _do_set_active_thread_percentage(self, pid: str, value: str) -> str:
        server = self._server(pid)
        server.percentage = _percentage(value)
        self._pass_limits(server)
        return f"{server.percentage:.1f}"

    def _do_get_default_device_pinned_mem_limit(self, device: str) -> str:
        return _formatted(self.memory.get(device, 0))

    def _do_set_default_device_pinned_mem_limit(self, device: str, value: str) -> str:
        self.memory[str(int(device))] = _mib(value)
        return ""

    def _do_get_device_pinned_mem_limit(self, pid: str, device: str) -> str:
        return _formatted(self._server(pid).memory if device == "0" else 0)

    def _do_set_device_pinned_mem_limit(self, pid: str, device: str, value: str) -> str:
        server = self._server(pid)
        if int(device) == 0:
            server.memory = _mib(value)
        self._pass_limits(server)
        return ""

    def _do_quit(self, option: str = "", seconds: str = "") -> str:
        for server in self.servers:
            server.ask("DRAIN")
        self.quits_at = time.monotonic() + (float(seconds) if option == "-t" else 1e9)
        return ""

    # Clients and servers

    def _handle(self, connection: socket.socket) -> None:
        connection.settimeout(_ANSWER_S)
        try:
            line = read_line(connection)
            if line.startswith("CLIENT"):
                _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                self._route_client(connection, 0 if self.is_multi_user else uid)
                return
            try:
                answer = f"0 {self.do(line)}"
            except Refused as exc:
                answer = f"1 {exc}"
            connection.sendall(answer.encode())
        except OSError:
            pass
        connection.close()

    def _route_client(self, connection: socket.socket, uid: int) -> None:
        """Send a client to the server of its user; a client waits while clients of another user are running."""
        if self.quits_at is not None:
            connection.close()
            return
        server = next((one for one in self.servers if one.uid == uid), None)
        if server is None and self.servers:
            for other in self.servers:
                other.ask("DRAIN")
            self.pending.append((connection, uid))
            return
        server = server or self._start_server(uid)
        with suppress(OSError):
            connection.sendall(f"SERVER {self.folders.path(f'server-{server.pid}')}\n".encode())
        connection.close()

    def _start_server(self, uid: int) -> ServerProcess:
        ours, theirs = socket.socketpair()
        ready_read, ready_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(theirs.fileno(), 3)
            os.dup2(ready_write, 4)
            os.closerange(5, 1024)
            for fd in (3, 4):
                os.set_inheritable(fd, True)
            os.execv(sys.executable, [sys.executable, "-I", "-S", SERVER, str(uid)])
        theirs.close()
        os.close(ready_write)
        os.read(ready_read, 1)
        os.close(ready_read)
        ours.settimeout(_ANSWER_S)
        server = ServerProcess(pid, uid, ours)
        server.percentage, server.memory = self.percentage, self.memory.get("0", 0)
        self._pass_limits(server)
        self.servers.append(server)
        self.folders.append_log("control", "Control", f"Starting new server {pid} for user {uid}")
        return server

    def _pass_limits(self, server: ServerProcess) -> None:
        server.ask(f"LIMIT {server.percentage} {server.memory}")

    def _check_servers(self) -> None:
        for server in list(self.servers):
            if server.has_ended():
                self.servers.remove(server)
                self.folders.append_log("control", "Control", f"Server {server.pid} exited with status 0")
        waiting, self.pending = self.pending, []
        for connection, uid in waiting:
            self._route_client(connection, uid)

    def _is_over(self) -> bool:
        if self.quits_at is None:
            return False
        if time.monotonic() > self.quits_at:
            for server in self.servers:
                server.ask("STOP")
        return not self.servers

    def _server(self, pid: str) -> ServerProcess:
        found = next((server for server in self.servers if server.pid == int(pid)), None)
        if found is None:
            raise Refused(f"Server {pid} not found")
        return found

    def _listen(self, name: str, mode: int) -> socket.socket:
        path = self.folders.path(name)
        if os.path.lexists(path):
            os.unlink(path)  # noqa: PTH108
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(path)
        os.chmod(path, mode)  # noqa: PTH101
        listening.listen(64)
        return listening

    def _make_files(self) -> None:
        path = self.folders.path
        os.close(os.open(path("control_lock"), os.O_CREAT | os.O_RDWR, 0o666))
        if not os.path.exists(path("log")):  # noqa: PTH110
            os.mkfifo(path("log"), 0o666)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(path(PID_FILE), flags, 0o644), "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(f"{os.getpid()}\n")


def _percentage(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 100:
        raise ValueError(text)
    return value


def _mib(text: str) -> int:
    return int(text[:-1]) * _MIB_OF[text[-1].upper()]


def _formatted(mib: int) -> str:
    """Format a limit as drivers of 2025 do: in whole GiB, rounded down."""
    return f"{mib // 1024}G" if mib >= 1024 else f"{mib}M"


def _detach() -> None:
    """Become a daemon, with a new session and neither a terminal nor inherited pipes."""
    if os.fork():
        os._exit(0)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
