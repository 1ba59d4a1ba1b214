"""What applications subclass: entities, the events they raise, and the rules for ids. No I/O, no Azure."""
