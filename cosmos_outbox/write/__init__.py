"""
The write side: what an application reads and changes, and its events, committed in one transactional batch.
"""
