"""
Contracts between teams: describe the messages that a service sends and handles as an AsyncAPI document, and find breaking changes.

    declarations        finds the events, entities and consumers in the modules that a command names
    asyncapi            describes them as an AsyncAPI 3.0 document
    breaking_changes    compares two documents, and returns what the change breaks
"""
