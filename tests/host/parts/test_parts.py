"""What the parts say together: one bundle for every stack, and what a host is asked to give for each option."""

from __future__ import annotations

import re
from itertools import product

import pytest

from gpu_fleet.host.bundle import Bundle
from gpu_fleet.host.part import Part
from gpu_fleet.host.parts import HostOptions, standard_parts
from gpu_fleet.host.parts.dcgm_exporter import DcgmExporter
from gpu_fleet.host.parts.monitoring import GRAFANA, SERVERS, Monitoring
from gpu_fleet.stackfile.counters import counters
from tests.checkout import REPO
from tests.host.parts.places import NO_PROGRAMS, parts_of

FLAGS = ("metrics_login", "logs", "logs_login", "docker_logs")


def part(name: str, **options: object) -> Part:
    [found] = [part for part in standard_parts(HostOptions(programs=NO_PROGRAMS, **options)) if part.name == name]
    return found


@pytest.mark.parametrize("values", list(product([False, True], repeat=4)), ids=str)
def test_every_combination_of_options_makes_a_bundle(values: tuple[bool, ...]) -> None:
    options = dict(zip(FLAGS, values, strict=True))
    first = Bundle.of(standard_parts(HostOptions(programs=NO_PROGRAMS, **options)))
    again = Bundle.of(standard_parts(HostOptions(programs=NO_PROGRAMS, **options)))
    assert first.digest == again.digest


@pytest.mark.parametrize(
    ("options", "secrets"),
    [
        ({}, ()),
        ({"metrics_login": True}, ("metrics-password",)),
        ({"logs_login": True}, ("logs-password",)),
        ({"metrics_login": True, "logs_login": True}, ("metrics-password", "logs-password")),
        ({"logs": False, "logs_login": True}, ()),
    ],
)
def test_a_host_gets_only_the_passwords_it_sends(options: dict[str, bool], secrets: tuple[str, ...]) -> None:
    assert part("alloy", **options).secrets == secrets


def test_alloy_is_in_the_docker_group_only_when_container_logs_are_asked_for() -> None:
    assert "docker" not in part("alloy").users[0].groups, "this group is as good as root"
    assert "docker" in part("alloy", docker_logs=True).users[0].groups


def test_alloy_keeps_samples_half_as_long_again_as_the_stated_outage() -> None:
    assert part("alloy", metrics_outage_s=6 * 3600).settings["GPU_FLEET_METRICS_WAL_KEEP"] == "32400s"


def test_alloy_reloads_its_configuration_also_when_a_file_of_another_part_comes() -> None:
    parts = standard_parts(HostOptions(programs=NO_PROGRAMS))
    config = {file.path for part in parts for file in part.files if file.path.startswith("/etc/gpu-fleet/alloy/")}
    assert config <= set(part("alloy").units[0].reload_on)


def test_no_two_exporters_are_wanted_on_one_host() -> None:
    of_dcgm = {"dcgm-exporter", "dcgm-exporter-podman", "dcgm-exporter-host"}
    exporters = of_dcgm | {"nvidia-gpu-exporter", "textfile-nvidia", "textfile-amd"}
    for mode, run, vendor in (
        ("dcgm-exporter", "docker", "nvidia"),
        ("dcgm-exporter", "podman", "nvidia"),
        ("dcgm-exporter", "packages", "nvidia"),
        ("nvidia_gpu_exporter", "none", "nvidia"),
        ("textfile", "none", "nvidia"),
        ("textfile", "none", "amd"),
    ):
        facts = {"GPU_FLEET_EXPORTER_MODE": mode, "GPU_FLEET_DCGM_RUN": run, "GPU_VENDOR": vendor}
        assert len({part.name for part in parts_of(facts)} & exporters) == 1, facts


def test_profiling_counters_come_on_top_of_the_standard_ones() -> None:
    [standard] = [file for file in part("dcgm-counters").files if file.path.endswith(".csv")]
    dcgm = DcgmExporter(counters=counters("profiling").text)
    [profiling] = [file for file in part("dcgm-counters", dcgm=dcgm).files if file.path.endswith(".csv")]
    assert profiling.content.startswith(standard.content) and b"DCGM_FI_PROF_SM_ACTIVE" in profiling.content


def test_everything_listens_on_loopback_unless_a_setting_says_otherwise() -> None:
    listens = {
        value
        for part in standard_parts(HostOptions(programs=NO_PROGRAMS))
        for name, value in part.settings.items()
        if name.endswith("_LISTEN")
    }
    assert listens and all(value.startswith("127.0.0.1:") for value in listens)


def test_a_server_restarts_on_each_setting_that_it_reads_and_on_no_other() -> None:
    """On a host that is a GPU host too, a new port of its exporter must not make Mimir replay what it had in memory."""
    rootfs = REPO / "gpu_fleet/host/rootfs"
    parts = Monitoring(programs={name: {} for name in (*SERVERS, GRAFANA)}, certificate="").parts()
    for unit in [unit for part in parts for unit in part.units]:
        service = (rootfs / f"etc/systemd/system/{unit.name}.service").read_text()
        texts = [service, *((rootfs / cause[1:]).read_text() for cause in unit.restart_on if (rootfs / cause[1:]).is_file())]
        read = {name for text in texts for name in re.findall(r"GPU_FLEET_(?!PREFIX\b)\w+", text)}
        assert {cause.partition("/")[2] for cause in unit.restart_on if cause.startswith("setting")} == read, unit.name
