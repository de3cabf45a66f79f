"""Attach adapters as soon as their frameworks are imported, and keep the status of each."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator

import wrapt

from stepprof.instrument.context import cell
from stepprof.integrations.adapter import Adapter, is_tested, missing_names
from stepprof.integrations.patches import Patches
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.recording.session import current_session
from stepprof.redaction.messages import quoted
from stepprof_autoload import FRAMEWORKS as PACKAGES

_SHARED = {"lightning_fabric": "lightning", "miles": "slime", "pytorch_lightning": "lightning"}
"""Packages with an adapter in the module of another package."""
FRAMEWORKS = tuple(sorted({_SHARED.get(package, package) for package in PACKAGES}))
"""Modules of this package; each has a tuple ``ADAPTERS``."""

_lock = threading.RLock()
_registered: set[str] = set()
_attached: dict[str, Patches] = {}


def adapters() -> Iterator[Adapter]:
    """Yield every adapter of this package."""
    for framework in FRAMEWORKS:
        yield from importlib.import_module(f"stepprof.integrations.{framework}").ADAPTERS


def activate_all() -> None:
    """Register every adapter of this package."""
    for adapter in adapters():
        register(adapter)


def register(adapter: Adapter) -> None:
    """Attach an adapter now if its framework is imported, else right after its import. Idempotent."""
    with _lock:
        if adapter.name in _registered:
            return
        _registered.add(adapter.name)
    wrapt.register_post_import_hook(_when_imported(adapter), adapter.module)


def deactivate_all() -> None:
    """Undo the patches of every adapter. A framework that is imported later is left alone."""
    with _lock:
        _registered.clear()
        for name in list(_attached):
            _attached.pop(name).undo()
            cell.adapters.pop(name, None)
    _publish()


def attach(adapter: Adapter) -> bool:
    """Attach one adapter completely or not at all. Idempotent.

    Args:
        adapter: of a framework that is imported.

    Returns:
        Whether it is attached.
    """
    with _lock:
        if adapter.name in _attached:
            return True
        version = adapter.version()
        missing = missing_names(adapter)
        if missing:
            _refuse(adapter, version, "name_missing", f"not found: {', '.join(missing)}")
            return False
        patches = Patches(adapter.name)
        try:
            adapter.attach(patches)
        except ours(Exception) as error:  # the framework must not see the exception
            patches.undo()
            _refuse(adapter, version, "failed", f"{type(error).__name__}: {error}")
            return False
        _attached[adapter.name] = patches
        _accept(adapter, version)
        return True


def _when_imported(adapter: Adapter) -> Callable[[object], None]:
    def hook(_: object) -> None:
        try:
            if adapter.name in _registered:
                attach(adapter)
        except ours(Exception) as error:  # it would end the import
            logger.warning("adapter.refused", name=adapter.name, reason=f"{type(error).__name__}: {error}")

    return hook


def _accept(adapter: Adapter, version: str | None) -> None:
    if is_tested(adapter, version):
        _note(adapter, "attached", version)
        logger.info("adapter.attached", name=adapter.name, version=version)
        return
    reason = f"tested with {adapter.tested}"
    _note(adapter, "untested", version, reason)
    logger.warning("adapter.untested", name=adapter.name, version=version, reason=reason)


def _refuse(adapter: Adapter, version: str | None, status: str, reason: str) -> None:
    _note(adapter, status, version, reason)
    logger.warning("adapter.refused", name=adapter.name, version=version, reason=reason)


def _note(adapter: Adapter, status: str, version: str | None, reason: str | None = None) -> None:
    entry = {"status": status, "version": version, "reason": reason}
    cell.adapters[adapter.name] = {key: value for key, value in entry.items() if value is not None}
    _publish()


def note_model(name: str, model: object) -> None:
    """Note the model that a framework trains, for the header of the report.

    Args:
        name: of the adapter.
        model: its name or path; anything else is not noted.
    """
    if isinstance(model, str) and model and name in cell.adapters:
        cell.adapters[name] = {**cell.adapters[name], "model": quoted(model, 200)}
        _publish()


def _publish() -> None:
    session = current_session()
    if session is None:
        cell.publish_adapters()
    else:
        session.note_adapters()
