"""
The service: settings, assembly, health and telemetry of the worker; a process of its own, or part of another program.
"""
