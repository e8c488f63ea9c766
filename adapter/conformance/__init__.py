"""What an operator runs to see that a connector keeps the host contract.

The faithful host lives in ``adapter.conformance.host``. Nothing here is
imported by the adapter inside a real engine.
"""
