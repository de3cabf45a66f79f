"""`torchvision.ops`, by name."""

from torchvision._absent import absent

__getattr__ = absent(__name__)
