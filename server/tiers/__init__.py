"""Lower tiers: where chunks go that do not fit into L1, and from where they come back.

One interface and its engines. Must not know: the index, engines of TensorRT-LLM, messages. Runs in:
the porter of a tier, a child process of the server.
"""
