"""Write the table of log events into docs/logging.md.

python docs/make_events.py
"""

from __future__ import annotations

import re
from pathlib import Path

from stepprof.log.events import EVENTS

PAGE = Path(__file__).with_name("logging.md")
_TABLE = re.compile(r"(?<=<!-- events -->\n).*?(?=<!-- end -->)", re.DOTALL)


def table() -> str:
    """Return the table, in Markdown."""
    rows = ["| event | level | means | fields |", "|---|---|---|---|"]
    for name, event in sorted(EVENTS.items()):
        fields = ", ".join(f"`{field}`" for field in event.fields.split())
        sentence = re.sub(r"\{(\w+)\}", r"`\1`", event.sentence)
        rows.append(f"| `{name}` | {event.level} | {sentence} | {fields} |")
    return "\n".join(rows) + "\n"


def updated(page: str) -> str:
    """Return the page with the table as it is now."""
    return _TABLE.sub(lambda _: table(), page)


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
