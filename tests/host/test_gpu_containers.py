"""Which containers a daemon-reload would harm. tests/hosts/test_gpu_containers.py has real ones."""

from __future__ import annotations

import os

import pytest

from gpu_fleet.on_host.converge import gpu_containers

ID = "062d7d650a30c7819ac6e89bc780669382705dd43ac9985665a20c29da9b98d2"
NVIDIA = [("mem", 1), ("pts", 136), ("nvidia", 195), ("nvidia-uvm", 509), ("drm", 226)]
GPU, UVM, CARD = os.makedev(195, 0), os.makedev(509, 0), os.makedev(226, 1)
# Of Docker 20.10 with runc 1.1.5 on Debian 12, `systemctl show -p DeviceAllow` of a container without devices of its own.
OF_RUNC = ["char-pts rwm", "/dev/char/10:200 rwm", "/dev/char/5:0 rwm", "/dev/char/1:3 rwm", "char-* m", "block-* m"]


@pytest.mark.parametrize(
    ("lines", "scopes"),
    [
        (f"0::/system.slice/docker-{ID}.scope", {f"docker-{ID}.scope"}),
        (f"12:devices:/system.slice/docker-{ID}.scope\n1:name=systemd:/system.slice/docker-{ID}.scope", {f"docker-{ID}.scope"}),
        (f"5:cpu,devices:/machine.slice/libpod-{ID}.scope", {f"libpod-{ID}.scope"}),
        (
            f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice/cri-containerd-{ID}.scope",
            {f"cri-containerd-{ID}.scope"},
        ),
        # Kubernetes in Docker: that inside is of the systemd inside.
        (f"0::/system.slice/docker-{ID}.scope/kubelet.slice/cri-containerd-abc.scope", {f"docker-{ID}.scope"}),
        # Groups that systemd does not manage: Docker's own driver, what a service was delegated, a user's manager.
        (f"9:devices:/docker/{ID}\n0::/docker/{ID}", set()),
        ("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", {"slurmstepd.scope"}),
        (f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope", set()),
        ("0::/system.slice/ssh.service", set()),
        (f"4:memory:/system.slice/docker-{ID}.scope", set()),
    ],
)
def test_the_unit_of_the_hosts_systemd_is_found(lines: str, scopes: set[str]) -> None:
    assert set(gpu_containers._UNIT.findall(lines + "\n")) == scopes


@pytest.mark.parametrize(
    ("node", "more", "is_allowed"),
    [
        (GPU, [], False),  # the hook's: systemd does not know of it
        (GPU, ["/dev/char/195:0 rwm"], True),  # --device or CDI
        (GPU, ["/dev/char/195:255 rwm"], False),  # nvidiactl alone
        (GPU, ["char-nvidia* rw"], True),
        (UVM, ["char-nvidia rw"], False),
        (GPU, ["/dev/char/195:0 m"], False),
        (CARD, ["char-drm rw"], True),
        (CARD, ["char-* rwm"], True),
        (os.makedev(1, 3), ["/dev/null rw"], True),  # by the path of a device file
        (GPU, ["/dev/nowhere rw"], False),
    ],
)
def test_a_device_is_kept_that_the_runtime_has_named_to_systemd(node: int, more: list[str], is_allowed: bool) -> None:
    assert gpu_containers._is_allowed(node, [*OF_RUNC, *more], NVIDIA) == is_allowed


def test_containers_are_called_as_people_know_them_and_without_what_a_terminal_interprets() -> None:
    called = gpu_containers._called
    assert called(f"docker-{ID}.scope", {ID: "training-7"}) == "Docker container 062d7d650a30 (training-7)"
    assert called(f"libpod-{ID}.scope", {}) == "Podman container 062d7d650a30"
    assert called(f"cri-containerd-{ID}.scope", {ID: "a\x1b[31m<{%b%}>"}) == "containerd container 062d7d650a30 (a??31m???b???)"
    assert called("machine-\x1b]0;x.scope", {}) == "machine-??0?x.scope"
    names = [f"Docker container {number}" for number in range(7)]
    listed = str(gpu_containers.AtRisk(names, ours=False))
    assert listed.startswith("Docker container 0, ") and listed.endswith(", Docker container 4 and 2 more")
