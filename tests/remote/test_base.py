"""The contract of a driver: its defaults, and how `attach` refuses a driver that breaks it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import stepprof
from stepprof.errors import ConfigError
from stepprof.remote.base import EngineDriver, EngineWindow, Stopped
from stepprof.remote.kinds import _installed

PLUGIN = """
from stepprof.remote.base import EngineDriver

class Engine:
    def __init__(self, driver):
        self.driver = driver

class Kind:
    def recognises(self, target):
        return isinstance(target, Engine)

    def connect(self, target, **options):
        return globals()[target.driver]()

class Duck:
    kind, name, key = "duck", "duck", "duck"

class Half(EngineDriver):
    kind = "half"

    async def arm(self, window): pass
    async def start(self, window): pass

class Nameless(Half):
    async def stop(self, window): pass
    async def abort(self): pass
"""


class Smallest(EngineDriver):
    kind, name, key = "smallest", "one", "object:1"

    async def arm(self, window: EngineWindow) -> None:
        pass

    async def start(self, window: EngineWindow) -> None:
        pass

    async def stop(self, window: EngineWindow) -> Stopped:
        return Stopped()

    async def abort(self) -> None:
        pass


@pytest.fixture
def attach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that attaches an engine whose plug-in makes this driver."""
    folder = tmp_path / "plugin"
    info = folder / "driver_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: driver-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[stepprof.engines]\nbroken = driver_plugin:Kind\n")
    (folder / "driver_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(folder)
    import driver_plugin

    yield lambda driver: stepprof.attach(driver_plugin.Engine(driver), role="rollout")
    _installed.cache_clear()


class TestContract:
    def test_a_driver_that_does_not_derive_is_refused(self, attach) -> None:
        """A driver that does not derive from EngineDriver is refused; the error names the kind that made
        it.
        """
        with pytest.raises(
            ConfigError, match=r"driver_plugin.Kind.connect\(\) returned Duck: must derive from"
        ):
            attach("Duck")

    def test_a_driver_that_lacks_a_method_cannot_be_instantiated(self, attach) -> None:
        """Python's own TypeError names the class and the missing methods."""
        with pytest.raises(TypeError, match=r"Half.*abort.*stop"):
            attach("Half")

    def test_a_driver_without_a_name_is_refused(self, attach) -> None:
        """The error names the attributes without a default that the driver has not set."""
        with pytest.raises(ConfigError, match="returned Nameless: must set name, key"):
            attach("Nameless")


class TestDefaults:
    def test_attributes(self) -> None:
        """By default a driver has no host, no loop, no ranks and no folder, and no special abilities."""
        driver = Smallest()
        assert (driver.host, driver.loop, driver.workers, driver.rank, driver.waiting, driver.writes_to) == (
            None,
        ) * 6
        assert (driver.inside, driver.runs_loop, driver.listens) == (False,) * 3

    def test_an_instance_may_override_them(self) -> None:
        """An instance can set an attribute, because a driver often learns its ranks only when it is made."""
        driver = Smallest()
        driver.workers = 8  # type: ignore[misc]
        assert driver.workers == 8

    def test_methods(self) -> None:
        """By default a driver expands to itself, has no clock, and cannot report a recovery. The other
        methods do nothing.
        """
        driver, window = Smallest(), None

        async def call() -> tuple:
            await driver.announce(1, [(1, None)])
            assert not driver.announce_now(2, [])
            await driver.enter(window)
            await driver.exit(window)
            driver.retire()
            await driver.close(1.0, 1.0)
            return list(await driver.expand()), await driver.clock(), driver.recovered()

        assert asyncio.run(call()) == ([driver], None, None)
