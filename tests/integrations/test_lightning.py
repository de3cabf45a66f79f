"""Callbacks of Lightning without the framework; tests/real/integrations has the real one."""

from __future__ import annotations

import pickle

from stepprof.integrations.lightning import _FabricEvents


def test_fabric_may_pickle_its_callbacks() -> None:
    """Fabric pickles itself with its callbacks for each rank that it spawns. A rank begins with callbacks that have counted nothing."""
    events = _FabricEvents()
    events._finished = 3
    copy = pickle.loads(pickle.dumps(events))
    assert (type(copy), copy._finished) == (_FabricEvents, 0)
