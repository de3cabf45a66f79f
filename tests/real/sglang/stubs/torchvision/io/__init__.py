"""Provide the names of `torchvision.io`."""

import enum

from torchvision._absent import absent

__getattr__ = absent(__name__)


class ImageReadMode(enum.Enum):
    """How an image is read."""

    UNCHANGED = 0
    GRAY = 1
    GRAY_ALPHA = 2
    RGB = 3
    RGB_ALPHA = 4
