"""A real Debian without Python, and its real apt: the distribution's Python is installed before anything is placed, and stays."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from gpu_fleet.host.parts.python import Python
from lab.hosts.image import debian_root
from tests.host.hosts import SimulatedHost, page

# $1: the root, $2: an envelope. In a mount namespace of its own, on a copy of the root that ends with it.
_ON_A_COPY = r"""
mount -t tmpfs tmpfs /mnt && mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o "lowerdir=$1,upperdir=/mnt/upper,workdir=/mnt/work" /mnt/root
mount -t proc proc /mnt/root/proc
cp /etc/resolv.conf /mnt/root/etc/resolv.conf
cp -R "$2" /mnt/root/srv/envelope
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot /mnt/root sh -uc "$3"
"""
_RUNS = r"""
dpkg --purge --force-all $(dpkg-query -W -f '${Package} ' 'python3*' 'libpython3*') >/dev/null 2>&1
rm -rf /usr/bin/python3* /usr/lib/python3*
for verb in plan apply check remove; do
  program=/srv/envelope/bundle/converge envelope='--envelope /srv/envelope'
  case $verb in check | remove) program=/var/lib/gpu-fleet/current/converge envelope='' ;; esac
  sh $program $verb --prefix '' $envelope
done
dpkg-query -W -f '${Package} ${db:Status-Status}\n' python3
ls /etc/page /var/lib/gpu-fleet 2>&1
"""


def test_a_debian_without_python_gets_it_and_keeps_it(tmp_path: Path) -> None:
    host = SimulatedHost.below(tmp_path)
    envelope = host.envelope([Python().part(), page()])
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", _ON_A_COPY, "sh", debian_root(), envelope, _RUNS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    results = [(event["verb"], event["ok"]) for event in events if event["event"] == "result"]
    assert results == [(verb, True) for verb in ("plan", "apply", "check", "remove")], done.stdout + done.stderr
    [plan] = [event["changes"] for event in events if event.get("status") == "would-change"]
    assert plan[0].startswith("package python3: to be installed")
    assert "host: installing the distribution's Python\n" in done.stderr
    assert {"GPU_FLEET_PYTHON": "/usr/bin/python3"}.items() <= next(e["facts"] for e in events if e["event"] == "facts").items()
    assert "\npython3 installed\n" in done.stdout, "it stays: others may use it by now"
    assert "'/etc/page'" in done.stdout and "'/var/lib/gpu-fleet'" in done.stdout, "and nothing else does"
