"""``python -m adapter conformance``: holds an installed connector to the host's contract.

``rules`` is the table, ``checks_*`` observe one rule each on engines of the conformance host,
``observe`` writes down every call and answer, ``bench`` builds the engines, ``shim`` compares our
interface classes with those of an installed TensorRT-LLM, ``report`` shows what was found.
"""
