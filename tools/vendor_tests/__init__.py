"""The vendor SDKs' own tests, run against our emulators."""
