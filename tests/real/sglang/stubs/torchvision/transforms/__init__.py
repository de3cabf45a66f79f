"""Provide the names of `torchvision.transforms`."""

import enum

from torchvision._absent import absent

__getattr__ = absent(__name__)


class InterpolationMode(enum.Enum):
    """How an image is resized."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"
