"""Leases: reset them while no worker owns one."""
