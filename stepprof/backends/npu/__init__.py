"""The npu backend: torch_npu's profiler on Ascend devices."""
