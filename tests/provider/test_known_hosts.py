"""Known hosts files: what ssh-keygen -F finds in one, we find, when the stack file is checked and at the login."""

from __future__ import annotations

import subprocess
from pathlib import Path

import asyncssh
import pytest

from gpu_fleet.provider.known_hosts import KnownHosts
from gpu_fleet.stackfile.patterns import KnownHosts as OfStackFile

KEY = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()
FILE = f"""# collected
gpu-01,10.0.1.1 {KEY} a comment
GPU-02.HPC.Example.COM {KEY}
[gpu-03]:2222 {KEY}
gpu-1*,!gpu-13 {KEY}
*.IB.example.com {KEY}
[bastion.example.com]:22022,2001:db8::1 {KEY}
@cert-authority *.signed.example.com {KEY}
@revoked * {asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()}
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("known") / "known_hosts"
    file.write_text(f"gpu-21 {KEY}\n[gpu-22]:2222 {KEY}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", file], check=True, stdin=subprocess.DEVNULL, capture_output=True)
    file.write_text(FILE + file.read_text())
    return file


@pytest.mark.parametrize(
    ("address", "port"),
    [
        *(
            (name, 22)
            for name in ("gpu-01", "GPU-01", "10.0.1.1", "10.0.1.2", "gpu-02.hpc.example.com", "GPU-02.hpc.example.com")
        ),
        *((name, 22) for name in ("gpu-03", "gpu-12", "GPU-12", "gpu-13", "a.ib.example.com", "A.IB.example.com", "2001:db8::1")),
        *((name, 22) for name in ("a.signed.example.com", "bastion.example.com", "gpu-21", "GPU-21", "gpu-22", "nowhere")),
        *((name, 2222) for name in ("gpu-03", "GPU-03", "gpu-22", "Gpu-22")),
    ],
)
def test_a_host_is_known_where_ssh_knows_it(file: Path, address: str, port: int) -> None:
    name = address if port == 22 else f"[{address}]:{port}"
    # ssh(1) itself looks up the name in lower case; ssh-keygen leaves it, and so finds no hashed one.
    found = subprocess.run(["ssh-keygen", "-F", name.lower(), "-f", file], capture_output=True, text=True, check=False).stdout
    is_known = any(line and not line.startswith(("#", "@revoked")) for line in found.splitlines())
    keys, authorities, revoked = KnownHosts(file.read_text()).match(address, port)
    assert bool(keys or authorities) == is_known
    assert len(revoked) == 1
    assert bool(list(OfStackFile(file.read_text()).missing([(address, port)]))) != is_known
