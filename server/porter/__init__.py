"""The porter: a child process that carries values between the arena and one tier.

Must not know: the index, leases, who asks. Runs in: a process of its own per tier, which dies with
the server.
"""
