"""Stands in for torchvision, whose wheel is a CUDA build and fails to load beside a CPU torch. Only what SGLang and transformers import."""

from torchvision import io, ops, transforms
from torchvision._absent import absent

__version__ = "0.28.0"
__all__ = ["io", "ops", "transforms"]
__getattr__ = absent(__name__)
