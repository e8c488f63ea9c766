"""What ``python -m server bench`` measures, and how it judges and shows it.

Starts servers and load generators as child processes and never imports the adapter: the load
generator is spoken to in JSON lines. Runs in the process of the command line.
"""
