"""Alloy as on one node of the lab's cluster: the real program with the configuration and the environment that its chart gets."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from components.kubernetes import values
from components.kubernetes.values import ClusterPlan
from gpu_fleet import toolchain
from lab.kubernetes import Cluster
from lab.ports import free_ports

TOKEN = "the-token-of-the-service-account"
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


@contextmanager
def agent(cluster: Cluster, wanted: ClusterPlan, node: str, directory: Path) -> Iterator[None]:
    """`directory`: for its files; made here. Scrapes every second."""
    directory.mkdir()
    (directory / "token").write_text(TOKEN)
    (directory / "ca.crt").write_bytes((cluster.directory / "ca.crt").read_bytes())
    given = values.alloy(wanted)["alloy"]
    config = given["configMap"]["content"].replace('{{ "{{" }}', "{{").replace(SERVICE_ACCOUNT, str(directory))  # as Helm would
    (directory / "config.alloy").write_text(re.sub(r'= "(15|10|30|20|60)s"', '= "1s"', config))
    (port,) = free_ports(1)
    of_pod = {one["name"]: one.get("value", node) for one in given["extraEnv"]}
    of_pod |= {"KUBECONFIG": str(cluster.kubeconfig), "GPU_FLEET_ALLOY_LISTEN": f"127.0.0.1:{port}"}
    command = [toolchain.find("alloy"), "run", directory / "config.alloy", f"--storage.path={directory / 'data'}"]
    options = [f"--server.http.listen-addr=127.0.0.1:{port}", "--disable-reporting", "--stability.level=generally-available"]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([*command, *options], env={"PATH": os.environ["PATH"], **of_pod}, stdout=log, stderr=log)
        try:
            yield
            assert process.poll() is None, (directory / "log").read_text()[-4000:]
        finally:
            process.terminate()
            process.wait(timeout=120)
