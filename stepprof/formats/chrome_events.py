r"""Convert annotations to trace events, in JSON that every viewer reads.

A region that awaits, a window of another step, or an attribute does not fit on a thread's stack of
slices. They become asynchronous events, instants and counters of the category ``stepprof``, or
``stepprof.attributes`` if the stack has the region itself. Viewers have these limits:

* Slices of one thread that overlap without nesting are dropped. So intervals are pairs of begin and end, each with its own id.
* A negative ``ts`` is dropped, and absolute microseconds do not fit into a float. So times are relative to the base of the file, with exactly three decimals.
* Perfetto does not decode ``\u`` in names, and loses the whole file over a string that ends in a backslash. NaN is no JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping

from stepprof.interrupts import ours
from stepprof.run.model import Annotation

_DEEPEST = 8  # attributes are small; a list that contains itself has no end


def events(
    annotations: Iterable[Annotation], base_unix_ns: int, pid: int, metadata: Mapping[str, object]
) -> Iterator[bytes]:
    """Yield each event as JSON without a comma.

    `metadata` gives the step and role of annotations that state none. `pid` is the process of the
    annotations' threads.
    """
    common = {key: metadata[key] for key in ("step", "role") if key in metadata}
    for number, note in enumerate(annotations):
        args: dict[str, object] = {**common, **note.attributes}
        if note.error:
            args["error"] = True
        begin = _time(note.start_unix_ns - base_unix_ns)
        on_stack = note.kind == "attributes"
        category = b"stepprof.attributes" if on_stack else b"stepprof"
        place = b'"cat":"%b","name":%b,"pid":%d,"tid":%d' % (
            category,
            encoded(note.name),
            pid,
            note.thread,
        )
        if note.kind == "counter":
            yield b'{"ph":"C",%b,"ts":%b,"args":%b}' % (place, begin, encoded(_series(note.attributes)))
        elif note.kind == "mark":
            yield b'{"ph":"i","s":"t",%b,"ts":%b,"args":%b}' % (place, begin, encoded(args))
        else:
            end = _time(max(note.start_unix_ns, note.end_unix_ns) - base_unix_ns)
            args.setdefault(
                "kind", "region" if on_stack else note.kind
            )  # an attribute of that name is the user's
            # local to the process: Perfetto does not show the intervals of a global id among the process's own tracks
            place = b'%b,"id2":{"local":"0x%x"}' % (place, number)
            yield b'{"ph":"b",%b,"ts":%b,"args":%b}' % (place, begin, encoded(args))
            yield b'{"ph":"e",%b,"ts":%b}' % (place, end)


def _time(relative_ns: int) -> bytes:
    """Return microseconds with three decimals. A float of absolute microseconds would not be exact.
    Viewers drop negative times.
    """
    relative_ns = max(relative_ns, 0)
    return b"%d.%03d" % divmod(relative_ns, 1000)


def _series(attributes: Mapping[str, object]) -> dict[str, object]:
    """Return the values that a counter draws: its ``value``, or all of its numbers if it has no such attribute."""
    numbers: dict[str, object] = {
        key: value
        for key, value in attributes.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
    return {"value": numbers["value"]} if "value" in numbers else numbers


def encoded(value: object) -> bytes:
    """Return `value` as UTF-8 JSON; anything that JSON cannot represent becomes a string.

    >>> encoded({"loss": float("nan"), "path": 'C:\\\\'}).decode()
    '{"loss": "nan", "path": "C:\\\\\\\\ "}'
    """
    return json.dumps(_plain(value), ensure_ascii=False).encode("utf-8", "replace")


def _plain(value: object, depth: int = 0) -> object:
    if isinstance(value, str):
        # Perfetto loses a whole file over one string that ends in a backslash
        return f"{value} " if value.endswith("\\") else str(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth < _DEEPEST and isinstance(value, Mapping):
        return {str(_plain(str(key))): _plain(item, depth + 1) for key, item in value.items()}
    if depth < _DEEPEST and isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth + 1) for item in value]
    return _plain(_text(value))


def _text(value: object) -> str:
    try:
        return str(value)
    except ours(Exception) as error:  # a user's __str__ fails: a trace is not lost over one attribute
        return f"<{type(value).__name__}: {type(error).__name__}>"
