"""A read-only explorer of the data in the emulators: HTML pages that the emulators render, and that work without scripts."""

from cosmos_outbox_emulators.explorer.routes import explorer_routes

__all__ = ["explorer_routes"]
