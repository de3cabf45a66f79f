"""The nsys backend: Nsight Systems."""

from stepprof.backends.nsys.launch import nsys_command, ray_runtime_env

__all__ = ["nsys_command", "ray_runtime_env"]
