"""Name the call that a frame is making, from its bytecode.

A function in C (`time.sleep`, `pickle.dumps`, the acquire of a lock) has no frame in Python. The
instruction of the innermost frame shows the call, and the instructions that begin at the same place
of the source show its name.
"""

from __future__ import annotations

import dis
from types import CodeType
from typing import Any

__all__ = ["call_name"]

_NAMES = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_SUPER_ATTR")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")


def call_name(code: CodeType, instruction: int) -> str | None:
    """Return the name of the called function as the source writes it; None: the instruction calls
    nothing, or Python before 3.11.

    Args:
        code: the code of the frame.
        instruction: the frame's `f_lasti`.

    >>> def wait(queue): return queue.get()
    >>> call = [each.offset for each in dis.get_instructions(wait) if each.opname == "CALL"]
    >>> {call_name(wait.__code__, offset) for offset in call} <= {"queue.get"}
    True
    """
    before: list[Any] = []
    for each in dis.get_instructions(code):
        if each.offset == instruction:
            return _called(before, each)
        before.append(each)
    return None


def _called(before: list[Any], instruction: Any) -> str | None:
    if "CALL" in instruction.opname:
        return _name(before, instruction)
    # the place of these two is that of the statement: what came before them made the object
    if instruction.opname == "BEFORE_WITH" and before:
        return _method(_name(before, before[-1]), "__enter__")
    if instruction.opname == "FOR_ITER" and len(before) > 1:
        return _method(_name(before, before[-2]), "__next__")
    return None


def _method(name: str | None, method: str) -> str | None:
    return None if name is None else f"{name}.{method}"


def _name(before: list[Any], call: Any) -> str | None:
    """Return the name that is loaded at the place of a call."""
    begin = _begin(call)
    if begin is None:
        return None
    name = ""
    for each in before:
        if _begin(each) != begin:
            continue
        if each.opname.startswith(_NAMES):
            name = str(each.argval)
        elif each.opname.startswith(_ATTRIBUTES):
            name += f".{each.argval}"
        elif each.opname == "CALL" and name:
            name += "()"
        elif each.opname.startswith("BINARY_") and name:
            name += "[]"
    return name.lstrip(".") or None


def _begin(instruction: Any) -> tuple[int, int] | None:
    """Return the line and column at which an instruction begins in the source."""
    position = getattr(instruction, "positions", None)
    if position is None or position.lineno is None or position.col_offset is None:
        return None
    return position.lineno, position.col_offset
