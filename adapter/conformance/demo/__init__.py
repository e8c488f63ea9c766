"""The demo: two engines, one cache, ``kill -9`` in between, every bit compared.

``python -m adapter.conformance.demo`` runs a real server and real engines of the
conformance host, each a process of its own, and ends with a table of what was
shown. Reading order: ``story`` (the acts), ``processes`` (who runs), ``engine``
(the engines' side), ``report`` (the table); docs/demo.md says what each row proves.
"""
