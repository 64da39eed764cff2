"""SSH servers that respond like a host whose work takes no time, so that only our own cost is measured.

    python -m bench.answering_hosts DIRECTORY COUNT PORT

One address of 127.0.0.0/8 per host, the same port on all. Logins, keys and channels are real; the converge program is not: the
server sends the lines that the real one prints. Writes key, known_hosts and `ready` into DIRECTORY; ends when its standard input
is closed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
import sys
from pathlib import Path

import asyncssh

_PARTS = (
    *("launch", "driver-check", "exporter-choice", "container-runtime", "dcgm-exporter", "nvidia-gpu-exporter", "textfile"),
    *("textfile-nvidia", "textfile-amd", "node-exporter", "kernel-log", "kernel-journal", "alloy", "drift", "pull"),
)
_FACTS = {
    **{"EXPORTER": "nvidia_gpu_exporter", "EXPORTER_REASON": "bare metal or VM without Docker, and none is to be installed"},
    **{"GPU_COUNT": "8", "GPU_DRIVER_VERSION": "580.82.07", "GPU_MODEL": "NVIDIA H100 80GB HBM3", "GPU_VENDOR": "nvidia"},
    **{"KERNEL_LOG": "journal", "OS": "Debian GNU/Linux 12 (bookworm)", "SERVICE_MANAGER": "systemd", "VIRTUALIZATION": "none"},
}
_STATUS = {"apply": "changed", "plan": "would-change"}


def address(number: int) -> str:
    """The address of a host, by its number from 0."""
    return f"127.1.{number // 250}.{number % 250 + 1}"


async def _answer(process: asyncssh.SSHServerProcess[bytes]) -> None:
    *_, verb, _prefix, _stack, _instance, size, _artifacts, program_size = shlex.split(process.command)
    process.stdout.write(b'{"event":"ready"}\n')
    await process.stdin.readexactly(int(program_size) + int(size))
    events = [
        {"event": "facts", "facts": _FACTS},
        *({"event": "part", "part": part, "status": _STATUS.get(verb, "unchanged")} for part in _PARTS),
    ]
    process.stdout.write("".join(json.dumps(event) + "\n" for event in events).encode())
    process.stdout.write(json.dumps({"event": "result", "verb": verb, "ok": True}).encode() + b"\n")
    process.exit(0)


class _Anybody(asyncssh.SSHServer):
    def begin_auth(self, username: str) -> bool:
        return True


async def serve(directory: Path, count: int, port: int) -> None:
    host_key, client_key = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    client_key.write_private_key(directory / "key")
    (directory / "key").chmod(0o600)
    addresses = [address(number) for number in range(count)]
    public = host_key.export_public_key().decode().strip()
    (directory / "known_hosts").write_text("".join(f"[{name}]:{port} {public}\n" for name in addresses))
    await asyncssh.listen(
        addresses,
        port,
        server_factory=_Anybody,
        server_host_keys=[host_key],
        authorized_client_keys=asyncssh.import_authorized_keys(client_key.export_public_key().decode()),
        process_factory=_answer,
        encoding=None,
        backlog=1024,
    )
    (directory / "ready").touch()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    logging.getLogger("asyncssh").setLevel(logging.ERROR)
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
