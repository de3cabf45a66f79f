"""Provide the names of `torchvision.ops`."""

from torchvision._absent import absent

__getattr__ = absent(__name__)
