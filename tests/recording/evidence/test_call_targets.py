"""The functions behind names: imports, aliases and bound methods in the functions of this module."""

from __future__ import annotations

import ctypes
import datetime
import dis
import json as text
import pickle
import sys
from functools import partial
from io import BytesIO
from json import dumps as text_of
from os.path import join  # noqa: F401 - the name of a method too
from types import MethodType, ModuleType

import msgspec
import pytest
from msgspec.json import encode
from msgspec.json import encode as to_bytes

from stepprof.recording.evidence.call_targets import MOST, CallTargets

ENCODER = msgspec.json.Encoder()
dump = pickle.Pickler(BytesIO()).dump


now = datetime.datetime.now
maketrans = bytes.maketrans
bound = MethodType(partial(print), 1)


class Proxy:
    """An object that pretends to be another, as those of werkzeug and of `weakref`."""

    def __getattribute__(self, name):
        raise ReferenceError(name)


class Stored(ModuleType):
    """A module that reads its names from elsewhere."""

    def __getattribute__(self, name):
        raise RuntimeError(name)

    __dict__ = property(__getattribute__)


proxy = Proxy()
stored = Stored("stored")


def by_now(rows):
    now(rows)


def by_maketrans(rows):
    maketrans(rows, rows)


def by_called_partial(rows):
    bound(rows)


def by_proxy(rows):
    proxy.encode(rows)


def by_lazy(rows):
    stored.dumps(rows)


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


def by_submodule_inside(rows):
    import xml.sax

    xml.sax.parse(rows, rows)


def by_relative_import(rows):
    from .json import dumps

    dumps(rows)


def by_import_in_place_of_a_parameter(rows, *text):
    if rows:
        import json as text
    text(rows)


def by_local_alias(rows):
    one = text_of
    one(rows)


def by_local_or(rows, own):
    write = own or text_of
    write(rows)


def by_local_choice(rows):
    write = text_of if rows else encode
    write(rows)


def by_pair(rows):
    one, other = rows.save, text_of
    one(other)


def by_pair_of_imports(rows):
    from msgspec.json import decode as one
    from msgspec.json import encode as other

    one(other)


def by_choice_in_place(rows, own):
    (own or text).dumps(rows)


def by_constant(rows):
    ", ".join(rows)


def by_super(rows):
    super(rows, rows).encode(rows)


def in_closure():
    def encode(rows):
        return rows

    def call(rows):
        encode(rows)

    return call


by_free_variable = in_closure()


class Job:
    def by_zero_super(self, rows):
        super().encode(rows)


by_zero_super = Job.by_zero_super


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
        (by_renamed, "msgspec._core.json_encode"),
        (by_object, "msgspec.json.Encoder.encode"),
        (by_bound_method, "_pickle.Pickler.dump"),
        (by_import_inside, "msgspec.json.decode"),
        (by_module_inside, "msgspec.msgpack.encode"),
        (by_submodule_inside, "xml.sax.parse"),
        (by_pair_of_imports, "msgspec.json.decode"),
        (by_relative_import, "dumps"),
        (by_import_in_place_of_a_parameter, "text"),
        (by_local_alias, "one"),
        (by_local_or, "write"),
        (by_local_choice, "write"),
        (by_pair, "one"),
        (by_choice_in_place, "dumps"),
        (by_constant, "join"),
        (by_super, "super().encode"),
        (by_zero_super, "super().encode"),
        (by_free_variable, "encode"),
        (by_now, "datetime.datetime.now"),
        (by_maketrans, "maketrans"),
        (by_called_partial, "bound"),
        (by_proxy, "proxy.encode"),
        (by_lazy, "stored.dumps"),
        (by_parameter, "write"),
        (by_attribute, "job.write"),
        (by_one_of_two, "one"),
        (by_own_function, f"{__name__}.by_alias"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_the_function_behind_a_name(function, name) -> None:
    """A call has the name of the library's function; what only the running job knows keeps that in the source."""
    assert CallTargets()(function.__code__, last_call(function.__code__)) == name


def last_call(code) -> int:
    return [each.offset for each in dis.get_instructions(code) if each.opname.startswith("CALL")][-1]


def named(source: str, names: dict[str, object], monkeypatch) -> str | None:
    """Return the name of the last call of a module that has some names."""
    module = ModuleType("job")
    vars(module).update(names, __file__="/job/train.py")
    monkeypatch.setitem(sys.modules, "job", module)
    code = compile(source, "/job/train.py", "exec")
    return CallTargets()(code, last_call(code))


def test_names_that_no_module_has(monkeypatch) -> None:
    """Code that no loaded module contains has its names as the source writes them; what is no module is left out."""
    monkeypatch.setitem(sys.modules, "blocked", None)
    monkeypatch.setitem(sys.modules, "proxy", proxy)
    monkeypatch.setitem(sys.modules, "stored", stored)
    code = compile("write(1)", "/job/gone.py", "exec")
    assert CallTargets()(code, last_call(code)) == "write"


def test_names_in_the_body_of_a_class(monkeypatch) -> None:
    """A class has names of its own; a module has its global ones."""
    assert named("write(1)", {"write": text_of}, monkeypatch) == "json.dumps"
    code = next(each for each in compile("class A:\n write = 1\n write(1)", "/job/train.py", "exec").co_consts if hasattr(each, "co_code"))  # fmt: skip
    assert CallTargets()(code, last_call(code)) == "write"


class Definition(ctypes.Structure):
    """A function in C, as a binding of C++ makes it."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


DEFINITION = Definition(b"save", None, 8, None)
"""Lives longer than the functions that are made of it, which read it when they are freed. 8: one argument."""


@pytest.mark.parametrize(("module", "name"), [("lib", "lib.save"), (None, "write")])
def test_a_function_of_a_binding(module, name, monkeypatch) -> None:
    """The function has a record of its own as `__self__`. Its module is where it is from, if it has one."""
    create = ctypes.pythonapi.PyCFunction_NewEx
    create.restype, create.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
    function = create(ctypes.addressof(DEFINITION), object(), module)
    assert type(function) is type(len)
    assert named("write(1)", {"write": function}, monkeypatch) == name


def test_code_that_is_not_readable() -> None:
    """Code that Python's own disassembler does not read has no name, and stops nothing."""
    code = by_alias.__code__.replace(co_names=())
    assert CallTargets()(code, last_call(by_alias.__code__)) is None


def test_more_calls_than_the_limit() -> None:
    """In one capture, a limited number of functions is looked up; the others have the name in the source."""
    targets = CallTargets()
    source = "def f(rows):\n from json import dumps as write\n" + " write(rows)\n" * (MOST + 1)
    code = next(each for each in compile(source, __file__, "exec").co_consts if hasattr(each, "co_code"))
    calls = [each.offset for each in dis.get_instructions(code) if each.opname in ("CALL", "CALL_FUNCTION")]
    assert [targets(code, each) for each in calls] == ["json.dumps"] * MOST + ["write"]


def test_equal_code_of_two_files() -> None:
    """Two functions with the same code, in different files, may call different functions."""
    there = by_alias.__code__.replace(co_filename="/job/gone.py")
    targets, at = CallTargets(), last_call(by_alias.__code__)
    assert (targets(by_alias.__code__, at), targets(there, at)) == ("json.dumps", "text_of")
