"""Run a program below another root: `python -I -S chroot_child.py ROOT PROGRAM ARGUMENT...`, with no environment.

A process of its own, because only a whole process can change its root. It becomes the program, so that the program's
exit status and signals are those of the child. Exit status 125: the root can't be entered; 127: no such program.
"""

import os
import sys

CANT_ENTER, NOT_FOUND = 125, 127


def main(argv: list[str]) -> int:
    """Become the program, or return why that is not possible."""
    root, *program = argv
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
    sys.exit(main(sys.argv[1:]))
