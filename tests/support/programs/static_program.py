"""A program without libraries, which can be run below any root: it logs how it was called, and can refuse or wait."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_SOURCE = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
extern char **environ;
int main(int count, char **arguments) {
    FILE *log = fopen(LOG, "a");
    if (!log) return 99;
    for (int i = 1; i < count; i++) fprintf(log, "%s ", arguments[i]);
    int variables = 0;
    while (environ[variables]) variables++;
    struct stat root, here;
    stat("/", &root); stat(".", &here);
    fprintf(log, "env=%d root=%d\n", variables, root.st_ino == here.st_ino);
    fclose(log);
    char text[256];
    FILE *refusal = fopen(LOG ".refuse", "r");
    if (refusal) { if (fgets(text, sizeof text, refusal)) fputs(text, stdout); return 3; }
    while (!access(LOG ".hold", F_OK)) usleep(5000);
    puts("GPU was successfully reset.");
    return 0;
}
"""


def build_static(path: Path, *, log: Path) -> None:
    """Build the program at `path`. It has to run below the folder of its `log` as its root.

    A file `<log>.refuse` makes it print that text and fail, a file `<log>.hold` makes it wait.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "needs a C compiler"
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-static", "-O1", f'-DLOG="/{log.name}"', "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=_SOURCE.encode(), check=True)
