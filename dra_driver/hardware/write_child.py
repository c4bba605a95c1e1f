"""Write one file of sysfs: `python -I -S write_child.py PATH TEXT`.

This is a process of its own, because the kernel may block the writer for as long as the device's driver likes, and a
blocked thread can't be abandoned. The exit status is the number of the error, 0 for none.
"""

import os
import sys


def main(path: str, text: str) -> int:
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


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
