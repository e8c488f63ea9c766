"""The pages of a running server: /metrics, /healthz, /readyz and the dashboard.

A process of its own, so that neither a slow reader nor a crowd of them can reach the server's
loop: it asks the server as any operator does, once a second at most, and answers from what it was
told.
"""
