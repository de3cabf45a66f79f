"""Engines and ranks in other processes that follow the windows of this process.

`base` is the contract of a driver, `engine` one attachment, `core` the windows over many engines, and `loop` the event loop that all calls run on.
Each technology has a folder, `vllm`, `sglang`, `ray` and `http`, or a module: `nsys`.
"""
