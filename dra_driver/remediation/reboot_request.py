"""RebootRequest: a file that asks other software to reboot this machine; the agent itself never does.

In: a reason. Out: a file whose first line contains the id of this boot, so that a request of an earlier boot has no
effect; docs/health.md shows the command that checks it. A file that another program wrote is left alone. The path is
a path of the host, which an agent in a container reaches through the root of the host's first process. Symbolic links
in it are followed as the host would follow them.
Source: kured, --reboot-sentinel and --reboot-sentinel-command.
"""

from __future__ import annotations

from pathlib import Path

from dra_driver.model.errors import NodeError, Retry

FILE_NAME = "reboot-required"
MARK = "dra-driver asks for a reboot in boot "
_BYTES = 4096
MAX_LINKS = 64  # the most parts of a path that are followed, including those of links


class RebootRequest:
    """The request of one node, in the file `path` of the host, which this process sees below `host`."""

    def __init__(self, path: Path, boot_id: str, *, host: str = "/") -> None:
        self._wanted, self._boot_id, self._host = path, boot_id, host

    def ask(self, text: str) -> None:
        """Ask for a reboot in this boot. Raises: NodeError("node.reboot-request")."""
        if self._exists() and not self._is_ours():
            return  # another program has asked for a reboot already
        line = "".join(one if one.isprintable() else "?" for one in text)
        new = self._path.with_name(f".{self._path.name}.new")
        try:
            new.write_text(f"{MARK}{self._boot_id}\n{line}\n", "utf-8")
            new.replace(self._path)
        except OSError as error:
            message = f"{self._path} can't be written: {error.strerror}"
            hint = "the folder must exist and be writable for the agent (docs/health.md)"
            raise NodeError("reboot-request", message, hint=hint, retry=Retry.LATER) from error

    @property
    def _path(self) -> Path:
        return Path(self._host, *_inside(self._host, self._wanted.parent), self._wanted.name)

    def withdraw(self) -> None:
        """Remove our request; do nothing if there is none."""
        if self._is_ours():
            self._path.unlink(missing_ok=True)

    @property
    def is_asked(self) -> bool:
        """Whether we have requested a reboot in this boot."""
        try:
            with self._path.open("rb") as file:
                return file.read(_BYTES).startswith(f"{MARK}{self._boot_id}\n".encode())
        except OSError:
            return False

    def _exists(self) -> bool:
        return self._path.exists()

    def _is_ours(self) -> bool:
        try:
            with self._path.open("rb") as file:
                return file.read(_BYTES).startswith(MARK.encode())
        except OSError:
            return False


def _inside(host: str, folder: Path) -> list[str]:
    """Return the parts of a folder below the host's root, with links followed as if that root were `/`."""
    done: list[str] = []
    todo = list(reversed(folder.parts[1:]))
    for _ in range(MAX_LINKS):
        if not todo:
            break
        part = todo.pop()
        if part == "..":
            del done[-1:]
            continue
        try:
            target = Path(host, *done, part).readlink()
        except OSError:  # it is not a link, or does not exist, which the write will report
            done.append(part)
            continue
        done = [] if target.is_absolute() else done
        todo += [one for one in reversed(target.parts) if one != "/"]
    return done
