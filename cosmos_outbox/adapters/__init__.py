"""Implementations of the ports on Azure and in memory. In the library, only this package uses Azure's SDKs."""
