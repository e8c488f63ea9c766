"""``python -m adapter conformance``: holds an installed connector to the host's contract.

``rules`` is the table, ``checks_*`` observe one rule each on engines of the conformance host,
``observe`` writes down every call and answer, ``bench`` builds the engines, ``ranked`` those of
several ranks, ``serverchild`` is what may be stopped and killed, ``shim`` and ``shim_around``
compare our interface classes with those of an installed TensorRT-LLM, ``report`` shows what was
found.
"""
