"""
Service Bus, through the vendor SDK: the publisher, its lanes, and checks of topic and subscriptions.
"""
