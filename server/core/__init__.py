"""The server's decisions, without any I/O: index, slots, leases, plans and dispatch.

Time is an argument, effects come back as data. Must not know: sockets, files, clocks, threads.
"""
