"""Run a job of SkyRL with its real training loop, timers and callbacks. Small stand-ins replace the
functions that its phases call.

It does not mention stepprof. Step 2 samples twice, as dynamic sampling does.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace as Options

from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils.callbacks import CallbackHandler, TrainingControl

STEPS = 3


class Batch(dict):
    """The data that one phase passes to the next."""

    def __init__(self):
        super().__init__(rewards=1)
        self.metadata = {"uids": []}


class Dispatch:
    """Stands for the calls of the workers."""

    async def save_weights_for_sampler(self):
        await asyncio.sleep(0)

    def empty_cache(self):
        return None

    def get_timing_metrics(self):
        return {}

    def finalize_pending_saves(self, model):
        return None


class Trainer(RayPPOTrainer):
    """A trainer without models."""

    def __init__(self):
        sampling = Options(type="filter")
        self.cfg = Options(
            trainer=Options(
                eval_interval=2, eval_before_train=True, epochs=1, print_example_interval=0, dump_data_batch=False,
                hf_save_interval=0, ckpt_interval=0, update_ref_every_epoch=False, max_training_steps=None,
                algorithm=Options(use_kl_in_reward=False, dynamic_sampling=sampling),
                critic=Options(model=Options(path="critic")),
                policy=Options(torch_profiler_config=Options(enable=False)),
            ),
            generator=Options(
                n_samples_per_prompt=1, step_wise_trajectories=False, sampling_params=None,
                inference_engine=Options(backend="vllm"),
            ),
            environment=Options(env_class="none"),
        )  # fmt: skip
        self.resume_mode = "none"
        self.train_dataloader = [["prompt"]] * (STEPS + 1)
        self.total_training_steps = STEPS
        self.global_step = self._current_epoch = self._num_training_gpus = 0
        self.all_metrics, self.all_timings = {}, {}
        self._vllm_metrics_scraper = self._ray_gpu_monitor = self.trajectory_logger = None
        self.colocate_all = False
        self.policy_model = self.critic_model = self.ref_model = None
        self.inference_engine_client = Options()
        self._callback_handler, self._training_control = CallbackHandler(), TrainingControl()
        self.dispatch, self.tracker = Dispatch(), Options(log=lambda *_, **__: None, finish=lambda: None)
        self.sampled = 0

    def init_weight_sync_state(self):
        return None

    def _remove_tail_data(self, entries):
        return entries

    async def generate(self, input_batch):
        await asyncio.sleep(0)
        self.sampled += 1
        return {"response_ids": []}

    def handle_dynamic_sampling(self, generator_output, uids):
        return generator_output, uids, self.sampled == 2

    def postprocess_generator_output(self, generator_output, uids):
        return generator_output, uids

    def convert_to_training_input(self, generator_output, uids):
        return Batch()

    def fwd_logprobs_values_reward(self, training_input):
        return training_input

    def compute_advantages_and_returns(self, data):
        return data

    def _execute_training_step(self, model, data):
        return {}

    async def eval(self, vllm_metrics_scraper=None):
        return {}


if __name__ == "__main__":
    trainer = Trainer()
    asyncio.run(trainer.train())
    print("trained", trainer.global_step)
