"""Record one rank of a job without work through stepprof, as the template of `make_ranks`: ``python
-m benchmarks.ranks_child OUTPUT_DIR RUN_ID WORLD``.
"""

from __future__ import annotations

import sys
import time

import stepprof

ROLES = ("rollout", "reward", "ref", "critic", "actor")
STEPS = 12
RECORDED = 6
MICRO_BATCHES = 4
SECONDS = 0.001


def main(output_dir: str, run_id: str, world: int) -> None:
    """Run the steps, and record one of them with the backend that records nothing."""
    config = {"output_dir": output_dir, "backend": "null", "steps": str(RECORDED), "ranks": "all"}
    stepprof.init(config, rank=0, world_size=world, run_id=run_id)
    for step in range(1, STEPS + 1):
        for role in ROLES:
            with stepprof.profile_step(step, role=role), stepprof.region("update"):
                for number in range(MICRO_BATCHES):
                    with stepprof.region("micro_batch", number=number):
                        time.sleep(SECONDS)
    stepprof.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
