"""Find the function behind the name of a call: that of an import, a bound method, or a global alias of these.

No code of the job runs, and none of its objects is kept: names are looked up in the dictionaries of modules,
and types are read by the descriptors of `type`. A variable of a function that is not imported there, or an
attribute of an object, keeps the name in the source.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections import defaultdict
from types import BuiltinFunctionType, CodeType, FunctionType, MethodDescriptorType, MethodType, ModuleType
from typing import Any

from stepprof.interrupts import ours
from stepprof.recording.evidence.call_names import call_name, names_of, source_name

MOST = 200
"""Maximum number of functions that are looked up in one capture. Further calls have the name in the source."""

_module_names: Any = vars(ModuleType)["__dict__"].__get__
_members: Any = type.__dict__["__dict__"].__get__
_classes: Any = type.__dict__["__mro__"].__get__
_module_of: Any = type.__dict__["__module__"].__get__
_qualname: Any = type.__dict__["__qualname__"].__get__
_offset_of_dict: Any = type.__dict__["__dictoffset__"].__get__


class CallTargets:
    """Names the functions that instructions call, each once, as the documentation of their library has them.

    Where that is not known, the name is that in the source; None: the instruction calls nothing. Never raises.

    >>> import json
    >>> def pack(rows):
    ...     from json import dumps as text_of
    ...     return text_of(rows)
    >>> calls = [each.offset for each in dis.get_instructions(pack) if each.opname.startswith("CALL")]
    >>> CallTargets()(pack.__code__, calls[-1])
    'json.dumps'
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, CodeType, int], str | None] = {}
        self._modules = _Modules()

    def __call__(self, code: CodeType, instruction: int) -> str | None:
        """Return the name of the function that an instruction calls."""
        key = code.co_filename, code, instruction  # equal code of two files is equal
        if key not in self._known:
            try:
                self._known[key] = self._name(code, instruction)
            except ours(Exception):  # bytecode that is not Python's: the rest of the evidence is worth more
                self._known[key] = None
        return self._known[key]

    def _name(self, code: CodeType, instruction: int) -> str | None:
        name = source_name(code, instruction)
        if name is None or name.startswith(".") or len(self._known) >= MOST:
            return call_name(code, instruction)
        try:
            return self._target(code, name) or name
        except ours(Exception):
            return name

    def _target(self, code: CodeType, name: str) -> str | None:
        """Return the full name of what has a name in a function; None: it is not known."""
        root, _, rest = name.partition(".")
        if root in code.co_varnames:
            imported = _imported(code, root)
            return imported and f"{imported}.{rest}".rstrip(".")
        if root in (*code.co_cellvars, *code.co_freevars) or _is_class(code):
            return None
        value = self._modules.of_file(code.co_filename).get(root)
        kind = type(value)
        if issubclass(kind, ModuleType):
            return _joined(_names_in(value).get("__name__"), rest)
        if issubclass(kind, (FunctionType, BuiltinFunctionType, MethodType)):
            return None if rest else self._full(value, root)
        # an attribute of the object may hide the method
        return _method(kind, rest, libraries_only=True) if rest and _offset_of_dict(kind) == 0 else None

    def _full(self, function: Any, alias: str) -> str | None:
        """Return the name of a function with the module from which the job imports it."""
        if type(function) is MethodType:
            function = function.__func__
            if type(function) is not FunctionType:  # any object that can be called
                return None
        name = function.__name__
        if type(function) is FunctionType:
            if function.__qualname__ != name:
                return _joined(function.__module__, function.__qualname__)
        elif issubclass(type(owner := function.__self__), type):
            return _joined(_module_of(owner), f"{_qualname(owner)}.{name}")
        elif (method := _method(type(owner), name)) is not None:
            return method
        return self._modules.public_name(function, (name, alias)) or _joined(function.__module__, name)


class _Modules:
    """The names of the modules that are loaded. The modules are the job's, and not kept."""

    def __init__(self) -> None:
        self._by_file: dict[str, str] = {}
        self._by_package: defaultdict[str, list[str]] = defaultdict(list)
        for name, module in list(sys.modules.items()):
            file = _names_in(module).get("__file__")
            if type(name) is not str:
                continue
            if type(file) is str:
                self._by_file.setdefault(file, name)
            if name.count(".") < 2 and "._" not in name:  # `torch.nn`: deeper ones are many
                self._by_package[name.partition(".")[0]].append(name)

    def of_file(self, file: str) -> dict[str, Any]:
        """Return the global names of the module of a file; {}: there is none."""
        return _names_in(sys.modules.get(self._by_file.get(file, "")))

    def public_name(self, function: Any, names: tuple[str, ...]) -> str | None:
        """Return the shortest name of a function in the public modules of its package; None: it has none."""
        if type(function.__module__) is not str:
            return None
        package = function.__module__.partition(".")[0].lstrip("_")
        for module in sorted(self._by_package.get(package, ()), key=len):
            known = _names_in(sys.modules.get(module))
            for name in names:
                if known.get(name) is function:
                    return f"{module}.{name}"
        return None


def _names_in(module: object) -> dict[str, Any]:
    """Return the names in a module; {}: it is no module. Its class may make attributes, and load it for that."""
    return (_module_names(module) if issubclass(type(module), ModuleType) else None) or {}


def _joined(module: object, name: str) -> str | None:
    """Return the name of something in a module; None: the module is not known."""
    return f"{module}.{name}".rstrip(".") if type(module) is str else None


def _method(kind: type, name: str, libraries_only: bool = False) -> str | None:
    """Return the name of a method in C of a type; None: it is none."""
    of = next((each for each in _classes(kind) if name in _members(each)), object)
    module = _module_of(of)
    if type(_members(of).get(name)) is not MethodDescriptorType or type(module) is not str:
        return None
    if libraries_only and module.partition(".")[0] in sys.stdlib_module_names:
        return None
    return f"{module}.{_qualname(of)}.{name}"


def _is_class(code: CodeType) -> bool:
    """Return whether code is the body of a class, whose names are not those of the module."""
    return not code.co_flags & inspect.CO_OPTIMIZED and code.co_name != "<module>"


def _imported(code: CodeType, name: str) -> str | None:
    """Return what a function imports as a local name; None: it is a parameter, or not an absolute import alone."""
    flags = code.co_flags
    variadic = bool(flags & inspect.CO_VARARGS) + bool(flags & inspect.CO_VARKEYWORDS)
    if name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + variadic]:
        return None
    instructions = [each for each in dis.get_instructions(code) if each.opname != "EXTENDED_ARG"]
    stores = [at for at, each in enumerate(instructions) if name in _stored(each)]
    if len(stores) != 1 or _stored(instructions[stores[0]])[0] != name:
        return None
    before = instructions[: stores[0]]
    if not before or before[-1].opname not in ("IMPORT_NAME", "IMPORT_FROM"):
        return None
    at = max(at for at, each in enumerate(before) if each.opname == "IMPORT_NAME")
    level, names, module = (each.argval for each in before[at - 2 : at + 1])
    if level != 0:
        return None
    if before[-1].opname == "IMPORT_NAME":
        return str(module).partition(".")[0]
    # `import a.b as c` has no names
    return f"{module}.{before[-1].argval}" if names else str(module)


def _stored(instruction: Any) -> tuple[str, ...]:
    """Return the local names that an instruction assigns, that of the topmost value first."""
    if not instruction.opname.startswith(("STORE_FAST", "STORE_DEREF")):
        return ()
    return names_of(instruction)[: instruction.opname.count("STORE")]
