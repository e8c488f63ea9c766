"""What the core decides about lower tiers: promotion, demotion, waiting, breakers.

Must not know: how a tier keeps its values. Runs in: the loop thread.
"""
