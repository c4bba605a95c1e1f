"""`dra-driver completion`: print the script for a shell, and answer when the script asks for candidates.

In: a shell, or the words up to the cursor. Out: a script, or candidates. kubectl runs `kubectl_complete-dra`.
Source: Kubernetes, kubectl plugins, "kubectl_complete-<plugin>"; cobra's completion directives (4: no file names).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from dra_driver.cli.completion.scripts import PROGRAMS, SHELLS, script

_FILES, _NO_FILES = ":0", ":4"


@click.command(name="completion")
@click.argument("shell", type=click.Choice(list(SHELLS)))
def completion_command(shell: str) -> None:
    """Print the script by which a shell completes commands, options, profiles, nodes, claims and devices.

    \b
    dra-driver completion bash
    source <(dra-driver completion bash)                    now; or put this line into ~/.bashrc
    source <(dra-driver completion zsh)                     after compinit, in ~/.zshrc
    dra-driver completion fish > ~/.config/fish/completions/dra-driver.fish

    The script also completes kubectl-dra. `kubectl dra` is completed by kubectl's own completion, which runs
    kubectl_complete-dra.
    """  # noqa: D301
    click.echo("\n".join(script(shell, program) for program in PROGRAMS), nl=False)


def complete(words: Sequence[str]) -> int:
    """Print the candidates for the last word, then the directive, and nothing else; return 0."""
    from dra_driver.cli.candidates.candidates import Candidates, candidates
    from dra_driver.cli.commands import cli

    try:
        found = candidates(cli, list(words) or [""])
    except Exception:  # noqa: BLE001  an unfinished line is often wrong; the command reports that when it is run
        found = Candidates(())
    for word, meaning in found.words:
        print(f"{word}\t{' '.join(meaning.split())}" if meaning else word)
    print(_FILES if found.has_files else _NO_FILES)
    return 0


def kubectl_complete() -> int:
    """Run as `kubectl_complete-dra WORD...`, which kubectl starts for `kubectl dra`."""
    return complete(sys.argv[1:])
