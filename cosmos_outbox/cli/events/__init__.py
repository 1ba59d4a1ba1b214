"""
Events: read the feed past all leases, to watch it or to send events again.
"""
