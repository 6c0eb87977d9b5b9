"""nki completion: a script that completes commands and options, for bash, zsh or fish."""

from __future__ import annotations

import argparse

TEXT = """\
Print a script that completes the commands and options of nki in a shell."""
EXAMPLES = """\
examples:
  eval "$(nki completion bash)"                                      in ~/.bashrc
  eval "$(nki completion zsh)"                                       in ~/.zshrc
  nki completion fish > ~/.config/fish/completions/nki.fish"""
SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS)


def script(shell: str, top: argparse.ArgumentParser) -> str:
    """Return the script for a shell, from the parser itself."""
    commands = _commands(top)
    options = {name: _options(parser) for name, (parser, _) in commands.items()}
    if shell == "fish":
        return "\n".join([*_fish(commands, options), ""])
    cases = "\n".join(f'    {name}) words="{" ".join(words)}";;' for name, words in options.items())
    text = BASH.format(commands=" ".join(commands), cases=cases)
    return ZSH + text if shell == "zsh" else text


BASH = """\
_nki() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands} --version --help"
  else
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  if [ "${{word#-}}" = "$word" ] && [ "$COMP_CWORD" -gt 1 ]; then
    COMPREPLY+=($(compgen -f -- "$word"))
  fi
}}
complete -o filenames -F _nki nki
"""
ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


Commands = dict[str, tuple[argparse.ArgumentParser, str]]  # parser and help, by name


def _commands(top: argparse.ArgumentParser) -> Commands:
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            return {name: (parser, helps.get(name, "")) for name, parser in action.choices.items()}
    return {}


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [word for action in parser._actions for word in action.option_strings if word.startswith("--")]


def _fish(commands: Commands, options: dict[str, list[str]]) -> list[str]:
    lines = []
    for name, (parser, help) in commands.items():
        lines.append(f"complete -c nki -n __fish_use_subcommand -a {name} -d {_quoted(help)}")
        help_of = {word: action.help or "" for action in parser._actions for word in action.option_strings}
        for word in options[name]:
            of = f"'__fish_seen_subcommand_from {name}'"
            lines.append(f"complete -c nki -n {of} -l {word[2:]} -d {_quoted(help_of[word])}")
    return lines


def _quoted(text: str) -> str:
    return "'" + text.replace("%%", "%").replace("'", r"\'") + "'"
