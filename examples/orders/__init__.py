"""
Orders that are paid, and invoices of them: the smallest application with an outbox and a consumer, to test with crash points.
"""
