"""What only a process of its own can do: `child_process.py write PATH TEXT`, or `run ROOT PROGRAM ARGUMENT...`.

`write` writes one file of sysfs, because the kernel may block the writer for as long as the device's driver likes, and
a blocked thread can't be abandoned. The exit status is the number of the error, 0 for none.
`run` runs a program below another root, with no environment, because only a whole process can change its root. It
becomes the program, so that the program's exit status and signals are those of the child. Exit status 125: the root
can't be entered; 127: no such program.
"""

import os
import sys

CANT_ENTER, NOT_FOUND = 125, 127


def write(path: str, text: str) -> int:
    """Write, and return the number of the error."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, text.encode("ascii"))
        finally:
            os.close(file)
    except OSError as error:
        return error.errno or 255
    return 0


def run(root: str, *program: str) -> int:
    """Become the program, or return why that is not possible."""
    try:
        os.chroot(root)
        os.chdir("/")
    except OSError as error:
        print(f"{root} can't be made the root: {error.strerror}")  # noqa: T201 - the caller reads the output
        return CANT_ENTER
    try:
        os.execve(program[0], program, {})
    except OSError as error:
        print(f"{program[0]} can't be run below {root}: {error.strerror}")  # noqa: T201
        return NOT_FOUND


if __name__ == "__main__":
    sys.exit(write(*sys.argv[2:]) if sys.argv[1] == "write" else run(*sys.argv[2:]))
