"""Requests during a job: their content, their owner, and their combination with the configuration."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stepprof.config.config import Config
from stepprof.errors import ConfigError
from stepprof.host.rank import Identity
from stepprof.recording.selector import MOST_ROLES, Selector
from stepprof.run.requests import Request, place_request, read_request, withdraw_request


def selector(rank: int = 0, world_size: int = 4, **config: object) -> Selector:
    return Selector(Config(**config), Identity(rank, world_size, "rank"), lambda: None)  # type: ignore[arg-type]


class TestRequest:
    def test_a_request_round_trips(self, tmp_path: Path) -> None:
        """A request that is written and read is unchanged."""
        request = Request.make(7, count=2, role="actor", ranks="0-3", torch={"with_stack": True})
        path = place_request(tmp_path, request)
        assert read_request(path, os.getuid()) == request

    def test_a_folder_that_is_a_link(self, tmp_path: Path) -> None:
        """No request is written behind a link."""
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "requests").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(PermissionError, match="it is a link"):
            place_request(tmp_path, Request.make(7))
        assert list((tmp_path / "elsewhere").iterdir()) == []

    def test_a_request_is_readable_by_its_user_only(self, tmp_path: Path) -> None:
        """Only the user can read the folder and the files of a request."""
        path = place_request(tmp_path, Request.make(7))
        withdraw_request(tmp_path, path.stem)
        modes = [item.stat().st_mode & 0o777 for item in (path.parent, path, path.with_suffix(".withdrawn"))]
        assert modes == [0o700, 0o600, 0o600]

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"step": -1}, "step = -1: too small; did you mean 0?"),
            ({"step": True}, "step = true: expected an integer"),
            ({"step": 10**19}, "too large; did you mean"),
            ({"count": 0}, "count = 0: too small; did you mean 1?"),
            ({"count": 10**6}, "count = 1000000: too large; did you mean 10000?"),
            ({"role": "../x"}, 'did you mean "x"'),
            ({"ranks": "0..3"}, 'did you mean "0-3"'),
            ({"backend": "Torch"}, 'did you mean "torch"'),
            ({"steps": "3"}, "steps = "),
            ({"enabled": False}, "enabled = false: unknown key"),
            ({"max_secs": 3}, 'did you mean "max_seconds"'),
            (
                {"torch": {"with_stak": True}},
                'torch.with_stak = true: unknown key; did you mean "with_stack"',
            ),
        ],
    )
    def test_a_request_is_checked_like_the_configuration(
        self, given: dict[str, object], message: str
    ) -> None:
        """An invalid request is refused when it is made. The error names the key and the
        value, and suggests a valid one.
        """
        with pytest.raises(ConfigError) as raised:
            Request.make(**{"step": 3, **given})  # type: ignore[arg-type]
        assert message in str(raised.value)

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"{",
            b"[" * 50_000,
            b"[]",
            b"null",
            b"{}",
            b'{"name": "../../x", "step": 1}',
            b'{"name": "x", "step": "1"}',
            b'{"name": "x", "step": 1, "changes": 3}',
            b'{"name": "x", "step": 1, "changes": {"torch": {"a": 1}}}',
            b'{"name": "x", "step": 1, "reason": ["a"]}',
            b'{"name": "x", "step": 1, "made_unix_ns": "now"}',
            b'{"name": "x", "step": 1, "command": "rm"}',
            b'{"name": "y", "step": 1}',
            b'{"name": "x"}',
            b'{"name": "x", "step": 1}' + b" " * 70_000,
            b"\xff\xfe\x00",
        ],
    )
    def test_a_file_that_is_none_is_refused(self, tmp_path: Path, content: bytes) -> None:
        """A damaged or hostile file raises a ConfigError."""
        path = tmp_path / "x.json"
        path.write_bytes(content)
        with pytest.raises(ConfigError):
            read_request(path, os.getuid())

    def test_links_pipes_and_foreign_files_are_refused(self, tmp_path: Path) -> None:
        """A link, a pipe, and a file of another user are refused."""
        path = place_request(tmp_path, Request.make(7))
        link, pipe = tmp_path / "link.json", tmp_path / "pipe.json"
        link.symlink_to(path)
        os.mkfifo(pipe)
        with pytest.raises(OSError, match="a link"):
            read_request(link, os.getuid())
        with pytest.raises(ConfigError, match="not a plain file"):
            read_request(pipe, os.getuid())
        with pytest.raises(ConfigError, match="only user"):
            read_request(path, os.getuid() + 1)

    def test_withdrawing_an_unknown_request_names_the_nearest(self, tmp_path: Path) -> None:
        """An unknown request cannot be withdrawn. A known one can be withdrawn once."""
        path = place_request(tmp_path, Request.make(7))
        with pytest.raises(ConfigError, match=f'did you mean "{path.stem}"'):
            withdraw_request(tmp_path, path.stem[:-1])
        with pytest.raises(ConfigError, match="no such request"):
            withdraw_request(tmp_path / "nowhere", "x")
        assert withdraw_request(tmp_path, path.stem)
        assert not withdraw_request(tmp_path, path.stem)

    def test_a_request_is_never_overwritten(self, tmp_path: Path) -> None:
        """A second request with the same name is refused, and the first one stays."""
        request = Request.make(7)
        place_request(tmp_path, request)
        with pytest.raises(FileExistsError):
            place_request(tmp_path, request)
        assert json.loads((tmp_path / "requests" / f"{request.name}.json").read_text())["step"] == 7


class TestSelectorWithRequests:
    def test_a_request_selects_its_steps(self) -> None:
        """A request selects steps that the configuration does not select. It also clears the
        selector's list of quiet roles.
        """
        asked = selector()
        assert asked.select(5, None) is None
        assert None in asked.quiet
        assert asked.request(Request.make(7, count=2, max_seconds=9))
        assert asked.quiet == {}
        assert asked.next_selected(5, None) == 7
        assert [asked.select(step, None) is not None for step in (6, 7, 8, 9)] == [False, True, True, False]
        policy = asked.select(7, "actor")
        assert policy is not None
        assert policy.max_seconds == 9

    def test_the_previous_step_is_not_quiet(self) -> None:
        """The step before a requested one is not quiet, because the target is armed at its end."""
        asked = selector()
        asked.request(Request.make(7))
        asked.select(3, None)
        assert asked.quiet[None] == (3, 6)

    def test_role_and_ranks(self) -> None:
        """Only the role and the ranks that the request names record."""
        here, there = selector(rank=0), selector(rank=3)
        request = Request.make(7, role="actor", ranks="3")
        for asked in (here, there):
            asked.request(request)
        assert here.select(7, "actor") is None
        assert there.select(7, "actor") is not None
        assert there.select(7, "rollout") is None

    def test_ranks_are_the_configured_ones_unless_named(self) -> None:
        """A request without ranks selects the ranks that the configuration records."""
        here, there = selector(rank=0), selector(rank=3)
        for asked in (here, there):
            asked.request(Request.make(7))
        assert here.select(7, None) is not None
        assert there.select(7, None) is None

    def test_each_rank_gets_its_requests_and_the_configured_step(self) -> None:
        """A request for other ranks does not change a configured step. One for
        this rank replaces its settings.
        """
        asked = selector(rank=0, steps="7", max_seconds=5)
        asked.request(Request.make(7, ranks="3", max_seconds=6))
        policy = asked.select(7, None)
        assert policy is not None
        assert policy.max_seconds == 5
        asked.request(Request.make(7, ranks="0", max_seconds=8))
        policy = asked.select(7, None)
        assert policy is not None
        assert policy.max_seconds == 8

    def test_roles_made_up_at_each_step(self) -> None:
        """If each step has a new role, the number of roles in memory is limited."""
        asked = selector()
        for step in range(MOST_ROLES + 10):
            assert asked.select(step, f"actor-{step}") is None
        assert len(asked.quiet) <= MOST_ROLES

    def test_the_first_request_for_a_step_holds(self) -> None:
        """Of two requests for a step, the one that was made first holds, in whatever order a rank reads
        them. After its withdrawal the other one holds.
        """
        first, second = Request.make(7, max_seconds=1), Request.make(7, max_seconds=2)
        for order in ((first, second), (second, first)):
            asked = selector()
            for request in order:
                asked.request(request)
            policy = asked.policy_at(7, None)
            assert policy is not None
            assert policy.max_seconds == 1
            asked.withdraw(first.name)
            policy = asked.policy_at(7, None)
            assert policy is not None
            assert policy.max_seconds == 2

    def test_a_withdrawn_request_no_longer_applies(self) -> None:
        """A withdrawn request selects no step. Withdrawing an unknown request, or
        adding one twice, is refused.
        """
        asked = selector()
        request = Request.make(7)
        assert not asked.withdraw(request.name)
        asked.request(request)
        assert not asked.request(request)
        assert asked.withdraw(request.name)
        assert asked.select(7, None) is None

    def test_a_disabled_role_stays_disabled(self) -> None:
        """A role that the configuration disables is not recorded on request."""
        asked = selector(roles={"ref": {"enabled": False}})
        asked.request(Request.make(7))
        assert asked.select(7, "ref") is None

    def test_conflicting_requests_are_refused(self) -> None:
        """A request is refused if it names a rank beyond the world or conflicts with the configuration."""
        asked = selector(join_steps=True)
        with pytest.raises(ConfigError, match="there is no rank 9 in a world of 4; did you mean 3"):
            asked.request(Request.make(7, ranks="9"))
        with pytest.raises(ConfigError, match="join_steps"):
            asked.request(Request.make(7, capture_per="region", regions=["a"]))
        assert asked.requests == ()
