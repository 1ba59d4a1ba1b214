"""Runs the tests of Azure's own SDKs against our emulators."""
