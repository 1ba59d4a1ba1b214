"""
The worker process: reads the container's change feed and relays its events to the topic.
"""
