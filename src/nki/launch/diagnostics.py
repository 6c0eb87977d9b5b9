"""Diagnostics of one call: each kind once per line, shown as warnings, errors in strict mode."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from ..errors import NkiError, emit_warning, error_class
from ..ir.program import Diagnostic
from .world import World


class NeedsEager(BaseException):
    """The call must start again in eager mode: Python needs a value, or an instruction failed or warned."""


class SideEffects:
    """What a call has done that starting again cannot undo: output of device_print, data sent to ranks."""

    def __init__(self, prints_before: int = 0) -> None:
        self.prints = 0
        self.prints_before = prints_before  # shown by an earlier attempt
        self.files: dict[tuple[int, str], int] = {}  # files written so far, by core and prefix
        self.sent = False  # other ranks have received data: the call cannot start again

    def count_print(self) -> bool:
        """Count a print; returns False if an earlier attempt showed it."""
        self.prints += 1
        return self.prints > self.prints_before


class Diagnostics:
    """What a call reported.

    `deferred`: nothing is shown before the call has ended well (`show`), and in strict mode the call starts
    again in eager mode, where the first diagnostic raises at its line.
    """

    def __init__(
        self,
        strict: bool,
        world: World,
        side_effects: SideEffects,
        deferred: bool = False,
        silenced: Iterable[Diagnostic] = (),
    ):
        self.strict = strict
        self.deferred = deferred
        self.side_effects = side_effects
        self.found: list[Diagnostic] = []
        self._known: set[Hashable] = {diagnostic.line for diagnostic in silenced}
        self._shown_by_ranks = world.shown

    def report(self, diagnostic: Diagnostic) -> None:
        """Add a diagnostic unless its line has one of this kind; raise it in strict mode."""
        if self.strict:
            if self.deferred and not self.side_effects.sent:
                raise NeedsEager
            raise as_error(diagnostic)
        if self.is_repeat(diagnostic.line):
            return
        self.add(diagnostic)

    def add(self, diagnostic: Diagnostic) -> None:
        """Add a diagnostic and show it, now or when the call has ended well."""
        self.found.append(diagnostic)
        if not self.deferred:
            self._show(diagnostic)

    def is_repeat(self, what: Hashable) -> bool:
        """Return True from the second time on that this is asked."""
        known = what in self._known
        self._known.add(what)
        return known

    def show(self) -> None:
        """Show everything that was deferred."""
        if self.deferred:
            self.deferred = False
            for diagnostic in self.found:
                self._show(diagnostic)

    def _show(self, diagnostic: Diagnostic) -> None:
        """Show a diagnostic unless another rank of this process has."""
        shown = self._shown_by_ranks
        if shown is None or diagnostic.line not in shown:
            show(diagnostic)
        if shown is not None:
            shown.add(diagnostic.line)


def show(diagnostic: Diagnostic) -> None:
    """Show a diagnostic as a Python warning."""
    emit_warning(diagnostic.kind, diagnostic.message, diagnostic.site, diagnostic.notes, diagnostic.help)


def as_error(diagnostic: Diagnostic) -> NkiError:
    """Return the error that a diagnostic is in strict mode."""
    d = diagnostic
    return error_class(d.kind)(d.message, notes=d.notes, help=d.help, site=d.site)
