"""Terminal output of the commands.

All output passes through here, so that no name in a run can move the cursor, set a title or forge a
line. Names come from the user's program, and from any user who may write to the run. The linter
forbids `print` in this package.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

from stepprof.formatting import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment


def print_lines(*lines: object, file: TextIO | None = None) -> None:
    """Print lines; without arguments, an empty one.

    Args:
        lines: their text; a line break or control character within one is shown as "?".
        file: the output file; None: stdout.
    """
    print_text("\n".join(printable(str(line)) for line in lines), file=file)


def print_text(text: str, *, file: TextIO | None = None) -> None:
    """Print preformatted text. Line breaks are kept; other control characters are shown as "?"."""
    print("\n".join(map(printable, text.split("\n"))), file=file, flush=True)


def print_json(text: str) -> None:
    """Print JSON. Characters that a terminal would interpret are escaped; the meaning is unchanged."""
    lines = text.rstrip("\n").split("\n")
    print("\n".join(line if line.isprintable() else _escaped(line) for line in lines))  # noqa: T201 - as above


def console(**options: Any) -> Console:
    """Return rich's console. Control characters in printed text are replaced; only rich's own
    remain.
    """
    from rich.console import Console
    from rich.segment import Segment

    class PlainConsole(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else _plain_lines(text), style, control)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # `main` catches it and exits normally: the reader has closed the pipe

    return PlainConsole(highlight=False, markup=False, emoji=False, **options)


@contextlib.contextmanager
def any_encoding() -> Iterator[None]:
    """Within the context, escape characters that the encoding of stdout or stderr cannot represent."""
    before = []
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            before.append((stream, stream.errors))
            stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        for stream, errors in before:
            with contextlib.suppress(ValueError, OSError):  # closed meanwhile
                stream.reconfigure(errors=errors)


def _plain_lines(text: str) -> str:
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def _escaped(line: str) -> str:
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in line)
