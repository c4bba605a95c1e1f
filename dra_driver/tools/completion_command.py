"""The scripts by which a shell completes `dra-driver` and `kubectl-dra`.

In: a shell and a program's name. Out: a script. It runs `PROGRAM __complete WORD...`, which prints a line
`word<TAB>help` for each candidate, and at the end `:0` if files fit as well or `:4` if they do not. This is the
protocol between kubectl and its plugins (see `kubectl_complete`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

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
    from dra_driver.tools.commands import cli
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
