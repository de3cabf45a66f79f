"""Provide a module that SGLang 0.5.12 imports on a CPU as well, and does not call."""

from sgl_kernel import __getattr__  # noqa: F401
