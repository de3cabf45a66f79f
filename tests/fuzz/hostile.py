"""Random and hostile answers of engines' servers and routers: their content, their encoding, and
their transfer.
"""

from __future__ import annotations

import base64
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from hypothesis import strategies as st

__all__ = ["CANARY", "KINDS", "Answer", "Routes", "answers"]

CANARY = "sk-canary/5f2e+9"
"""The key that is sent with every request. It must not appear anywhere else."""
USER = f"me:{CANARY}"
_FORMS = [
    CANARY,
    quote(CANARY, safe=""),
    base64.b64encode(USER.encode()).decode(),
    json.dumps(CANARY)[1:-1].replace("/", "\\/"),
    CANARY.upper(),
    CANARY.replace("/", "\\\\/"),
    quote(quote(CANARY, safe=""), safe=""),
]
_PARTS = ("canary", "5f2e", _FORMS[2][:12].lower())
STAY_SECONDS = 1.0
"""Duration of an endless answer in seconds; the client disconnects before."""

_PROFILE = [
    "output_dir",
    "num_steps",
    "activities",
    "with_stack",
    "record_shapes",
    "profile_by_stage",
    "profile_id",
]

Content = Any
"""Content that is written as JSON; a string is written unchanged."""
_METRICS = """vllm:generation_tokens_total{engine="0"} 1.0
vllm:num_requests_running{engine="0"} 0.0
sglang:generation_tokens_total{tp_rank="0"} 1.0
sglang:prompt_tokens_total{tp_rank="1"} 2.0
"""
KINDS: Mapping[str, Callable[[str], dict[str, tuple[int, Content]]]] = {
    "vllm": lambda _: {
        "GET /version": (200, {"version": "0.32.0"}),
        "GET /start_profile": (405, {}),
        "GET /metrics": (200, _METRICS),
        "GET /health": (200, {}),
        "GET /server_info?config_format=json": (
            200,
            {"vllm_config": {"profiler_config": {"profiler": "torch", "torch_profiler_dir": "traces", "ignore_frontend": True, "max_iterations": 0, "torch_profiler_activities": ["CPU"]}}},
        ),
        "GET /openapi.json": (200, {"components": {"schemas": {"P": {"properties": {"profile_prefix": {}}}}}}),
        "GET /v1/models": (200, {"data": [{"id": "m", "created": int(time.time())}]}),
        "POST /start_profile": (200, {}),
        "POST /stop_profile": (200, {}),
    },
    "sglang": lambda _: {
        "GET /server_info": (
            200,
            {"tp_size": 1, "pp_size": 1, "dp_size": 1, "version": "0.5.23", "internal_states": [{}], "device": "cpu", "sleep_on_idle": True, "model_path": "m", "enable_dp_attention": False},
        ),
        "GET /openapi.json": (200, {"components": {"schemas": {"ProfileReq": {"properties": {key: {} for key in _PROFILE}}}}}),
        "GET /metrics": (200, _METRICS),
        "GET /health": (200, {}),
        "GET /v1/models": (200, {"data": [{"id": "m", "created": int(time.time())}]}),
        "POST /start_profile": (200, {}),
        "POST /stop_profile": (200, {}),
    },
    "router": lambda url: {
        "GET /workers": (
            200,
            {"workers": [{"id": "a", "url": f"{url}/", "worker_type": "regular", "is_healthy": True}, {"id": "b", "url": "http://198.51.100.7:1"}, {"id": "c", "url": "http://127.0.0.1:1@0"}], "total": 3},
        ),
        "GET /health": (200, {}),
    },
    "old router": lambda url: {"GET /list_workers": (200, {"urls": [url, "http://127.0.0.1:1"]})},
}  # fmt: skip

# -- content of answers

_ODD = st.sampled_from(
    [
        None,
        True,
        False,
        0,
        -1,
        1,
        2**31,
        2**63,
        10**18,
        10**400,
        -(10**400),
        1e308,
        math.inf,
        -math.inf,
        math.nan,
        "",
        " ",
        "0",
        "x",
        "\x00",
        "\x1b[2J\x1b]0;t\x07",
        "\n[forged] line\r",
        "\u202e\u2028",
        "\ud800",
        "é" * 50,
        "9" * 5000,
        "9." * 3000,
        "../../x",
        "a/b",
        "%s%n{}",
        "http://",
        "http://[::1",
        "http://0x7f.1:1",
        "http://127.0.0.1:99999",
        "http://a@b@c",
        "//",
        "x" * 100_000,
        [],
        {},
        [[]],
        [{}],
        {"": None},
        [None] * 2000,
        {"a": {"a": {"a": 1}}},
        *_FORMS,
        *(f"http://{form}/{form}?key={form}" for form in _FORMS),
    ]
)  # fmt: skip


def _places(content: Content, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    pairs = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    )
    for key, value in pairs:
        yield from _places(value, (*path, key))


