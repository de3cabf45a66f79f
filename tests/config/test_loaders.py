"""The sources of a configuration, and the place of a mistake in error messages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from stepprof.config.config import Config, load
from stepprof.errors import ConfigError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


class TestFile:
    def test_the_example_of_the_documentation_is_read(self, here: Path) -> None:
        """The example in docs/configuration.md is read without an error."""
        text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
        (here / "stepprof.toml").write_text(re.search(r"```toml\n(output_dir.*?)```", text, re.DOTALL)[1])
        config = load("stepprof.toml", {})
        assert str(config.policy("rollout").steps) == "2,10-12,every 100"
        assert config.policy("rollout").engine.max_iterations == 32
        assert config.policy("actor").torch.record_shapes

    def test_a_syntax_error_names_its_line(self, here: Path) -> None:
        """The error about invalid TOML begins with the file and the line."""
        (here / "stepprof.toml").write_text("steps = 2\nranks = = 3\n")
        with pytest.raises(ConfigError, match=r"^stepprof\.toml:2: not valid TOML: .*line 2"):
            load("stepprof.toml", {})

    def test_a_syntax_error_at_the_end_has_the_last_line(self, here: Path) -> None:
        """If the document ends too early, the error names the last line."""
        (here / "stepprof.toml").write_text("ranks = 0\nsteps = [2, \n")
        with pytest.raises(ConfigError, match=r"^stepprof\.toml:2: not valid TOML"):
            load("stepprof.toml", {})

    def test_a_file_that_is_not_utf8_names_its_line(self, here: Path) -> None:
        """The error about a file that is not UTF-8 names the line."""
        (here / "stepprof.toml").write_bytes(b"steps = 2\noutput_dir = '\xff'")
        with pytest.raises(ConfigError, match=r"^stepprof\.toml:2: must be UTF-8"):
            load("stepprof.toml", {})

    def test_a_mistake_names_the_file(self, here: Path) -> None:
        """The error about a mistake in a file names the file before the key."""
        (here / "stepprof.toml").write_text('[roles.rollout]\nbackend = "Torch"')
        message = 'stepprof.toml: roles.rollout.backend = "Torch": unknown backend; did you mean "torch"?'
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}") as caught:
            load("stepprof.toml", {})
        assert caught.value.key == "roles.rollout.backend"

    def test_a_missing_file_names_the_nearest(self, here: Path) -> None:
        """The error about a missing file suggests a file with a similar name."""
        (here / "stepprof.toml").touch()
        with pytest.raises(
            ConfigError, match=re.escape('steprof.toml: there is no such file; did you mean "stepprof.toml"?')
        ):
            load("steprof.toml", {})

    def test_a_missing_folder_is_named(self, here: Path) -> None:
        """The error about a file in a missing folder names the folder."""
        with pytest.raises(
            ConfigError, match=r"nowhere/stepprof\.toml: there is no such file, nor a folder nowhere"
        ):
            load("nowhere/stepprof.toml", {})

    def test_a_missing_file_without_a_similar_name(self, here: Path) -> None:
        """If no file has a similar name, the error has no suggestion."""
        with pytest.raises(ConfigError, match=r"^x\.toml: there is no such file$"):
            load("x.toml", {})

    def test_a_folder_is_not_a_file(self, here: Path) -> None:
        """If the file is a folder, the error gives the reason of the operating system."""
        with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
            load(here, {})

    @pytest.mark.parametrize("name", ["x" * 5000, "a\0b"])
    def test_a_name_that_no_file_can_have(self, name: str) -> None:
        """A name that is too long, or has a NUL character, is an error of the configuration."""
        with pytest.raises(ConfigError):
            load(name, {})


class TestOmegaConf:
    def test_interpolations_are_resolved(self) -> None:
        """Interpolations in an OmegaConf node are resolved."""
        node = OmegaConf.create(
            {"steps": [2, 10], "ranks": "0-3", "roles": {"a": {"ranks": "${ranks}", "steps": None}}}
        )
        assert load(node, {}) == Config(steps="2,10", ranks="0-3", roles={"a": {"ranks": "0-3"}})

    def test_a_part_of_a_larger_node(self) -> None:
        """A part of an OmegaConf node may refer to values outside of that part."""
        node = OmegaConf.create({"trainer": {"every": 100}, "stepprof": {"steps": "every ${trainer.every}"}})
        assert 200 in load(node.stepprof, {}).policy(None).steps

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ("???", r'^roles\.actor\.steps = "\?\?\?": has no value; give one, or remove the key$'),
            ("${nowhere}", "^roles.actor.steps: cannot be resolved: Interpolation key 'nowhere' not found$"),
            ("${oc.env:NOWHERE}", "^roles.actor.steps: cannot be resolved: .*NOWHERE.* not found"),
        ],
    )
    def test_an_unresolvable_node_is_an_error(self, value: str, message: str) -> None:
        """A missing value or an unknown interpolation is an error that names its key, in one line."""
        with pytest.raises(ConfigError, match=message) as caught:
            load(OmegaConf.create({"roles": {"actor": {"steps": value}}}), {})
        assert "\n" not in str(caught.value)

    def test_variables_of_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A variable is text, and stands for the number or the truth value that it has. A folder stays text."""
        for name, value in {
            "SECONDS": "30",
            "SHARE": "2.5",
            "FLAG": "True",
            "STEPS": "2",
            "DIR": "7",
        }.items():
            monkeypatch.setenv(f"JOB_{name}", value)
        node = OmegaConf.create(
            {
                "max_seconds": "${oc.env:JOB_SECONDS}",
                "engine_stop_timeout_seconds": "${oc.env:JOB_SHARE}",
                "steps": "${oc.env:JOB_STEPS}",
                "output_dir": "${oc.env:JOB_DIR}",
                "torch": {"with_stack": "${oc.env:JOB_FLAG}"},
            }
        )
        found = load(node, {})
        assert (found.max_seconds, found.engine_stop_timeout_seconds, str(found.steps)) == (30, 2.5, "2")
        assert (str(found.output_dir), found.torch.with_stack) == ("7", True)

    def test_a_text_that_is_no_variable(self) -> None:
        """A quoted number that the job wrote itself is refused, as in a file."""
        with pytest.raises(ConfigError, match="max_seconds"):
            load(OmegaConf.create({"max_seconds": "30"}), {})


