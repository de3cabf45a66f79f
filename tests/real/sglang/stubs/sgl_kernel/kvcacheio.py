"""Imported by SGLang 0.5.12 on a CPU as well, and not called."""

from sgl_kernel import __getattr__  # noqa: F401
