"""Groups of ranks that consist of the same actors."""

from __future__ import annotations

import sys
from types import SimpleNamespace

from stepprof.integrations.groups import is_ray_worker, merged


class TestMerged:
    def test_groups_of_the_same_actors_are_merged(self) -> None:
        """Groups of the same actors become one group with the roles of all; empty groups are left out."""
        first, second = SimpleNamespace(_actor_id="a"), SimpleNamespace(_actor_id="b")
        groups = [([first], ["actor"]), ([second], ["critic"]), ([], ["reward"]), ([first], ["ref"])]
        assert merged(groups) == [([first], ["actor", "ref"]), ([second], ["critic"])]


class TestWorker:
    def test_a_process_without_ray(self, monkeypatch) -> None:
        """A process that has not imported Ray is not a Ray worker."""
        monkeypatch.delitem(sys.modules, "ray", raising=False)
        assert not is_ray_worker()
