"""Replay: read the events of the feed past all leases, and send them again."""
