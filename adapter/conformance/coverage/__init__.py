"""What combinations of host and engine the suite covers, and which a host cannot have.

One table in code: ``dimensions`` names the values, ``rules`` says which pairs exist, ``combine``
makes combinations that cover every legal pair, ``document`` writes docs/trtllm.md from them.
"""
