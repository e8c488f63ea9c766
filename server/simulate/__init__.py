"""``python -m server simulate``: public traces replayed over a model of this cache and its tiers.

Purpose: say before anything is bought what memory, disks and a store would bring. What the model
leaves out stands in docs/scale.md. Runs in: the process of the command line; needs no server.
"""
