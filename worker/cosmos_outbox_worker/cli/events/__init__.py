"""Events: read the feed past all leases, and send events again."""
