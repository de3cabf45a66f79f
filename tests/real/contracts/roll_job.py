"""Run a job of ROLL. It does not mention stepprof."""

import ray
from roll.pipeline.rlvr.rlvr_pipeline import RLVRPipeline

if __name__ == "__main__":
    ray.init(address="local", num_cpus=1, include_dashboard=False)
    pipeline = RLVRPipeline(steps=4)
    pipeline.run()
    print("trained", pipeline.state.step)
    ray.shutdown()
