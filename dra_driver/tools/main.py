"""Run one command, or complete a command line, and turn errors into exit statuses; no other module does that.

In: argv. Out: an exit status of `ExitCode`. A user's error is one line and a hint; only a bug shows a traceback. The
scripts by which a shell completes run `PROGRAM __complete WORD...`, which prints a line `word<TAB>help` for each
candidate, and at the end `:0` if files fit as well or `:4` if they do not. This is the protocol between kubectl and its
plugins (see `kubectl_complete`).
"""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from dra_driver import __version__
from dra_driver.base.errors import DriverError, ExitCode, InputError
from dra_driver.tools.commands import cli

_MAX_SHOWN = 300  # in characters of a path
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
INTERRUPTED = 130  # 128 + SIGINT, as shells expect


def run(argv: Sequence[str], program: str = "dra-driver") -> int:
    """Run one command and return its exit status. `program` is the name of the program in usage texts."""
    if argv[:1] == ["__complete"]:  # a shell's completion script asks
        return complete(argv[1:])
    _open_closed_streams()
    logging.getLogger("dra_driver").addHandler(logging.NullHandler())  # commands print their own messages
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # characters that the terminal can't show become question marks
    try:
        status = cli.main(args=list(argv), prog_name=program, standalone_mode=False)
    except Exception as fault:  # noqa: BLE001
        return _status_of(fault)
    except KeyboardInterrupt:
        return _status_of(click.Abort())
    except SystemExit as ended:
        if ended.code != 1:  # what click does if a pipe is closed, but 1 stands for findings
            raise
        return _status_of(BrokenPipeError())
    return status if isinstance(status, int) else ExitCode.OK


def _open_closed_streams() -> None:
    """Open /dev/null in place of a standard stream that the shell has closed, so that no other file gets its number."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115


def _status_of(fault: Exception) -> int:
    """Print an error of a command, and return the exit status for it."""
    match fault:
        case click.ClickException():  # among them the help of a group that was called without a command
            fault.show()
            return ExitCode.USAGE
        case click.Abort():
            print("interrupted", file=sys.stderr)
            return INTERRUPTED
        case DriverError():
            _print_error(fault)
            return fault.exit_code
        case BrokenPipeError():
            _silence_stdout()
            return ExitCode.OK
        case OSError() if fault.errno in _NO_ROOM and not fault.filename:
            _silence_stdout()
            _print_error(InputError("unwritable", f"the output can't be written: {fault.strerror}"))
            return ExitCode.BAD_INPUT
        case OSError():  # a name that is too long, a loop of links: not a bug
            named = f": {str(fault.filename)[:_MAX_SHOWN]}" if fault.filename else ""
            _print_error(InputError("unreadable", f"{fault.strerror or fault}{named}"))
            return ExitCode.BAD_INPUT
        case RecursionError():
            _print_error(InputError("not-yaml", "an input is nested too deeply"))
            return ExitCode.BAD_INPUT
    _report_bug(fault)
    return ExitCode.BUG


def _print_error(fault: DriverError) -> None:
    from dra_driver.tools.output import printable

    print(printable(f"dra-driver: {fault.message} [{fault.code}]"), file=sys.stderr)
    if fault.hint:
        print(printable(f"  {fault.hint}"), file=sys.stderr)


def _report_bug(fault: Exception) -> None:
    traceback.print_exception(fault)
    print(
        f"dra-driver {__version__}: this is a bug, not something that you did. Please report the lines above,"
        " with the command, in the project's issue tracker.",
        file=sys.stderr,
    )


def _silence_stdout() -> None:
    """Keep the interpreter from reporting a broken pipe on standard output when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> NoReturn:
    """Run the command line as a program."""
    sys.exit(run(sys.argv[1:]))


# The script splits the line itself, because bash also splits words at `:` and `=`, and replaces only the last part.
_BASH = r"""# bash completion for PROGRAM:  source <(PROGRAM completion bash)
_FUNCTION() {
    local line=${COMP_LINE:0:COMP_POINT} words=() i rest
    for ((i = 0; i <= COMP_CWORD; i++)); do
        rest=${line#"${line%%[![:space:]]*}"}
        local word=${COMP_WORDS[i]}
        ((i == COMP_CWORD)) && word=$rest
        if ((i > 0)) && [[ $rest == "$line" && -n $line ]]; then
            words[${#words[@]} - 1]+=$word
        else
            words+=("$word")
        fi
        line=${rest#"$word"}
    done
    local typed=${words[${#words[@]} - 1]} kept="" candidate
    if [[ $typed == *[:=]* && $COMP_WORDBREAKS == *[:=]* ]]; then
        kept=${typed%"${typed##*[:=]}"}
    fi
    COMPREPLY=()
    while IFS= read -r candidate; do
        case $candidate in
            :0) [[ ${#COMPREPLY[@]} -eq 0 ]] && compopt -o default 2>/dev/null ;;
            :*) ;;
            *) candidate=${candidate%%$'\t'*}; COMPREPLY+=("${candidate#"$kept"}") ;;
        esac
    done < <(PROGRAM __complete "${words[@]:1}" 2>/dev/null)
}
complete -F _FUNCTION PROGRAM
"""
_ZSH = r"""#compdef PROGRAM
# zsh completion for PROGRAM:  source <(PROGRAM completion zsh)
_FUNCTION() {
    local -a described
    local line files=0
    while IFS= read -r line; do
        case $line in
            :0) files=1 ;;
            :*) ;;
            *$'\t'*) described+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
            *) described+=("${line//:/\\:}") ;;
        esac
    done < <(PROGRAM __complete "${(@Q)words[2,CURRENT-1]}" "$PREFIX" 2>/dev/null)
    (( ${#described} )) && _describe -V PROGRAM described
    (( files )) && _files
}
compdef _FUNCTION PROGRAM
"""
_FISH = r"""# fish completion for PROGRAM:  PROGRAM completion fish | source
function _FUNCTION
    set -l words (commandline -opc)
    for line in (PROGRAM __complete $words[2..-1] (commandline -ct) 2>/dev/null)
        switch $line
            case ':0'
                __fish_complete_path (commandline -ct)
            case ':*'
            case '*'
                echo $line
        end
    end
end
complete -c PROGRAM -f -a '(_FUNCTION)'
"""
SHELLS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
PROGRAMS = ("dra-driver", "kubectl-dra")


def script(shell: str, program: str) -> str:
    """Return the script for a shell and a program."""
    return SHELLS[shell].replace("_FUNCTION", f"_{program.replace('-', '_')}").replace("PROGRAM", program)


# `dra-driver completion`: print the script for a shell, and answer when the script asks for candidates.

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
    from dra_driver.tools.completion import Candidates, candidates

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
