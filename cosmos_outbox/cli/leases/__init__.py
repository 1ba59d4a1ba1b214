"""
Leases: list them, and reset them while no worker owns one.
"""
