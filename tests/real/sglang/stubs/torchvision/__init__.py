"""Replace torchvision, because its wheel is a CUDA build and does not load together with a CPU
torch. It contains only the names that SGLang and transformers import.
"""

from torchvision import io, ops, transforms
from torchvision._absent import absent

__version__ = "0.28.0"
__all__ = ["io", "ops", "transforms"]
__getattr__ = absent(__name__)
