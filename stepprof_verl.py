"""What the entry point ``verl.plugins`` names: verl imports this module in each of its processes, and calls nothing.

A job asks for stepprof by its environment, or by a key of Hydra's: ``+stepprof.steps=[2]``.
"""

import sys

import stepprof_autoload

stepprof_autoload.activate(asked=any(word.lstrip("+").startswith("stepprof.") for word in sys.argv))
