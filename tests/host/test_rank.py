"""How the rank of a process is found."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from stepprof.errors import ConfigError
from stepprof.host.rank import Identity, find_identity


class Index:
    """An integer of another type, as of numpy."""

    def __init__(self, number) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


def module(monkeypatch, name, **members) -> None:
    """Install a module with these members only."""
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(**members))


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch) -> None:
    """Remove torch and ray from the loaded modules."""
    for name in ("torch", "ray"):
        monkeypatch.delitem(sys.modules, name, raising=False)


SRUN = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "16", "SLURM_PROCID": "5"}
MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "2", "PMIX_NAMESPACE": "1"}
MONARCH = "monarch._src.actor.actor_mesh"
LIGHTNING = {"MASTER_ADDR": "localhost", "MASTER_PORT": "1", "WORLD_SIZE": "2"}


class TestGiven:
    def test_a_given_rank_comes_first(self) -> None:
        """A rank that the caller passes has priority over the launcher's variables."""
        found = find_identity(3, 8, {"RANK": "1", "WORLD_SIZE": "2"})
        assert found == Identity(3, 8, "rank")
        assert (found.final, found.records) == (True, True)

    def test_integers_of_numpy_are_accepted(self) -> None:
        """Integers of other types, as of numpy, are accepted."""
        assert find_identity(Index(3), Index(8), {}) == Identity(3, 8, "rank")

    def test_a_world_without_a_rank(self) -> None:
        """If only the world size is passed, the rank comes from the launcher, or else is 0 for now."""
        assert find_identity(None, 8, {}) == Identity(0, 8, "default", final=False)
        assert find_identity(None, 8, {"RANK": "3"}) == Identity(3, 8, "$RANK")

    @pytest.mark.parametrize(
        ("name", "value"), [("rank", "3"), ("rank", 1.5), ("rank", True), ("world_size", "8")]
    )
    def test_an_invalid_rank_is_refused(self, name, value) -> None:
        """The error names the argument with the invalid value."""
        arguments = {"rank": 0, "world_size": 8, name: value}
        with pytest.raises(ConfigError, match=f"^{name} = .*: expected an integer"):
            find_identity(arguments["rank"], arguments["world_size"], {})

    @pytest.mark.parametrize(
        ("rank", "world", "message"),
        [
            (8, 8, r"rank = 8 \(rank\): a world of 8 has the ranks 0 to 7; did you mean 7?"),
            (-1, 4, r"rank = -1 \(rank\): a world of 4 has the ranks 0 to 3; did you mean 0?"),
            (-1, None, r"rank = -1 \(rank\): there are no negative ranks; did you mean 0?"),
            (0, 0, r"world_size = 0: a world has at least one rank; did you mean 1?"),
        ],
    )
    def test_a_rank_beyond_the_world(self, rank, world, message) -> None:
        """The error names the nearest valid rank."""
        with pytest.raises(ConfigError, match=message):
            find_identity(rank, world, {})


class TestNames:
    def test_a_process_without_a_rank(self, monkeypatch) -> None:
        """A process without a rank has its name in place of one. If a rank is
        known, the process has that rank.
        """
        assert find_identity(None, None, {}, "driver") == Identity("driver", None, "name", final=False)
        assert find_identity(None, None, {"RANK": "3"}, "trainer") == Identity(3, None, "$RANK")
        context = SimpleNamespace(get_actor_id=lambda: "0123456789abcdef")
        module(monkeypatch, "ray", is_initialized=lambda: True, get_runtime_context=lambda: context)
        assert find_identity(None, None, {}, "loop").rank == "loop"
        assert find_identity(None, None, {}).rank == "actor-01234567"


class TestLaunchers:
    @pytest.mark.parametrize(
        ("environ", "expected"),
        [
            ({"RANK": "3", "WORLD_SIZE": "8"}, Identity(3, 8, "$RANK")),
            # Lightning: on later nodes the number of earlier ranks is unknown
            ({**LIGHTNING, "LOCAL_RANK": "1", "NODE_RANK": "0"}, Identity(1, 2, "$LOCAL_RANK")),
            ({**LIGHTNING, "LOCAL_RANK": "1", "NODE_RANK": "1"}, Identity(0, 2, "default", final=False)),
            (LIGHTNING, Identity(0, 1, "default", final=False)),
            ({"RANK": "3"}, Identity(3, None, "$RANK")),
            ({"RANK": "", **SRUN}, Identity(5, 16, "$SLURM_PROCID", final=False)),
            # the batch script, the shell of `salloc`, one task of its own
            ({**SRUN, "SLURM_STEP_ID": ""}, Identity(0, 1, "default", final=False)),
            ({**SRUN, "SLURM_STEP_ID": "4294967290"}, Identity(0, 1, "default", final=False)),
            ({**SRUN, "SLURM_STEP_NUM_TASKS": "1"}, Identity(0, 1, "default", final=False)),
            ({**SRUN, **MPI}, Identity(2, 4, "$OMPI_COMM_WORLD_RANK", final=False)),
            ({**MPI, "SLURM_PROCID": "0"}, Identity(2, 4, "$OMPI_COMM_WORLD_RANK", final=False)),
            ({**MPI, "OMPI_COMM_WORLD_SIZE": "x"}, Identity(0, 1, "default", final=False)),
            ({**MPI, "OMPI_COMM_WORLD_RANK": "4"}, Identity(0, 1, "default", final=False)),
            ({"PMI_RANK": "1", "PMI_SIZE": "2"}, Identity(1, 2, "$PMI_RANK", final=False)),
            ({"PMI_RANK": "0", "PMI_SIZE": "1"}, Identity(0, 1, "default", final=False)),
            (
                {"PMIX_RANK": "3", "PMIX_NAMESPACE": "prterun-1"},
                Identity(3, None, "$PMIX_RANK", final=False),
            ),
            ({"PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.7.0"}, Identity(0, 1, "default", final=False)),
            ({"RANK": "1", "SLURM_PROCID": "5"}, Identity(1, None, "$RANK")),
            ({}, Identity(0, 1, "default", final=False)),
        ],
    )
    def test_variables(self, environ, expected) -> None:
        """The variables of torchrun count first, then those of Lightning and
        Slurm. Without any, the rank is 0.
        """
        assert find_identity(None, None, environ) == expected

    def test_an_invalid_variable_is_refused(self) -> None:
        """The error names the variable with the invalid value."""
        with pytest.raises(ConfigError, match=r'\$RANK = "one": expected an integer'):
            find_identity(None, None, {"RANK": "one"})


