"""
What applications subclass: entities, the events they raise, and the rules for ids. No I/O, no Azure.

    entities       what an application subclasses; records events
      events         what happened, under its name and version
      progress       what is known of a document beside its model
    own_documents  models of the application's own, without an envelope
    identifiers    which ids, keys and types can be stored
    sources        where new ids and times come from
"""
