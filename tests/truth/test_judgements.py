"""Random worlds with planted causes: what the report judges is compared with the same worlds without them.

`TRUTH_WORLDS` and `TRUTH_SEED` in the environment select the number of worlds and the seed; `nox -s truth`
sets both.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from truth.judged_worlds import make
from truth.judging import judged, seem_to_meet
from truth.judging_neighbours import false_neighbourhood
from truth.judging_path import false_path, false_slack
from truth.world_of_driver import driver_world
from truth.world_of_ranks import ranks_world
from truth.worlds import World

WORLDS = int(os.environ.get("TRUTH_WORLDS", "500"))
SEED = int(os.environ.get("TRUTH_SEED", "0"))
PARTS = 5
"""Number of parts into which the worlds are divided, for several processes."""


KINDS = (ranks_world, driver_world)


def world_of(seed: int) -> World:
    """Return the world of a seed."""
    return KINDS[seed % len(KINDS)](seed)


def wrong_in(seed: int) -> list[str]:
    """Return what is false in the report about the world of a seed."""
    with tempfile.TemporaryDirectory() as folder:
        made = make(world_of(seed), Path(folder))
    ran = made.ran[made.world.recorded]
    if seem_to_meet(ran):
        return []  # the same data as in a world in which they met
    wrong = judged(made.world, made.ran, made.report)
    wrong += false_neighbourhood(*made[:2], made.report)
    if len(made.report.islands) > 1:  # clocks were never compared
        wrong += [f"slack: {each}" for each in made.report.slack]
        wrong += [
            f"saves {each.saves}: {each.text}" for each in made.report.findings if each.saves is not None
        ]
    elif made.world.waits_known:
        wrong += false_path(ran, made.report)
        wrong += false_slack(made.world, ran, made.report)
    return wrong


@pytest.mark.slow
@pytest.mark.timeout(0)  # the number of worlds is configurable
@pytest.mark.parametrize("part", range(PARTS))
def test_no_judgement_is_false(part: int) -> None:
    """Each finding of a random world is about a planted cause, and has its process, region, seconds and gain.

    The critical path, the slack and the steps around the recorded one are those of the world.
    """
    for seed in range(SEED + part, SEED + WORLDS, PARTS):
        wrong = wrong_in(seed)
        assert not wrong, "\n".join([f"the world of seed {seed}:", *wrong])


FOUND = {
    "of a rank whose capture ended, stacks do not show all that they show of the others": 30094,
    "a rank that computes and then waits in a collective did not work until a common time": 30872,
    "a rank that came too late for a common time would have worked until then": 7036,
    "a rank whose waits are not known may have waited after its last known meeting": 50552,
    "a region with the times of its window is inside it, also in the steps around": 52681,
    "how much of a batch was done when an exception ended it is not known": 13638,
    "a rank that waits in a collective is not busy with the empty places of its batch": 22420,
    "a rank that computes for a part of its time in a region waited only for the rest": 80272,
    "after the end of its capture, a rank that computed before may have waited": 200418,
    "ranks that leave a region long after the last one has entered have not met": 201736,
    "a rank may have waited between the end of its capture and that of its region": 201974,
    "a thread that waits for its device need not wait for another rank": 202294,
    "a region with a collective is equally long in all ranks, also in other steps in which one is late": 203670,
    "what a rank would not spend is in all its visits of a region, also those off the path": 204868,
    "what the profiler holds up after the end of a process delays nothing": 204840,
    "what the last sample before a region shows is not its work": 1758,
    "a wait is changed by the recording at most as much as the possible waits of others let it": 7708,
    "a rank that worked first and then waits in a collective is not the one that others waited for": 4628,
    "a rank that entered first may be the last to come to a collective, as its samples show": 8726,
    "a region with a collective is longer in a rank that waits, also in other steps": 2796,
    "a common end of one of several calls is a coincidence, also of ranks that compute": 30154,
    "what several slow ranks would not do is their work, not their wait for each other": 10934,
    "a rank for which the others waited did its own work before the last one entered": 13388,
    "a possible wait does not change what the recording is said to have changed in sum": 4639,
    "a driver may have waited for an engine whose capture ended": 379,
    "calls of coroutines go on one after the other after the end of the capture": 14444,
    "a rank whose samples ended early may be the one for which all others waited": 6580,
    "a rank is late also where the others work until a common time afterwards": 16303,
}


@pytest.mark.parametrize("what", FOUND)
def test_former_false_judgements_stay_fixed(what: str) -> None:
    """Worlds about which a report was once wrong, each for a different reason."""
    assert wrong_in(FOUND[what]) == []
