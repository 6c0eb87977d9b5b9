"""Loggers that kernels may hold: they write to Python's logging."""

from __future__ import annotations

import logging

import nki.language as nl


class Logger(nl.NKIObject):
    """Messages under a name."""

    def __init__(self, name: str = "nkilib"):
        self.name = name

    def debug(self, message: object) -> None:
        logging.getLogger(self.name).debug(message)

    def info(self, message: object) -> None:
        logging.getLogger(self.name).info(message)

    def warn(self, message: object) -> None:
        logging.getLogger(self.name).warning(message)

    def error(self, message: object) -> None:
        logging.getLogger(self.name).error(message)


class TreeLogger(Logger):
    """Collects lines, indented by how deep they are, and writes them all at once."""

    def __init__(self, name: str = "nkilib"):
        self.name = name
        self.depth = 0
        self.lines: list[str] = []

    def add(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def flush(self) -> None:
        for line in self.lines:
            self.info(line)
        self.lines.clear()


def get_logger(name: str = "nkilib") -> Logger:
    """The logger of a name."""
    return Logger(name)