class TestEnvironment:
    def test_nothing_set_is_off(self) -> None:
        """Without a configuration and without variables, nothing is recorded."""
        assert load(None, {}).off

    def test_variables_alone(self) -> None:
        """Variables alone make a configuration."""
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
        """A variable has priority over the file that `$STEPPROF_CONFIG` names. An
        empty variable does not count.
        """
        (here / "stepprof.toml").write_text('steps = "2"\nranks = "0-3"')
        config = load(
            None, {"STEPPROF_CONFIG": "stepprof.toml", "STEPPROF_STEPS": "7", "STEPPROF_RANKS": " "}
        )
        assert config == Config(steps="7", ranks="0-3")

    def test_variables_do_not_change_a_given_configuration(self) -> None:
        """Variables do not change a configuration that the program passes."""
        config = Config(steps="2")
        assert load(config, {"STEPPROF_STEPS": "7"}) is config

    def test_the_real_environment_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without the argument `environ`, the environment of the process is read."""
        monkeypatch.setenv("STEPPROF_STEPS", "7")
        assert 7 in load().policy(None).steps

    @pytest.mark.parametrize("value", ["0", "false", "Off", "no"])
    def test_the_switch_turns_everything_off(self, value: str) -> None:
        """`STEPPROF=0` switches recording off, even if the configuration is broken."""
        for config in (None, Config(steps="all"), "missing.toml", {"stps": 3}):
            assert load(config, {"STEPPROF": value, "STEPPROF_STEPS": "5-2"}) == Config(enabled=False)

    @pytest.mark.parametrize("value", ["", "1", "on", "true", "yes"])
    def test_the_switch_on_changes_nothing(self, value: str) -> None:
        """`STEPPROF=1`, or an empty value, does not change the configuration."""
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
        """The error about a wrong variable names the variable."""
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
            load(None, environ)

    def test_every_wrong_variable_is_named(self, here: Path) -> None:
        """A misspelt name hides neither another one, nor wrong values of variables and of the file."""
        (here / "stepprof.toml").write_text("stps = 2")
        environ = {"STEPPROF_STEP": "2", "STEPPROF_RANK": "0", "STEPPROF_BACKEND": "Torch", "STEPPROF_CONFIG": "stepprof.toml"}  # fmt: skip
        with pytest.raises(ConfigError) as raised:
            load(None, environ)
        text = str(raised.value)
        assert all(name in text for name in ("$STEPPROF_STEP =", "$STEPPROF_RANK =", "$STEPPROF_BACKEND =", "stps = 2"))  # fmt: skip

    def test_a_mistake_in_the_file_names_variable_and_file(self, here: Path) -> None:
        """The error about a mistake in the file of `$STEPPROF_CONFIG` names the
        variable, the file and the key.
        """
        (here / "stepprof.toml").write_text("stps = 2")
        with pytest.raises(
            ConfigError,
            match=re.escape(
                '$STEPPROF_CONFIG = "stepprof.toml": stepprof.toml: stps = 2: unknown key; did you mean "steps"?'
            ),
        ):
            load(None, {"STEPPROF_CONFIG": "stepprof.toml"})

    def test_variables_of_others_are_left_alone(self) -> None:
        """Variables that only share the prefix are ignored."""
        assert load(None, {"STEPPROF_RUN_ID": "x", "STEPPROF_DASHBOARD_COLOUR": "blue"}) == Config()
