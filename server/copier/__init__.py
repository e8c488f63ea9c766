"""The copiers: child processes that pull pages out of pools into the arena.

The one for host memory stands on numpy and the standard library only, so that it stays small and
starts at once; those of devices on ``protocol.device`` as well.
"""
