"""Find the function behind the name of a call: that of an import, a bound method, or an alias of these.

Nothing of the job is called or kept: local names are followed in the bytecode, global ones in the
dictionaries of modules. A parameter, or an attribute of an object, keeps the name in the source.
"""

from __future__ import annotations

import dis
import sys
from types import BuiltinFunctionType, CodeType, FunctionType, MethodDescriptorType, MethodType, ModuleType
from typing import Any

from stepprof.recording.evidence.call_names import call_name, loaded_name, names_of

_STORES = ("STORE_FAST", "STORE_DEREF", "STORE_NAME")
_MOST_ALIASES = 4
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType)


def called_name(code: CodeType, instruction: int) -> str | None:
    """Return the name of the function that an instruction calls, as the documentation of its library has it.

    Where that is not known, the name is that in the source; None: the instruction calls nothing.

    >>> from json import dumps as text_of
    >>> def pack(rows):
    ...     text = text_of
    ...     return text(rows)
    >>> target(pack.__code__, "text", globals())
    'json.dumps'
    """
    name = call_name(code, instruction)
    return None if name is None else target(code, name, _names_of(code))


def target(code: CodeType, name: str, names: dict[str, Any]) -> str:
    """Return the full name of what has a name in a function, whose global names are given."""
    for _ in range(_MOST_ALIASES):
        root, _, rest = name.partition(".")
        if root not in (*code.co_varnames, *code.co_cellvars):
            break
        assigned, imported = _assigned(code, root)
        if assigned is None:
            return name
        name = f"{assigned}.{rest}".rstrip(".")
        if imported:
            return name
    root, _, rest = name.partition(".")
    value = names.get(root)
    if isinstance(value, ModuleType):
        return f"{value.__name__}.{rest}".rstrip(".")
    if isinstance(value, _FUNCTIONS):
        return name if rest else _full(value, root)
    return _method(type(value), rest) or name


def _assigned(code: CodeType, name: str) -> tuple[str | None, bool]:
    """Return what a local name is, and whether it was imported; None: it has no single assignment."""
    instructions = list(dis.get_instructions(code))
    stores = [
        at
        for at, each in enumerate(instructions)
        if each.opname.startswith(_STORES) and name in names_of(each)
    ]
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if len(stores) != 1 or stores[0] == 0 or name in parameters:
        return None, False
    before = instructions[: stores[0]]
    if before[-1].opname in ("IMPORT_NAME", "IMPORT_FROM"):
        module = next(each for each in reversed(before) if each.opname == "IMPORT_NAME")
        last = before[-1]
        parts = str(module.argval).split(".")
        if last is module:
            return parts[0] if name == parts[0] else str(module.argval), True
        # `import a.b as c` takes `b` from `a`; `from a import b` names it once
        whole = len(parts) > 1 and last.argval == parts[-1]
        return str(module.argval) if whole else f"{module.argval}.{last.argval}", True
    return loaded_name(before), False


def _names_of(code: CodeType) -> dict[str, Any]:
    """Return the global names of the module that a code is in."""
    for module in list(sys.modules.values()):
        names = _namespace(module)
        if names.get("__file__") == code.co_filename:
            return names
    return {}


def _namespace(module: object) -> dict[str, Any]:
    """Return the names of a module without a call of its code; {}: it is another object, or None."""
    try:
        names: dict[str, Any] = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return {}
    return names


def _full(function: Any, name: str) -> str:
    """Return the name of a function with the module from which the job imports it."""
    owner = getattr(function, "__self__", None)
    if isinstance(function, MethodType):
        function = function.__func__
    if isinstance(function, BuiltinFunctionType) and owner is not None and not isinstance(owner, ModuleType):
        return f"{type(owner).__module__}.{function.__qualname__}"
    module = str(function.__module__)
    if function.__qualname__ != function.__name__:
        return f"{module}.{function.__qualname__}"
    package = module.partition(".")[0].lstrip("_")
    public = {
        each: _namespace(of)
        for each, of in list(sys.modules.items())
        if (each == package or each.startswith(f"{package}.")) and "._" not in each
    }
    found = [
        f"{each}.{known}"
        for each, names in public.items()
        for known in (function.__name__, name)
        if names.get(known) is function
    ] or [
        f"{each}.{known}"
        for each, names in public.items()
        for known, value in list(names.items())
        if value is function
    ]
    return min(found, key=len, default=f"{module}.{function.__name__}")


def _method(kind: type, name: str) -> str | None:
    """Return the name of a method in C of a library's object; None: it is none."""
    module = str(kind.__module__)
    package = module.partition(".")[0]
    if package in sys.stdlib_module_names or not name:
        return None
    found = next((of.__dict__[name] for of in kind.__mro__ if name in of.__dict__), None)
    return f"{module}.{kind.__qualname__}.{name}" if isinstance(found, MethodDescriptorType) else None
