"""
The base classes that an application subclasses: Entity and DomainEvent. Nothing in this package does I/O or knows Azure.

    entities    Entity and SoftDeletable: objects that change their state and record events
    events      DomainEvent, the events that a document recorded since its last commit, and the sources of new ids and times
"""
