"""
Doctor: compare the live resources with what the outbox needs, and say what to do about each difference.
"""
