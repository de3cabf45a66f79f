"""Write the columns of a run's tables into docs/data.md.

python docs/make_data.py
"""

from __future__ import annotations

import re
from pathlib import Path

from stepprof.analysis.data.schema import TABLES, Columns

PAGE = Path(__file__).with_name("data.md")
_TABLES = re.compile(r"(?<=<!-- tables -->\n).*?(?=<!-- end -->)", re.DOTALL)


def tables() -> str:
    """Return a section for each table, in Markdown."""
    return "\n".join(section(table) for table in TABLES.values())


def section(table: Columns) -> str:
    """Return the heading, the meaning and the columns of a table."""
    rows = ["| column | type | unit | contains |", "|---|---|---|---|"]
    rows += [f"| `{each.name}` | {each.type} | {each.unit} | {each.text} |" for each in table.columns]
    return "\n".join([f"### `{table.table}`\n", f"{table.text}\n", *rows, ""])


def updated(page: str) -> str:
    """Return the page with the tables as they are now."""
    return _TABLES.sub(lambda _: tables(), page)


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
