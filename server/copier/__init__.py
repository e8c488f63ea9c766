"""The copier: a child process that pulls pages out of pools into the arena.

Stands on numpy and the standard library only, so that it stays small and starts at once.
"""
