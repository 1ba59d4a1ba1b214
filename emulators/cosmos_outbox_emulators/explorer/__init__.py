"""A read-only explorer of what the emulators hold: pages that are rendered here, without scripts."""

from cosmos_outbox_emulators.explorer.routes import explorer_routes

__all__ = ["explorer_routes"]
