"""Provide the names of `torchvision.transforms.v2.functional`."""

from torchvision._absent import absent
from torchvision.transforms import InterpolationMode

__all__ = ["InterpolationMode"]
__getattr__ = absent(__name__)
