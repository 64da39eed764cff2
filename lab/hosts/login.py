"""A command in a login that ssh shares (its ControlMaster), asked for as `ssh -S` does it, but by this process: each ssh takes
0.01 s of CPU time to start, and the tests would start a thousand. The messages are those of OpenSSH's PROTOCOL.mux."""

from __future__ import annotations

import array
import os
import socket
import struct
import subprocess
import time
from pathlib import Path

_HELLO, _VERSION = 0x00000001, 4
_NEW_SESSION = 0x10000002
_SESSION_OPENED, _EXIT = 0x80000006, 0x80000004
_NO_ESCAPES = 0xFFFFFFFF
_LOST = 255  # as ssh exits when the connection ends before the command


def run(login: Path, command: str, *, stdin: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """`login`: the socket. Raises OSError where nothing serves it, and subprocess.TimeoutExpired."""
    with socket.socket(socket.AF_UNIX) as master:
        master.connect(os.fspath(login))
        deadline = time.monotonic() + timeout_s
        # Files, so that nobody has to read what is written; in memory.
        streams = [os.fdopen(os.memfd_create(name), "w+b") for name in ("stdin", "stdout", "stderr")]
        try:
            streams[0].write(stdin.encode())
            streams[0].seek(0)
            _send(master, struct.pack(">II", _HELLO, _VERSION))
            no_terminal = struct.pack(">5I", 0, 0, 0, 0, _NO_ESCAPES) + _text("")
            _send(master, struct.pack(">II", _NEW_SESSION, 0) + _text("") + no_terminal + _text(command))
            for stream in streams:
                master.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [stream.fileno()]))])
            is_open, code = False, _LOST
            # It says the exit status first, and closes the connection when all output is written.
            while message := _receive(master, deadline):
                kind, _, value = struct.unpack(">III", message.ljust(12, b"\0")[:12])
                if kind == _EXIT:
                    code = value
                elif kind == _SESSION_OPENED:
                    is_open = True
                elif kind != _HELLO:  # a login has ten sessions at a time
                    break
            if not is_open:
                raise ConnectionRefusedError(f"{login} opens no session.")
            for stream in streams:
                stream.seek(0)
            _, stdout, stderr = (stream.read().decode(errors="replace").replace("\r\n", "\n") for stream in streams)
        except TimeoutError:
            raise subprocess.TimeoutExpired(command, timeout_s) from None
        finally:
            for stream in streams:
                stream.close()
    return subprocess.CompletedProcess(command, code, stdout, stderr)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">I", len(encoded)) + encoded


def _send(master: socket.socket, message: bytes) -> None:
    master.sendall(struct.pack(">I", len(message)) + message)


def _receive(master: socket.socket, deadline: float) -> bytes:
    """The next message; empty at the end. Raises TimeoutError."""
    length = _read(master, 4, deadline)
    return _read(master, struct.unpack(">I", length)[0], deadline) if length else b""


def _read(master: socket.socket, size: int, deadline: float) -> bytes:
    """Empty where the connection ends before."""
    data = b""
    while len(data) < size:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        master.settimeout(left_s)
        try:
            more = master.recv(size - len(data))
        except ConnectionResetError:
            more = b""
        if not more:
            return b""
        data += more
    return data
