"""Engines and ranks in other processes: what follows the windows of this one.

The same four states as the local target, turned into asynchronous calls. `base` is the contract that a plug-in implements,
`engine` the target around it, `fanout` brackets a window with all of them, `loop` is where the calls run.
"""
