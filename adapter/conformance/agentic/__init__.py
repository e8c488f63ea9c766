"""The agentic benchmark: twelve agents, twelve turns, one cache.

``python -m adapter.conformance.agentic`` plays it through the conformance host, the connector and a
server of its own, and compares every count with what arithmetic says.
"""
