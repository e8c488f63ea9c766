"""A host that drives a KV connector as TensorRT-LLM does, on CPU memory.

Reading order: ``engine`` (the facade), ``executor`` (one iteration), then
``scheduling``, ``allocator``, ``reports`` and ``finishing``; ``streams`` is what
everything is ordered by; ``model`` and ``payload`` are the two kinds of forward.
Single rank, V1 cache, epochs E1 to E3 of the connector interface.
"""
