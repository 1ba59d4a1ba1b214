"""
What applications subclass: entities, and the events they raise. No I/O, no Azure.

    entities    what an application subclasses, and how its document is stored
    events      what happened, under its name and version; what a document recorded; where new ids and times come from
"""