class TestTorchDistributed:
    def test_initialised(self, monkeypatch) -> None:
        """The process group has priority over the variables, because a framework
        may have renumbered its ranks.
        """
        distributed = SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: True,
            get_rank=lambda: 2,
            get_world_size=lambda: 4,
        )
        module(monkeypatch, "torch", distributed=distributed)
        assert find_identity(None, None, {"RANK": "0"}) == Identity(2, 4, "torch.distributed")

    @pytest.mark.parametrize(
        "distributed",
        [
            None,
            SimpleNamespace(),
            SimpleNamespace(is_available=lambda: False, is_initialized=lambda: False),
            SimpleNamespace(is_available=lambda: True, is_initialized=lambda: False),
        ],
    )
    def test_before_initialisation_variables_count(self, monkeypatch, distributed) -> None:
        """If torch.distributed is missing, incomplete or not initialised, the variables count."""
        module(monkeypatch, "torch", **({} if distributed is None else {"distributed": distributed}))
        assert find_identity(None, None, {"RANK": "1"}) == Identity(1, None, "$RANK")


class TestRay:
    @pytest.mark.parametrize(
        ("actor", "mode", "name", "found"),
        [
            (None, "script", None, Identity("driver", None, "ray", final=False, records=False)),
            (None, "script", "mine", Identity("mine", None, "ray", final=False, records=False)),
            ("a1b2", "worker", None, Identity("actor-a1b2", None, "ray", final=False)),
            ("a1b2", "worker", "reward", Identity("reward", None, "ray", final=False)),
            ("a1b2", "worker", "driver", Identity("driver", None, "ray", final=False, records=False)),
            (None, "worker", None, Identity("worker-c3d4", None, "ray", final=False)),
        ],
    )
    def test_a_process_without_a_rank(self, monkeypatch, actor, mode, name, found) -> None:
        """A process of Ray without a rank is called by its name. A driver records nothing, an actor
        or a task that starts a session does.
        """
        context = SimpleNamespace(
            get_actor_id=lambda: actor,
            get_worker_id=lambda: "c3d4",
            worker=SimpleNamespace(mode=mode),
        )
        module(
            monkeypatch,
            "ray",
            is_initialized=lambda: True,
            get_runtime_context=lambda: context,
            WORKER_MODE="worker",
        )
        assert find_identity(None, None, {}, name) == found

    def test_ray_is_not_started_to_find_the_rank(self, monkeypatch) -> None:
        """If Ray is not initialised, it is not asked, because asking would start it."""
        module(monkeypatch, "ray", is_initialized=lambda: False)
        assert find_identity(None, None, {}).source == "default"
        module(monkeypatch, "ray")
        assert find_identity(None, None, {}).source == "default"


class TestMonarch:
    """The place of an actor in its mesh; the whole is in docs/ranks.md, run with torchmonarch 0.7."""

    def identity(self, monkeypatch, context, **environ):
        """Return the identity of a process that has loaded Monarch, with this context of an actor."""
        mesh = SimpleNamespace(_context=SimpleNamespace(get=lambda: context))
        monkeypatch.setitem(sys.modules, MONARCH, mesh)
        return find_identity(None, None, environ)

    def test_an_actor(self, monkeypatch) -> None:
        """An actor has the rank and the size of its mesh."""
        point = SimpleNamespace(rank=1, extent=SimpleNamespace(nelements=2))
        context = SimpleNamespace(actor_instance=SimpleNamespace(rank=point))
        found = self.identity(monkeypatch, context, HYPERACTOR_MESH_BOOTSTRAP_MODE="x")
        assert found == Identity(1, 2, "monarch", final=False)

    def test_a_process_without_an_actor(self, monkeypatch) -> None:
        """Outside of an actor nothing is asked that would start a client: the other sources decide."""
        found = self.identity(monkeypatch, None, HYPERACTOR_MESH_BOOTSTRAP_MODE="x")
        assert found == Identity(0, 1, "default", final=False)

    def test_the_client(self, monkeypatch) -> None:
        """The process that starts the actors is their driver."""
        assert self.identity(monkeypatch, None) == Identity("driver", None, "monarch", final=False)
