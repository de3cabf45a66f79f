"""Write the report as one page of HTML without network, server or further files.

Recorded data cannot run code in it. Data from a trace is only in the page as gzip in base64, and
the script inserts it as text. The page's own policy allows only the script and style with the
stated digests, and no requests.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import struct
from importlib.resources import files

import msgspec

from stepprof.analysis.recording_cost import cost_sentences
from stepprof.analysis.report.gantt import Columns, pack_gantt
from stepprof.analysis.report.schema import Comparison, Report
from stepprof.analysis.report.wording import causes

# concatenated in this order into one script
_SCRIPTS = ("dom.js", "data.js", "table.js", "tree.js", "charts.js", "strips.js", "shades.js", "gantt.js", "hands.js", "path.js", "neighbours.js", "sections.js", "comparison.js", "main.js")  # fmt: skip
_POLICY = "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; base-uri 'none'; form-action 'none'"


def render(content: Report | Comparison) -> str:
    """Return the page of a report, or of a comparison of two."""
    script = "\n".join(_asset(name) for name in _SCRIPTS)
    style = _asset("style.css")
    policy = _POLICY.format(script=_digest(script), style=_digest(style))
    page = _asset("template.html")
    for marker, text in (
        ("policy", policy),
        ("style", style),
        ("script", script),
        ("data", _payload(content)),
    ):
        before, found, after = page.partition(f"<!--{marker}-->")
        if not found:
            raise ValueError(f"the template has no place for its {marker}")
        page = before + text + after
    return page


def _payload(content: Report | Comparison) -> str:
    """Base64 of gzip of the length of the JSON (uint32), the JSON, padding to 4 bytes, and the
    columns that the JSON describes.
    """
    table: dict[str, object]
    columns: Columns = []
    if isinstance(content, Report):
        gantt, columns = pack_gantt(content.gantt, content.seconds)
        rest = {name: getattr(content, name) for name in content.__struct_fields__ if name != "gantt"}
        headings = {"busy": "work", **causes(each.causes for each in content.idle)}
        more = {
            "causes": headings,
            "recording_cost": cost_sentences(content.recording),
        }
        table = {"kind": "report", "content": {**rest, **more}, "gantt": gantt}
    else:
        table = {"kind": "comparison", "content": content}
    table["columns"] = [[name, len(array)] for name, array in columns]
    text = msgspec.json.encode(table)
    text += b" " * (-len(text) % 4)
    body = b"".join(array.astype("<u4").tobytes() for _, array in columns)
    return base64.b64encode(
        gzip.compress(struct.pack("<I", len(text)) + text + body, compresslevel=6, mtime=0)
    ).decode()


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")
