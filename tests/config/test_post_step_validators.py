"""The keys for the work after a recording: a command, an upload target, a budget."""

from __future__ import annotations

import json

import pytest
import runs

from stepprof.cli.main import main
from stepprof.config.config import Config
from stepprof.config.loaders import FACTS, misspelt, overrides
from stepprof.errors import ConfigError
from stepprof.run.requests import Request

MISTAKES = [
    ({"on_complete": ""}, 'on_complete = "": expected a command'),
    ({"on_complete": []}, "on_complete = []: expected a command"),
    ({"on_complete": ["a", 3]}, "expected a command"),
    ({"on_complete": 3}, "on_complete = 3: expected a command"),
    ({"on_complete": "say 'x"}, "cannot be split into arguments: No closing quotation"),
    (
        {"on_complete": "a | b"},
        '"|" is shell syntax, but no shell runs the command; did you mean ["sh", "-c", …]?',
    ),
    ({"on_complete": "a $STEPPROF_STEP"}, '"$STEPPROF_STEP" is shell syntax'),
    ({"on_complete": "a\0b"}, "has a NUL character"),
    ({"on_complete_when": "steps"}, 'on_complete_when = "steps": not known; did you mean "step"?'),
    ({"on_complete_timeout_seconds": 0}, "expected a finite number of seconds above 0"),
    ({"upload": 3}, "upload = 3: expected a URL"),
    ({"upload": "s4://bucket"}, 'upload = "s4://bucket": unknown scheme; did you mean "s3"?'),
    ({"upload": "gcz://bucket"}, "unknown scheme; did you mean "),
    ({"upload": "https://host/x"}, '"https://host/x": cannot be written to; must be a writable scheme'),
    ({"upload": "/mnt/x"}, 'did you mean "file:///mnt/x"?'),
    ({"upload": "bucket/x"}, "expected a URL"),
    ({"upload": "file://x"}, 'expected an absolute path; did you mean "file:///x"?'),
    ({"upload": "file:///x/../y"}, "leads out of its folder"),
    ({"upload": "s3://"}, "names no place"),
    ({"upload": "s3:///x"}, "names no place"),
    ({"upload": "simplecache::s3://b"}, "expected one URL, not a chain"),
    ({"keep_steps": 0}, "keep_steps = 0: too small; did you mean 1?"),
    ({"keep_bytes": "0"}, "keep_bytes"),
    ({"roles": {"actor": {"upload": "s3://b"}}}, "roles.actor.upload"),
    ({"uplaod": "s3://b"}, 'unknown key; did you mean "upload"?'),
]


class TestKeys:
    @pytest.mark.parametrize(("mapping", "message"), MISTAKES, ids=[message[:40] for _, message in MISTAKES])
    def test_mistakes(self, mapping, message) -> None:
        """A mistake raises a ConfigError when the configuration is read. Where possible the
        error suggests the correction.
        """
        with pytest.raises(ConfigError) as caught:
            Config.from_mapping(mapping)
        assert message in str(caught.value)

    @pytest.mark.parametrize(
        "url",
        [
            "sftp://me:hunter2@host/x",
            "s3://key:hunter2@bucket",
            "s3://b/x?sig=hunter2",
            "s3://b/x;token=hunter2",
            "s3://b/token=hunter2",
            "sftp://ghp_hunter2hunter2hunter2@host/x",
        ],
    )
    def test_a_secret_is_refused_and_not_repeated(self, url) -> None:
        """A URL with a password or a query is refused, because the run stores its configuration. The error
        does not repeat the secret.
        """
        with pytest.raises(ConfigError, match="password or a query") as caught:
            Config(upload=url)
        assert "hunter2" not in str(caught.value)

    @pytest.mark.parametrize(
        "url",
        [
            "https://me:hunter2@host/v1/traces",
            "https://hunter2@host/v1/traces",
            "https://host/v1/traces?api_key=hunter2",
            "https://host?hunter2",
            "https://host/v1/traces#hunter2",
            "https://host/v1;token=hunter2",
            "https://host/ghp_hunter2hunter2hunter2/v1",
        ],
    )
    def test_a_secret_in_the_endpoint(self, url) -> None:
        """The endpoint of OpenTelemetry has no password, query or key; the error does not repeat the secret."""
        with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_HEADERS") as caught:
            Config.from_mapping({"otel": {"endpoint": url}})
        assert "hunter2" not in str(caught.value)

    def test_valid_settings_are_accepted(self) -> None:
        """Valid settings are accepted, and are unchanged after writing and reading."""
        config = Config(
            on_complete="notify 'a b'", upload="abfs://box@account.host/x/", keep_steps=3, keep_bytes="1GiB"
        )
        assert config.on_complete == ("notify", "a b")
        assert (config.upload, config.keep_bytes) == ("abfs://box@account.host/x", 2**30)
        assert Config.from_mapping(json.loads(json.dumps(config.to_dict()))) == config
        assert Config(on_complete=["sh", "-c", "a | b $X"]).on_complete[-1] == "a | b $X"

    @pytest.mark.parametrize("key", ["on_complete", "on_complete_when", "upload", "keep_steps", "keep_bytes"])
    def test_a_request_sets_none_of_it(self, key, tmp_path, capsys) -> None:
        """A request for a recording can set no command, upload or deletion, neither
        by a key nor inside a mapping.
        """
        value = {"on_complete": ["touch", str(tmp_path / "owned")], "upload": "file:///tmp/x"}.get(key, 1)
        with pytest.raises(ConfigError, match=f"{key} = .*unknown key"):
            Request.make(7, **{key: value})
        made = {**Request.make(7).to_dict(), "changes": {key: value}}
        with pytest.raises(ConfigError, match="unknown key"):
            Request.read(made)
        with pytest.raises(ConfigError):
            Request.read({**made, "changes": {key: {"command": value}}})
        with pytest.raises(ConfigError):
            Request.read({**made, "changes": {"torch": {key: value}}})
        runs.make_run(tmp_path)
        assert main(["trigger", str(tmp_path / "r"), "--step", "7", "--set", f"{key}=1"]) != 0
        assert "unknown key" in capsys.readouterr().err

    def test_variables_with_facts_set_no_keys(self) -> None:
        """The variables that a command gets set no keys, so that the command can use stepprof
        itself. A wrong name is refused.
        """
        environ = {**dict.fromkeys(FACTS, "x"), "STEPPROF_RUN_ID": "r"}
        assert list(overrides(environ)) == list(misspelt(environ)) == []
        assert ["STEPPROF_STEPS" in str(error) for error in misspelt({"STEPPROF_STEP": "2"})] == [True]
