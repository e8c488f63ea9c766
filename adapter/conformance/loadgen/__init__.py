"""The load generator behind ``python -m server bench``: an engine's side without an engine.

A child process that takes one order per line on stdin and answers in JSON lines on stdout. It
talks to the server through the adapter's own link, channels and page loads, so what it measures is
what an engine would see. Knows nothing of the server's code.
"""
