"""The process that makes spans of messages that were traced and sends them to a collector.

It is a child of the server, only where ``--traces`` asks for it. See ``main``.
"""