def _changed(content: Content, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Content:
    if not path:
        return change(content)
    copied = dict(content) if isinstance(content, dict) else list(content)
    copied[path[0]] = _changed(content[path[0]], path[1:], change)
    return copied


@st.composite
def _said(draw: st.DrawFn, content: Content) -> bytes:
    """Draw JSON in which up to two values are replaced, repeated, nested or enlarged."""
    for _ in range(draw(st.integers(0, 2))):
        path = draw(st.sampled_from(list(_places(content))))
        odd = draw(_ODD)
        times = draw(st.sampled_from([2, 50, 20_000]))
        changes: list[Callable[[Any], Any]] = [
            lambda _, odd=odd: odd,
            lambda value, times=times: [value] * min(times, 200_000 // max(len(repr(value)), 1)),
            lambda value, times=times: (
                value * times if isinstance(value, str) and len(value) < 50 else {"x": value}
            ),
            lambda value, odd=odd: {**value, "extra": odd} if isinstance(value, dict) else [value, odd],
        ]
        content = _changed(content, path, draw(st.sampled_from(changes)))
    depth = draw(st.sampled_from([0] * 9 + [100_000]))
    try:
        text = json.dumps(content)
    except ValueError:  # an integer that json does not write
        text = '{"a": ' + "9" * 5000 + "}"
    return ("[" * depth + text + "]" * depth).encode()


@st.composite
def _counted(draw: st.DrawFn, content: str) -> bytes:
    """Draw metrics in which some numbers are replaced."""
    parts = re.split(r"([\d.]+)", content)
    for at in draw(st.sets(st.sampled_from(range(1, len(parts), 2)), max_size=3)):
        parts[at] = draw(
            st.sampled_from(["1e999", "-1e999", "1e308", "nan", "-1", "9" * 5000, "+-e", "", CANARY])
        )
    return ("".join(parts) * draw(st.sampled_from([1, 1, 2, 1000]))).encode()


@st.composite
def _damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Draw bytes that are truncated, flipped, repeated, or have other bytes inserted."""
    how, where = (
        draw(st.sampled_from(["cut", "flip", "repeat", "insert"])),
        draw(st.integers(0, max(len(data) - 1, 0))),
    )
    if how == "cut":
        return data[:where]
    if how == "flip":
        return (
            data[:where] + bytes([data[where] ^ draw(st.integers(1, 255))]) + data[where + 1 :]
            if data
            else b"?"
        )
    if how == "repeat":
        return data[:where] + data[where : where + 50] * draw(st.integers(2, 1000)) + data[where:]
    return (
        data[:where]
        + draw(st.binary(max_size=8) | st.sampled_from([form.encode() for form in _FORMS]))
        + data[where:]
    )


# -- transfer of answers

_BELOW = re.compile(rb'(torch_profiler_dir"\s*:\s*")/')
"""A server on this host may name any folder; here it may only name one inside the folder of the test."""


@dataclass(frozen=True)
class Answer:
    """The bytes of an answer, and the bytes that follow it repeatedly."""

    data: bytes
    again: bytes = b""
    pause: float = 0.0
    damaged: bool = False
    """Whether some of its bytes were changed, possibly those of a key."""

    def send(self, handler: Any) -> None:
        """Send the answer and close the connection."""
        handler.close_connection = True
        until = time.monotonic() + STAY_SECONDS
        try:
            handler.connection.sendall(_BELOW.sub(rb"\1x", self.data))
            while self.again and time.monotonic() < until:
                handler.connection.sendall(self.again)
                time.sleep(self.pause)
        except OSError:
            return


def _chunks(body: bytes) -> bytes:
    parts = [body[at : at + 1000] for at in range(0, len(body), 1000)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


_LINE = st.sampled_from(
    [b"HTTP/1.1 200 OK", b"HTTP/1.0 200", b"HTTP/1.1 OK", b"HTTP/9 200", b"", b"\x00", b"SSH-2.0-x", b"HTTP/1.1 " + b"9" * 5000, b"HTTP/1.1 200 " + b"x" * 70_000,
     *(f"HTTP/1.1 {form}".encode() for form in _FORMS), *(f"{form}\x1b[2J".encode() for form in _FORMS)]
)  # fmt: skip
_HEADER = st.sampled_from(
    [b"Content-Length: " + b"9" * 5000, b"Content-Length: -1", b"Content-Length: 3", b"Content-Length: 0x9", b"Content-Length: 99999999", b"Content-Length: 1\r\nContent-Length: 2",
     b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Connection: keep-alive", b"X" * 70_000 + b": 1", b": : :", b"\x00: 1", b" folded", b"X: 1\r\n" * 200,
     b"Date: Thu, 01 Jan 9999 99:99:99 GMT", b"Date: Mon, 01 Jan 0001 00:00:00 GMT", b"Date: " + b"9" * 5000, b"Date: \xff", b"Content-Encoding: gzip",
     *(f"{name}: {form}".encode() for name in ("X-Echo", "Date") for form in _FORMS)]
)  # fmt: skip
_TARGET = st.sampled_from(
    ["", "/", "//", "http://[", "http://a:99999/", "http://other/\x1b[2J", *(f"http://{form}@h/{form}?{form}#{form}" for form in _FORMS), *(f"//{form}" for form in _FORMS)]
)  # fmt: skip
_CHUNKED = st.sampled_from(
    [b"0\r\n\r\n", b"5\r\nab", b"-5\r\nabcde\r\n", b"f" * 5000 + b"\r\n", b"x\r\n", b"1;" + b"e" * 70_000, b"0\r\n" + b"T: 1\r\n" * 5000, b"1\r\nx\r\n" * 5000,
     *(f"{form}\r\n".encode() for form in _FORMS)]
)  # fmt: skip
_STATUS = st.sampled_from(
    [200, 200, 200, 201, 204, 304, 400, 401, 403, 404, 405, 409, 500, 503, 100, 103, 199, 302, 307, 999]
)
_ENDLESS = st.sampled_from(
    [(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), (b"HTTP/1.1 200 OK\r\n", b"X: 1\r\n"), (b"HTTP/1.1 200 OK\r\nX: ", b"x"), (b"HTTP/1.1 200 OK\r\n\r\n", b" " * 1000),
     (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: 1\r\n"), (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n")]
)  # fmt: skip


@st.composite
def answers(draw: st.DrawFn, status: int, content: Content) -> Answer:
    """Draw a hostile answer in place of an honest one."""
    body = draw(_counted(content) if isinstance(content, str) else _said(content))
    damaged = draw(st.sampled_from([False, False, True]))
    if damaged:
        body = draw(_damaged(body))
    answer = draw(_written(status, body))
    return replace(answer, damaged=answer.damaged or damaged)


@st.composite
def _written(draw: st.DrawFn, status: int, body: bytes) -> Answer:
    head = f"HTTP/1.1 {status} OK\r\nContent-Length: {len(body)}\r\n".encode()
    how = draw(
        st.sampled_from(
            ["said"] * 12
            + [
                "status",
                "redirect",
                "line",
                "header",
                "length",
                "close",
                "chunks",
                "rubbish",
                "interim",
                "mute",
                "raw",
                "endless",
            ]
        )
    )
    if how == "status":
        return Answer(head.replace(str(status).encode(), str(draw(_STATUS)).encode(), 1) + b"\r\n" + body)
    if how == "redirect":
        return Answer(
            f"HTTP/1.1 307 See\r\nLocation: {draw(_TARGET)}\r\nContent-Length: 0\r\n\r\n".encode(
                "latin-1", "replace"
            )
        )
    if how == "line":
        return Answer(draw(_LINE) + b"\r\n\r\n" + body)
    if how == "header":
        return Answer(head + draw(_HEADER) + b"\r\n\r\n" + body)
    if how == "length":
        return Answer(head.replace(b"Length: ", b"Length: 9", 1) + b"\r\n" + body)
    if how in ("close", "chunks", "rubbish"):
        start = f"HTTP/1.1 {status} OK\r\n".encode()
        if how == "close":
            return Answer(start + b"\r\n" + body)
        return Answer(
            start
            + b"Transfer-Encoding: chunked\r\n\r\n"
            + (_chunks(body) if how == "chunks" else draw(_CHUNKED))
        )
    if how == "interim":
        return Answer(
            b"HTTP/1.1 100 Continue\r\nX: 1\r\n\r\n" * draw(st.sampled_from([1, 3, 20_000]))
            + head
            + b"\r\n"
            + body
        )
    if how == "mute":
        return Answer(b"")
    if how == "raw":
        return Answer(draw(_damaged(head + b"\r\n" + body)), damaged=True)
    if how == "endless":
        return Answer(*draw(_ENDLESS), pause=draw(st.sampled_from([0.0, 0.02])))
    return Answer(head + b"\r\n" + body)


class Routes(dict[str, Any]):
    """The answers for `serving`: a hostile answer for each drawn route, and an honest one for the others."""

    def __init__(self) -> None:
        super().__init__()
        self.url = ""
        self.damaged = False

    def become(self, draw: st.DrawFn, kind: str) -> None:
        """Become a server of this kind with some hostile answers."""
        self.clear()
        honest = KINDS[kind](self.url)
        if "router" in kind and draw(st.booleans()):
            honest.update(KINDS[draw(st.sampled_from(["vllm", "sglang"]))](self.url))
            honest.pop("GET /version", None)
        names = sorted(honest)
        hostile = draw(st.sets(st.sampled_from(names), min_size=1, max_size=3))
        self.damaged = False
        for name in names:
            status, content = honest[name]
            self[name] = (status, content)
            if name in hostile:
                answer = draw(answers(status, content))
                self.damaged = self.damaged or answer.damaged
                self[name] = answer.send

    def leaked(self, text: str) -> bool:
        """Return whether a text contains the key or characters that are not printable. A part of
        the key counts too, unless the answer was damaged.
        """
        low = text.lower()
        found = [form for form in _FORMS if form.lower() in low]
        found += [] if self.damaged else [part for part in _PARTS if part in low]
        return bool(found) or not text.isprintable()
