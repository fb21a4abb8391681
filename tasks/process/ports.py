"""Free TCP ports on loopback."""

import socket

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """Return a port that nobody listens on now. Another process may take it before it is used: check by starting."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def is_port_taken(port: int) -> bool:
    """Return whether somebody listens on the loopback port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0
