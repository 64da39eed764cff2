"""supervisord's XML-RPC through its socket, as supervisorctl calls it."""

from __future__ import annotations

import http.client
import os
import socket
import xmlrpc.client

_PATIENCE_S = 120  # the longest that a program of ours takes to stop is 70 s


def ask(directory: str, method: str, *arguments: object) -> object:
    """`directory` has supervisor.sock. Raises OSError where it does not answer, xmlrpc.client.Fault where it refuses."""
    with xmlrpc.client.ServerProxy("http://localhost", transport=_Transport(directory), allow_none=True) as server:
        try:
            return getattr(server, method)(*arguments)
        except (http.client.HTTPException, xmlrpc.client.ProtocolError, xmlrpc.client.ResponseError) as error:
            raise ConnectionError(str(error)) from error


class _Connection(http.client.HTTPConnection):
    """The socket is addressed through a descriptor of its directory, since its full path could exceed the limit of 107 bytes."""

    def __init__(self, directory: str) -> None:
        super().__init__("localhost", timeout=_PATIENCE_S)
        self._directory = directory

    def connect(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(_PATIENCE_S)
            self.sock.connect(f"/proc/self/fd/{descriptor}/supervisor.sock")
        finally:
            os.close(descriptor)


class _Transport(xmlrpc.client.Transport):
    def __init__(self, directory: str) -> None:
        super().__init__()
        self._directory = directory

    def make_connection(self, host: tuple[str, dict[str, str]] | str) -> http.client.HTTPConnection:
        return _Connection(self._directory)
