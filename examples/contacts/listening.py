"""
A socket that listens: bound before anything slow starts, so that a taken port is reported at once.
"""

from __future__ import annotations

import socket

import typer


def listen(host: str, port: int) -> socket.socket:
    """
    Listen on an address; port 0 is any free one.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise typer.BadParameter(f"{host}:{port}: {error.strerror}", param_hint="--port") from error
    return listener
