"""Make verl 0.9.1 train on a CPU: add from outside what it has only for CUDA and NPUs.

verl loads this module in each of its processes (``VERL_USE_EXTERNAL_MODULES``). It registers a
platform, and changes modules right after their import. No file of verl, vLLM or SGLang is edited.
"""

import contextlib

import torch
import wrapt
from verl.plugin.platform import PlatformBase, PlatformRegistry

# verl calls these on the module of the device. That must be torch.cpu itself: some code compares
# the two.
for name, value in {
    "empty_cache": lambda: None,
    "ipc_collect": lambda: None,
    "memory_allocated": lambda *_: 0,
    "memory_reserved": lambda *_: 0,
    "max_memory_allocated": lambda *_: 0,
    "max_memory_reserved": lambda *_: 0,
    "reset_peak_memory_stats": lambda *_: None,
    "mem_get_info": lambda *_: (0, 0),
    "get_rng_state": lambda *_: torch.get_rng_state(),
    "set_rng_state": lambda state, *_: torch.set_rng_state(state),
}.items():
    setattr(torch.cpu, name, getattr(torch.cpu, name, value))


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """A device without indices, streams and shared memory handles."""

    device_name = vendor_name = "cpu"
    device_module = torch.cpu

    def is_available(self):
        return True

    def current_device(self):
        return "cpu"  # verl passes it to `.to(…)`: an index would mean an accelerator

    def device_count(self):
        return 1

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    def ray_resource_name(self):
        return "GPU"  # Ray's logical resource: verl counts no other one

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False  # weights go to vLLM through verl's shared memory

    def nvtx_range(self, msg):
        return contextlib.nullcontext()

    def nothing(self, *_):
        return None

    set_device = synchronize = set_allocator_settings = empty_cache = nothing
    profiler_start = profiler_stop = cudart = nothing


@wrapt.when_imported("verl.utils.distributed")
def gloo_alone(module):
    """Request "gloo": torch refuses verl's "cpu:gloo,cpu:gloo" as a duplicate."""
    original = module.initialize_global_process_group_ray
    module.initialize_global_process_group_ray = lambda timeout_second=None, backend=None: original(
        timeout_second=timeout_second, backend=backend or "gloo"
    )


@wrapt.when_imported("verl.workers.engine.fsdp.transformer_impl")
def fsdp_on_cpu(module):
    """Register FSDP for the device "cpu", and offload the reference model without pinned memory."""
    from verl.workers.engine.base import EngineRegistry

    for kind, engine in (
        ("language_model", module.FSDPEngineWithLMHead),
        ("value_model", module.FSDPEngineWithValueHead),
    ):
        EngineRegistry.register(model_type=kind, backend=["fsdp", "fsdp2"], device="cpu")(engine)
    original = module.CPUOffloadPolicy
    module.CPUOffloadPolicy = lambda pin_memory=True: original(pin_memory=False)


@wrapt.when_imported("verl.workers.rollout.vllm_rollout.utils")
def weights_reloaded(module):
    """Load new weights with vLLM's own `reload_weights`. vLLM packs the weights for the CPU, so
    that `model.load_weights` fails.
    """

    def update_weights_from_ipc(self, peft_config=None, base_sync_done=False, use_shm=False):
        from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver

        receiver = BucketedWeightReceiver(
            zmq_handle=self._get_zmq_handle(), device=torch.device("cpu"), use_shm=use_shm
        )
        weights = []
        receiver.receive_weights(
            on_bucket_received=lambda bucket, is_last: weights.extend(
                (name, each.clone()) for name, each in bucket
            )
        )
        self.model_runner.reload_weights(weights_iterator=iter(weights))

    module.vLLMColocateWorkerExtension.update_weights_from_ipc = update_weights_from_ipc


@wrapt.when_imported("verl.utils.model")
def critic_without_flash_attention(module):
    """Load the critic with PyTorch's own attention: verl requests FlashAttention regardless of the
    configuration.
    """

    def load_valuehead_model(local_path, torch_dtype, model_config, trust_remote_code):
        from transformers import AutoModelForTokenClassification

        torch.manual_seed(0)  # for the head, which the model on disk does not have
        return AutoModelForTokenClassification.from_pretrained(
            local_path, torch_dtype=torch_dtype, config=model_config, attn_implementation="sdpa"
        )

    module.load_valuehead_model = load_valuehead_model


@wrapt.when_imported("vllm.v1.engine.async_llm")
def pause_as_before(module):
    """Let the asynchronous trainers pause vLLM 0.32: verl passes the argument that "mode" has replaced."""
    original = module.AsyncLLM.pause_generation

    async def pause_generation(self, *, wait_for_inflight_requests=False, **options):
        options.setdefault("mode", "wait" if wait_for_inflight_requests else "abort")
        await original(self, **options)

    module.AsyncLLM.pause_generation = pause_generation


@wrapt.when_imported("sglang.srt.utils.patch_torch")
def tensors_by_file(module):
    """Send weights to SGLang through files of shared memory. SGLang patches how tensors are sent,
    and a process of verl closes its own.
    """
    module.monkey_patch_torch_reductions = lambda: None
    torch.multiprocessing.set_sharing_strategy("file_system")
