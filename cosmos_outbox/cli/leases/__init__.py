"""
Leases: list, export, import, reset and rename them; never while a worker owns one of them.
"""
