"""Backends of other packages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepprof.config.config import Config
from stepprof.config.plugins import backend_names
from stepprof.errors import ConfigError


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the metadata of a package with the backends `oneapi` and `lonely`."""
    info = tmp_path / "stepprof_oneapi-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stepprof-oneapi\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[stepprof.backends]\noneapi = stepprof_oneapi:Backend\nlonely = stepprof_oneapi:Lonely\n"
        "[stepprof.backends.together]\noneapi = stepprof_oneapi:Backend\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("installed")
class TestPlugins:
    def test_the_name_of_a_plugin_is_valid(self) -> None:
        """A backend of a plug-in can be configured, alone or combined with another one."""
        assert "oneapi" in backend_names()
        assert Config(backend=["oneapi", "memory"]).policy(None).backend == ("oneapi", "memory")
        assert Config(backend="lonely").policy(None).backend == ("lonely",)

    def test_a_plugin_must_declare_that_it_can_be_combined(self) -> None:
        """A plug-in that does not declare that it can be combined is refused next to another backend."""
        message = (
            'backend = ["torch", "lonely"]: "lonely" does not declare that it can record together with others '
            '(entry-point group stepprof.backends.together); did you mean "lonely" alone?'
        )
        with pytest.raises(ConfigError, match=re.escape(message)):
            Config(backend=["torch", "lonely"])

    def test_a_misspelt_name_gets_a_suggestion(self) -> None:
        """The suggestion for a misspelt backend may be a plug-in."""
        message = 'backend = "oneap": unknown backend; did you mean "oneapi"? (one of: torch, npu, nsys, memory, null, lonely, oneapi)'
        with pytest.raises(ConfigError, match=re.escape(message)):
            Config(backend="oneap")

    def test_the_table_of_a_plugin_is_passed_on(self) -> None:
        """The options of a plug-in are in the table with its name, and a role inherits them key by key."""
        config = Config.from_mapping(
            {"oneapi": {"level": 1, "deep": False}, "roles": {"a": {"oneapi": {"deep": True}}, "b": {}}}
        )
        assert config.policy(None).options("oneapi") == {"level": 1, "deep": False}
        assert config.policy("a").options("oneapi") == {"level": 1, "deep": True}
        assert config.policy("b").options("oneapi") == {"level": 1, "deep": False}
        assert Config.from_mapping(config.to_dict()) == config


class TestWithoutPlugins:
    def test_an_unknown_table_is_an_unknown_key(self) -> None:
        """If no plug-in has the name of a table, the table is refused."""
        with pytest.raises(ConfigError, match=r"oneapi = .*: unknown key"):
            Config.from_mapping({"oneapi": {"level": 1}})
