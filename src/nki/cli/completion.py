"""nki completion: a script that completes commands, options, kernels of a file, kinds and platforms."""

from __future__ import annotations

import argparse

from ..check import releases
from ..check.pages import PAGES
from ..machine import generations

TEXT = """\
Print a script that completes in a shell: commands, options, the kernels of script.py:, the
kinds of nki explain, platforms and releases."""
EXAMPLES = """\
examples:
  eval "$(nki completion bash)"                                      in ~/.bashrc
  eval "$(nki completion zsh)"                                       in ~/.zshrc
  nki completion fish > ~/.config/fish/completions/nki.fish"""
SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS)


VALUES = {"--target": tuple(generations.MACHINES), "--for": releases.NAMES}
# prints the kernels that a file defines
KERNELS = r"sed -n '/@\(nki\.\)\{0,1\}jit/,/def /s/.*def \([A-Za-z_0-9]*\).*/\1/p'"


def script(shell: str, top: argparse.ArgumentParser) -> str:
    """Return the script for a shell, from the parser itself."""
    commands = commands_of(top)
    options = {name: _options(parser) for name, (parser, _) in commands.items()}
    if shell == "fish":
        return "\n".join([*_fish(commands, options), ""])
    words = options | {"explain": [*options["explain"], *sorted(PAGES)]}
    cases = "\n".join(f'    {name}) words="{" ".join(listed)}";;' for name, listed in words.items())
    values = "\n".join(f'    {word}) files="" words="{" ".join(given)}";;' for word, given in VALUES.items())
    text = BASH.format(commands=" ".join(commands), cases=cases, values=values, kernels=KERNELS)
    return ZSH + text if shell == "zsh" else text


# bash takes script.py:kernel for three words, zsh for one
BASH = """\
_nki_kernels() {{
  {kernels} "$1" 2>/dev/null
}}
_nki() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words="" file="" files=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands} --version --help"
  elif [ "$word" = ":" ]; then
    words="$(_nki_kernels "$before")" word=""
  elif [ "$before" = ":" ]; then
    words="$(_nki_kernels "${{COMP_WORDS[COMP_CWORD-2]}}")"
  elif [ "${{word%.py:*}}" != "$word" ]; then
    file="${{word%:*}}"
    words="$(_nki_kernels "$file" | sed "s|^|$file:|")"
  else
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    [ "${{word#-}}" = "$word" ] && files=yes
    case "$before" in
{values}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  [ -z "$files" ] || COMPREPLY+=($(compgen -f -- "$word"))
}}
complete -o filenames -F _nki nki
"""
ZSH = "autoload -U +X bashcompinit && bashcompinit\n"
FISH = f"""\
function __nki_kernels
  set -l file (string replace -r ':[^:]*$' '' -- (commandline -ct))
  test -f "$file"; and {KERNELS} "$file" | string replace -r '^' "$file:"
end
complete -c nki -a '(__nki_kernels)'"""


Commands = dict[str, tuple[argparse.ArgumentParser, str]]  # parser and help, by name


def commands_of(top: argparse.ArgumentParser) -> Commands:
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            return {name: (parser, helps.get(name, "")) for name, parser in action.choices.items()}
    return {}


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [word for action in parser._actions for word in action.option_strings if word.startswith("--")]


def _fish(commands: Commands, options: dict[str, list[str]]) -> list[str]:
    lines = [FISH]
    for name, (parser, help) in commands.items():
        lines.append(f"complete -c nki -n __fish_use_subcommand -a {name} -d {_quoted(help)}")
        help_of = {word: action.help or "" for action in parser._actions for word in action.option_strings}
        of = f"'__fish_seen_subcommand_from {name}'"
        for word in options[name]:
            given = f" -x -a {_quoted(' '.join(VALUES[word]))}" if word in VALUES else ""
            lines.append(f"complete -c nki -n {of} -l {word[2:]}{given} -d {_quoted(help_of[word])}")
    explain = "'__fish_seen_subcommand_from explain'"
    return [*lines, f"complete -c nki -n {explain} -f -a {_quoted(' '.join(sorted(PAGES)))}"]


def _quoted(text: str) -> str:
    return "'" + text.replace("%%", "%").replace("'", r"\'") + "'"
