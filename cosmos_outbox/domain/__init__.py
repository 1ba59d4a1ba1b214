"""
What applications subclass: entities, and the events they raise. No I/O, no Azure.

    entities    what an application subclasses; records events, and knows how its document is stored
    events      what happened, under its name and version; where new ids and times come from
"""
