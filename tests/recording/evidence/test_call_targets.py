"""The functions behind names: imports, aliases and bound methods in the functions of this module."""

from __future__ import annotations

import dis
import json as text
import pickle
import sys
from io import BytesIO
from json import dumps as text_of

import msgspec
import pytest
from msgspec.json import encode
from msgspec.json import encode as to_bytes

from stepprof.recording.evidence.call_targets import called_name

ENCODER = msgspec.json.Encoder()
dump = pickle.Pickler(BytesIO()).dump


def by_alias(rows):
    text_of(rows)


def by_module(rows):
    text.dumps(rows)


def by_name(rows):
    encode(rows)


def by_renamed(rows):
    to_bytes(rows)


def by_object(rows):
    ENCODER.encode(rows)


def by_bound_method(rows):
    dump(rows)


def by_import_inside(rows):
    from msgspec.json import decode as read

    read(rows)


def by_module_inside(rows):
    import msgspec.msgpack as packer

    packer.encode(rows)


def by_local(rows):
    coder = msgspec.json.Encoder()
    coder.encode(rows)


def by_local_method(rows):
    method = rows.model_dump_json
    method()


def by_local_alias(rows):
    one = text_of
    other = one
    other(rows)


def by_parameter(write, rows):
    write(rows)


def by_attribute(job):
    job.write(job)


def by_one_of_two(rows):
    one = text_of
    if rows:
        one = encode
    one(rows)


def by_own_function(rows):
    by_alias(rows)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (by_alias, "json.dumps"),
        (by_module, "json.dumps"),
        (by_name, "msgspec.json.encode"),
        (by_renamed, "msgspec.json.encode"),
        (by_object, "msgspec.json.Encoder.encode"),
        (by_bound_method, "_pickle.Pickler.dump"),
        (by_import_inside, "msgspec.json.decode"),
        (by_module_inside, "msgspec.msgpack.encode"),
        (by_local, "msgspec.json.Encoder().encode"),
        (by_local_method, "rows.model_dump_json"),
        (by_local_alias, "json.dumps"),
        (by_parameter, "write"),
        (by_attribute, "job.write"),
        (by_one_of_two, "one"),
        (by_own_function, f"{__name__}.by_alias"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_the_function_behind_a_name(function, name) -> None:
    """A call has the name of the library's function; what only the running job knows keeps that in the source."""
    calls = [each.offset for each in dis.get_instructions(function) if each.opname.startswith("CALL")]
    assert called_name(function.__code__, calls[-1]) == name


def test_names_that_no_module_has(monkeypatch) -> None:
    """Code that no loaded module contains has its names as the source writes them; what is no module is left out."""
    monkeypatch.setitem(sys.modules, "blocked", None)
    code = compile("write(1)", "/job/gone.py", "exec")
    calls = [each.offset for each in dis.get_instructions(code) if each.opname.startswith("CALL")]
    assert called_name(code, calls[-1]) == "write"
