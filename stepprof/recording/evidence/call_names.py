"""Name the call that a frame is making, from its bytecode.

A function in C (`time.sleep`, `pickle.dumps`, the acquire of a lock) has no frame in Python. The
instruction of the innermost frame shows the call, and the instructions that begin at the same place
of the source show its name.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

_NAMES = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX")


def call_name(code: CodeType, instruction: int) -> str | None:
    """Return the name of the called function as the source writes it; None: the instruction calls
    nothing, or the name is not known.

    Args:
        code: the code of the frame.
        instruction: the frame's `f_lasti`; while a function in Python runs, that of the call or of its cache.

    >>> def wait(queue): return queue.get()
    >>> calls = [each.offset for each in dis.get_instructions(wait) if "CALL" in each.opname]
    >>> call_name(wait.__code__, calls[-1])
    'queue.get'
    """
    name = source_name(code, instruction)
    return None if name is None else name.lstrip(".")


def source_name(code: CodeType, instruction: int) -> str | None:
    """Return the same, with a dot before it if it is that of an attribute of an object without a name.

    >>> def text(rows): return ", ".join(rows)
    >>> calls = [each.offset for each in dis.get_instructions(text) if "CALL" in each.opname]
    >>> source_name(text.__code__, calls[-1])
    '.join'
    """
    before = [each for each in dis.get_instructions(code) if each.offset <= instruction]
    if not before:
        return None
    current = before.pop()
    return (_called if sys.version_info >= (3, 11) else _called_before_columns)(before, current)


def names_of(instruction: Any) -> tuple[str, ...]:
    """Return the names of an instruction: Python 3.13 has instructions with two."""
    value = instruction.argval
    return tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)


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
            name = names_of(each)[0]
        elif each.opname.startswith(_ATTRIBUTES):
            name += f".{each.argval}"
        elif each.opname == "LOAD_SUPER_ATTR":
            name = f"super().{each.argval}"
        elif each.opname in _CALLS and name:
            name += "()"
        elif each.opname.startswith("BINARY_") and name:
            name += "[]"
    return name or None


def _begin(instruction: Any) -> tuple[int, int] | None:
    """Return the line and column at which an instruction begins in the source."""
    position = getattr(instruction, "positions", None)
    if position is None or position.lineno is None or position.col_offset is None:
        return None
    return position.lineno, position.col_offset


def _called_before_columns(before: list[Any], instruction: Any) -> str | None:
    """Python 3.10, which keeps no columns: follow the stack back to where the object was pushed."""
    if instruction.opname in _OPERANDS:
        return _pushed(_below(before, instruction))
    if instruction.opname == "SETUP_WITH":
        return _method(_pushed(before), "__enter__")
    if instruction.opname == "FOR_ITER" and before and before[-1].opname == "GET_ITER":
        return _method(_pushed(before[:-1]), "__next__")
    return None


_OPERANDS: dict[str, Callable[[int], int]] = {
    "CALL_FUNCTION": lambda argument: argument,
    "CALL_METHOD": lambda argument: argument,
    "CALL_FUNCTION_KW": lambda argument: argument + 1,
    "CALL_FUNCTION_EX": lambda argument: 1 + (argument & 1),
    "BINARY_SUBSCR": lambda argument: 1,
}
"""How many values an instruction takes from the stack above the object that is called or indexed."""


def _below(before: list[Any], instruction: Any) -> list[Any]:
    """Return the instructions up to the one that pushed the object below the operands."""
    above = _OPERANDS[instruction.opname](instruction.arg)
    for position in range(len(before) - 1, -1, -1):
        if above == 0:
            # `(f if a else b)()`: one of several objects
            after = [*before, instruction][position + 1]
            return [] if after.is_jump_target else before[: position + 1]
        each = before[position]
        if each.opcode in dis.hasjrel or each.opcode in dis.hasjabs:
            return []  # `f(a if b else c)`: the order of the code is not that of the stack
        above -= dis.stack_effect(each.opcode, each.arg)
    return []


def _pushed(before: list[Any]) -> str | None:
    """Return the name of the object that the last instruction pushed."""
    if not before:
        return None
    last, earlier = before[-1], before[:-1]
    if last.opname.startswith(_NAMES):
        return str(last.argval)
    if last.opname in _ATTRIBUTES:
        owner = None if last.is_jump_target else _pushed(earlier)
        return f"{owner or ''}.{last.argval}"
    if last.opname in _OPERANDS:
        owner = _pushed(_below(earlier, last))
        return None if owner is None else owner + ("[]" if last.opname == "BINARY_SUBSCR" else "()")
    return None
