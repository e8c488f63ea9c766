"""A host that drives a KV connector as TensorRT-LLM does, on CPU memory.

Reading order: ``engine`` (the facade), ``executor`` (one iteration), then
``scheduling``, ``allocator``, ``reports``, ``launching`` and ``finishing``;
``streams`` is what everything is ordered by; ``model`` and ``payload`` are the two
kinds of forward. Single rank, V1 cache, epochs E1 to E3 of the interface.

Rules of the host contract and where they are kept:

- §1 epochs: five-field reports and integer salts (``reports``, ``requests``).
- §2 config fields, unhashable arguments (``llm_args``); reuse off: never queried in
  E1 and E2, asked and not honoured in E3 (``scheduling``).
- §3 answers that kill: ``(0, True)``, a count reaching the prompt's end, no pair, no
  bool (``connector``); ids not pending are a ``KeyError`` (``transfers``); deltas,
  whole prompt first, positions, overlap lag (``reports``, ``scheduling``).
- §4 two constructing threads, callable, warm-up, registration, one executor thread
  (``connector``, ``engine``); graphs without layer hooks (``launching``).
- §5 order of an iteration, blocking when idle (``executor``); streams M and X, copies
  ordered against X alone (``device``); chunks cut at block boundaries, callback order
  by epoch, overstated chunks (``scheduling``); LIFO pages (``allocator``).
- §6 plain, chunked, device prefix, synchronous and asynchronous loads, saves, early
  stop under overlap, a second True, cancellation by epoch (``finishing``).
- §7 pool shape and layout (``model``, ``adapter.pages``).
- §9 rule 8: forwards that are skipped after metadata and loads (``options``).
- §10 who dies of a raising hook, E2's column (``executor``).
- §11 what is refused (``support``).

Not here: V2 caches, several ranks, attention DP, E4, KV-size estimation.
"""
