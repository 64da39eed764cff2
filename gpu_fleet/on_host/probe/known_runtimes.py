"""By what each runtime for containers or guests is recognized on a host."""

from __future__ import annotations

from typing import NamedTuple


class Runtime(NamedTuple):
    """Patterns with spaces between them. `processes`: names have at most 15 characters. `paths`: those that exist only where the
    runtime was used: an own installation that was removed leaves empty directories, and Ubuntu Server has the LXD snap without
    anybody having asked for it. `in_homes`: below the home of each local user, for those that run without root."""

    name: str
    processes: str = ""
    units: str = ""
    programs: str = ""
    packages: str = ""
    paths: str = ""
    in_homes: str = ""


RUNTIMES = (
    Runtime(
        name="Kubernetes",
        processes="kubelet kubelite k3s k3s-server k3s-agent rke2 k0s kube-proxy",
        units="kubelet.service k3s*.service rke2-*.service k0s*.service snap.microk8s.*.service snap.kubelet*.service"
        " snap.k8s.*.service",
        programs="kubelet kubeadm k3s rke2 k0s",
        packages="kubelet kubeadm rke2-*",
        paths="/etc/kubernetes/* /var/lib/kubelet/* /etc/rancher/* /var/lib/rancher/* /var/lib/k0s/* /var/snap/microk8s"
        " /var/snap/k8s",
    ),
    Runtime(
        name="containerd",
        processes="containerd buildkitd nerdctl",
        units="containerd.service buildkit.service nerdctl*.service",
        programs="containerd nerdctl buildkitd",
        packages="containerd containerd.io moby-containerd nerdctl*",
        paths="/etc/containerd/* /var/lib/nerdctl/*",
        in_homes="bin/containerd .local/bin/containerd .local/share/nerdctl/*",
    ),
    Runtime(
        name="CRI-O",
        processes="crio",
        units="crio.service",
        programs="crio",
        packages="cri-o*",
        paths="/etc/crio/* /run/crio/*",
    ),
    Runtime(
        name="Docker",
        processes="dockerd rootlesskit balenad balena-engine-* cri-dockerd",
        units="docker.service docker.socket balena*.service cri-docker.service snap.docker.*.service",
        programs="docker dockerd dockerd-rootless.sh balenad balena-engine cri-dockerd",
        packages="docker docker.io docker-ce docker-ce-cli docker-engine docker-desktop moby-engine",
        paths="/etc/docker/daemon.json /var/lib/docker/containers/* /var/lib/docker/volumes/*/ /var/snap/docker"
        " /run/user/*/docker.sock",
        in_homes="bin/dockerd .local/bin/dockerd .local/share/docker/*",
    ),
    Runtime(
        name="Podman",
        processes="podman conmon",
        units="podman.socket podman.service",
        programs="podman buildah",
        packages="podman buildah",
        paths="/etc/containers/systemd/* /var/lib/containers/storage/*-containers/*/ /var/lib/containers/storage/*-images/*/"
        " /run/user/*/libpod",
        in_homes=".local/share/containers/storage/* .config/containers/systemd/*",
    ),
    Runtime(
        name="LXD",
        processes="lxd lxcfs incusd lxc-start",
        units="lxd.service incus.service lxc@.service",
        programs="incusd lxc-start",
        packages="lxd incus incus-base lxc",
        paths="/var/lib/lxd/* /var/lib/incus/* /var/lib/lxc/*/config /var/snap/lxd/common/lxd/database/*",
    ),
    Runtime(
        name="virtual machines",
        # qemu-ga runs in a guest.
        processes="libvirtd virtqemud virtlxcd qemu-[!g]* kvm cloud-hyperviso firecracker VBoxHeadless VirtualBoxVM vmware-vmx"
        " xenconsoled pvedaemon ovs-vswitchd",
        units="libvirtd.service virtqemud.service pvedaemon.service xcp-*.service",
        programs="libvirtd virtqemud qm firecracker cloud-hypervisor",
        packages="libvirt-daemon libvirt-daemon-system libvirt-daemon-driver-qemu pve-manager",
        paths="/etc/libvirt/qemu/*.xml /etc/pve/*",
    ),
    Runtime(
        name="systemd-nspawn",
        processes="systemd-nspawn systemd-vmspawn",
        units="systemd-nspawn@?*.service",
        paths="/etc/systemd/nspawn/* /var/lib/machines/*",
    ),
    Runtime(
        name="HPC containers",
        processes="enroot starter-suid",
        units="enroot*.service",
        programs="enroot apptainer singularity ch-run shifter sarus",
        packages="enroot enroot+caps apptainer apptainer-suid singularity-ce singularity-container",
        paths="/etc/enroot/* /usr/share/pyxis/* /etc/slurm/plugstack.conf.d/pyxis.conf /etc/slurm/oci.conf"
        " /usr/lib/slurm/spank_pyxis.so /usr/lib64/slurm/spank_pyxis.so /usr/lib/*/slurm*/spank_pyxis.so"
        " /usr/local/lib/slurm/spank_pyxis.so /opt/*/lib/slurm/spank_pyxis.so",
    ),
    Runtime(
        name="Nomad",
        processes="nomad mesos-agent",
        units="nomad.service mesos-*.service",
        programs="nomad",
        packages="nomad",
        paths="/etc/nomad.d/*",
    ),
    Runtime(name="CNI", paths="/etc/cni/net.d/*.conf /etc/cni/net.d/*.conflist"),
)
