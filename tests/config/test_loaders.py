"""The sources of a configuration, and the position of a mistake in error messages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from stepprof.config.config import Config, load
from stepprof.errors import ConfigError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


class TestFile:
    def test_the_example_of_the_documentation_is_read(self, here: Path) -> None:
        """Every key of the documented example is accepted."""
        text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
        (here / "stepprof.toml").write_text(re.search(r"```toml\n(output_dir.*?)```", text, re.DOTALL)[1])
        config = load("stepprof.toml", {})
        assert str(config.policy("rollout").steps) == "2,10-12,every 100"
        assert config.policy("rollout").engine.max_iterations == 32
        assert config.policy("actor").torch.record_shapes

    def test_a_syntax_error_names_its_line(self, here: Path) -> None:
        """File and line stand first, as compilers write them."""
        (here / "stepprof.toml").write_text("steps = 2\nranks = = 3\n")
        with pytest.raises(ConfigError, match=r"^stepprof\.toml:2: not valid TOML: .*line 2"):
            load("stepprof.toml", {})

    def test_a_syntax_error_at_the_end_has_the_last_line(self, here: Path) -> None:
        """Where TOML only knows the end of the document, the last line is named."""
        (here / "stepprof.toml").write_text("ranks = 0\nsteps = [2, \n")
        with pytest.raises(ConfigError, match=r"^stepprof\.toml:2: not valid TOML"):
            load("stepprof.toml", {})

    def test_a_file_that_is_not_utf8_names_its_line(self, here: Path) -> None:
        """Bytes that are no text are located too."""
        (here / "stepprof.toml").write_bytes(b"steps = 2\noutput_dir = '\xff'")
        with pytest.raises(ConfigError, match=r"^stepprof\.toml:2: must be UTF-8"):
            load("stepprof.toml", {})

    def test_a_mistake_names_the_file(self, here: Path) -> None:
        """The file stands before the key."""
        (here / "stepprof.toml").write_text('[roles.rollout]\nbackend = "Torch"')
        message = 'stepprof.toml: roles.rollout.backend = "Torch": unknown backend; did you mean "torch"?'
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}") as caught:
            load("stepprof.toml", {})
        assert caught.value.key == "roles.rollout.backend"

    def test_a_missing_file_names_the_nearest(self, here: Path) -> None:
        """A misspelt file name is met with the name that is there."""
        (here / "stepprof.toml").touch()
        with pytest.raises(
            ConfigError, match=re.escape('steprof.toml: there is no such file; did you mean "stepprof.toml"?')
        ):
            load("steprof.toml", {})

    def test_a_missing_folder_is_named(self, here: Path) -> None:
        """The message says that the folder does not exist either."""
        with pytest.raises(
            ConfigError, match=r"nowhere/stepprof\.toml: there is no such file, nor a folder nowhere"
        ):
            load("nowhere/stepprof.toml", {})

    def test_a_missing_file_without_a_similar_name(self, here: Path) -> None:
        """Without a similar name nothing is suggested."""
        with pytest.raises(ConfigError, match=r"^x\.toml: there is no such file$"):
            load("x.toml", {})

    def test_a_folder_is_not_a_file(self, here: Path) -> None:
        """The reason of the operating system is reported."""
        with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
            load(here, {})


class TestOmegaConf:
    def test_interpolations_are_resolved(self) -> None:
        """A node with interpolations reads as the plain data that they resolve to."""
        node = OmegaConf.create(
            {"steps": [2, 10], "ranks": "0-3", "roles": {"a": {"ranks": "${ranks}", "steps": None}}}
        )
        assert load(node, {}) == Config(steps="2,10", ranks="0-3", roles={"a": {"ranks": "0-3"}})

    def test_a_part_of_a_larger_node(self) -> None:
        """The subtree of an application's configuration may refer to what lies outside of it."""
        node = OmegaConf.create({"trainer": {"every": 100}, "stepprof": {"steps": "every ${trainer.every}"}})
        assert 200 in load(node.stepprof, {}).policy(None).steps

    @pytest.mark.parametrize("value", ["???", "${nowhere}"])
    def test_an_unresolvable_node_is_an_error(self, value: str) -> None:
        """A missing value or a broken interpolation is a mistake in the configuration."""
        with pytest.raises(ConfigError, match="the OmegaConf node cannot be resolved: "):
            load(OmegaConf.create({"steps": value}), {})


