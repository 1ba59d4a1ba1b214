"""
Every port in memory: the reference semantics, shipped so that programs can test against them without a service.
"""
