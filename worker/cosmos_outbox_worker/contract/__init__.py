"""
Contracts between teams: what a service sends and handles, as an AsyncAPI document, and what a change of it breaks.

    declarations        the events, the entities that record them and the consumers, of the modules that a command names
    asyncapi            they as AsyncAPI 3.0
    breaking_changes    the decision: two documents in, what is broken out
"""