class TestEnvironment:
    def test_nothing_set_is_off(self) -> None:
        """Without a word nothing is recorded."""
        assert load(None, {}).off

    def test_variables_alone(self) -> None:
        """The variables make a configuration by themselves."""
        config = load(
            None,
            {
                "STEPPROF_STEPS": "2",
                "STEPPROF_RANKS": "all",
                "STEPPROF_BACKEND": "torch, memory",
                "STEPPROF_OUTPUT_DIR": "x",
            },
        )
        assert config == Config(steps="2", ranks="all", backend=["torch", "memory"], output_dir="x")

    def test_variables_go_on_top_of_the_file(self, here: Path) -> None:
        """What a variable sets wins over the file that $STEPPROF_CONFIG names; the rest is the file's."""
        (here / "stepprof.toml").write_text('steps = "2"\nranks = "0-3"')
        config = load(
            None, {"STEPPROF_CONFIG": "stepprof.toml", "STEPPROF_STEPS": "7", "STEPPROF_RANKS": " "}
        )
        assert config == Config(steps="7", ranks="0-3")

    def test_variables_do_not_change_a_given_configuration(self) -> None:
        """A configuration that the program gives is not changed from outside."""
        config = Config(steps="2")
        assert load(config, {"STEPPROF_STEPS": "7"}) is config

    def test_the_real_environment_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without an environment given it is the process's."""
        monkeypatch.setenv("STEPPROF_STEPS", "7")
        assert 7 in load().policy(None).steps

    @pytest.mark.parametrize("value", ["0", "false", "Off", "no"])
    def test_the_switch_turns_everything_off(self, value: str) -> None:
        """STEPPROF=0 wins over whatever is configured, even where that is broken."""
        for config in (None, Config(steps="all"), "missing.toml", {"stps": 3}):
            assert load(config, {"STEPPROF": value, "STEPPROF_STEPS": "5-2"}) == Config(enabled=False)

    @pytest.mark.parametrize("value", ["", "1", "on", "true", "yes"])
    def test_the_switch_on_changes_nothing(self, value: str) -> None:
        """STEPPROF=1 leaves the configuration as it is."""
        assert load({"steps": 2}, {"STEPPROF": value}) == Config(steps=2)

    @pytest.mark.parametrize(
        ("environ", "message"),
        [
            ({"STEPPROF": "maybe"}, '$STEPPROF = "maybe": expected "0" (everything off) or "1"'),
            (
                {"STEPPROF_STEPS": "5-2"},
                '$STEPPROF_STEPS = "5-2": the range 5-2 is empty; did you mean "2-5"?',
            ),
            (
                {"STEPPROF_BACKEND": "Torch"},
                '$STEPPROF_BACKEND = "Torch": unknown backend; did you mean "torch"?',
            ),
            (
                {"STEPPROF_STEP": "2"},
                '$STEPPROF_STEP = "2": unknown variable; did you mean "$STEPPROF_STEPS"?',
            ),
            ({"STEPPROF_CONFIG": "x.toml"}, '$STEPPROF_CONFIG = "x.toml": x.toml: there is no such file'),
        ],
    )
    def test_a_mistake_names_the_variable(self, here: Path, environ: dict[str, str], message: str) -> None:
        """The error says which variable to mend."""
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
            load(None, environ)

    def test_a_mistake_in_the_file_names_variable_and_file(self, here: Path) -> None:
        """The path to the mistake is reported in full."""
        (here / "stepprof.toml").write_text("stps = 2")
        with pytest.raises(
            ConfigError,
            match=re.escape(
                '$STEPPROF_CONFIG = "stepprof.toml": stepprof.toml: stps = 2: unknown key; did you mean "steps"?'
            ),
        ):
            load(None, {"STEPPROF_CONFIG": "stepprof.toml"})

    def test_variables_of_others_are_left_alone(self) -> None:
        """A variable that only shares the prefix is not an error."""
        assert load(None, {"STEPPROF_RUN_ID": "x", "STEPPROF_DASHBOARD_COLOUR": "blue"}) == Config()
