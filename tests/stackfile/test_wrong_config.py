"""Every kind of error in a stack file: reported once, at its path, with what is expected and the fix, and no other error."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.stackfile.stacks import HOST_KEY, REMOVED, problems, stack

PLANTED = "hunter2-planted"  # stands where secrets may stand; no message may show it


@dataclass(frozen=True)
class Wrong:
    what: str
    changes: dict[str, object]
    where: str
    says: tuple[str, ...]
    secrets: frozenset[str] = field(default=frozenset())


def wrong(what: str, where: str, *says: str, secrets: tuple[str, ...] = (), **changes: object) -> object:
    return pytest.param(Wrong(what, changes, where, says, frozenset(secrets)), id=what)


def one_host(name: str, **values: object) -> dict[str, object]:
    return {"hosts": {name: values}}


WRONG = [
    # names
    wrong("datacenter in capitals", "gpu-fleet:datacenter", '"US-West"', "lower-case letters", datacenter="US-West"),
    wrong("datacenter with a space", "gpu-fleet:datacenter", '"us west"', "lower-case letters", datacenter="us west"),
    wrong("datacenter empty", "gpu-fleet:datacenter", "is empty", datacenter=""),
    wrong("datacenter too long", "gpu-fleet:datacenter", "60 characters", "at most 40", "shorten", datacenter="d" * 60),
    wrong("datacenter a number", "gpu-fleet:datacenter", "found 7", '"7"', datacenter=7),
    wrong(
        "datacenter missing", "gpu-fleet:datacenter", "is missing", "pulumi config set gpu-fleet:datacenter", datacenter=REMOVED
    ),
    wrong("cluster missing", "gpu-fleet:cluster", "is missing", "pulumi config set gpu-fleet:cluster", cluster=REMOVED),
    wrong("cluster ends with a hyphen", "gpu-fleet:cluster", '"training-"', cluster="training-"),
    # sections
    wrong("unknown section", "gpu-fleet:metric", "unknown key 'metric'", "did you mean 'metrics'", metric={}),
    wrong("unknown section far from all", "gpu-fleet:zzzz", "unknown key 'zzzz'", "expected:", zzzz="x"),
    wrong(
        "login of a host that pulls",
        "gpu-fleet:hosts.gpu1.user",
        "has no effect with `connection: pull`",
        "remove user",
        **one_host("gpu1", connection="pull", gpus=8, user="ops"),
    ),
    # overrides
    wrong(
        "override of an unknown key",
        "gpu-fleet:alerts.rules.HostSilent.treshold",
        "unknown key 'treshold', did you mean 'threshold'?",
        alerts__rules={"HostSilent": {"treshold": 1}},
    ),
    wrong(
        "override with a duration of days",
        "gpu-fleet:alerts.rules.HostSilent.for",
        '"1d" is not a duration',
        "write for example 15m",
        alerts__rules={"HostSilent": {"for": "1d"}},
    ),
    wrong(
        "override with a fraction of an hour",
        "gpu-fleet:alerts.rules.HostSilent.for",
        '"1.5h" is not a duration of a rule',
        "whole hours",
        alerts__rules={"HostSilent": {"for": "1.5h"}},
    ),
    wrong(
        "override with another tool's severity",
        "gpu-fleet:alerts.rules.HostSilent.severity",
        'found "crit"',
        "did you mean critical?",
        alerts__rules={"HostSilent": {"severity": "crit"}},
    ),
    wrong(
        "override with a threshold in quotes",
        "gpu-fleet:alerts.rules.HostSilent.threshold",
        'found "88"',
        "a number",
        "write 88 without quotes",
        alerts__rules={"HostSilent": {"threshold": "88"}},
    ),
    wrong(
        "label of an override with a hyphen",
        "gpu-fleet:alerts.rules.HostSilent.labels.te-am",
        "a label name",
        alerts__rules={"HostSilent": {"labels": {"te-am": "ml"}}},
    ),
    # rollout
    wrong("canary of nobody", "gpu-fleet:rollout.canary", "found 0", "1 or more", "canary: 1", rollout={"canary": 0}),
    wrong("canary is true", "gpu-fleet:rollout.canary", "found true", "names and patterns", rollout={"canary": True}),
    wrong(
        "canary is not a host",
        "gpu-fleet:rollout.canary",
        "gpu-node-00 is not a host of this stack",
        "did you mean gpu-node-",
        rollout={"canary": ["gpu-node-00"]},
    ),
    wrong(
        "canary with half a range",
        "gpu-fleet:rollout.canary",
        "has a [ or ] without its partner",
        rollout={"canary": "gpu-node-[001"},
    ),
    wrong("batch above all hosts", "gpu-fleet:rollout.batch", '"120%"', "1% to 100%", rollout={"batch": "120%"}),
    wrong("batch of nobody", "gpu-fleet:rollout.batch", "found 0", "batch: 10%", rollout={"batch": 0}),
    wrong("failures below none", "gpu-fleet:rollout.maxFailures", "found -1", "0 or more", rollout={"maxFailures": -1}),
    wrong("pause without a unit", "gpu-fleet:rollout.pause", '"30"', "write for example 2m", rollout={"pause": "30"}),
    wrong("soak for pause", "gpu-fleet:rollout.soak", "unknown key 'soak'", rollout={"soak": "30s"}),
    wrong(
        "section is text",
        "gpu-fleet:metrics",
        'found "https://',
        "a mapping with the keys",
        metrics="https://mimir.example.com/api/v1/push",
    ),
    wrong("section is empty", "gpu-fleet:logs", "is empty", "fill it in, or remove it", logs=""),
    wrong("hosts are empty", "gpu-fleet:hosts", "is empty", hosts=""),
    wrong("section is a list", "gpu-fleet:logs", "found a list of 1", "a mapping", logs=["https://loki.example.com"]),
    # ssh
    wrong(
        "snake case of a key file", "gpu-fleet:ssh.private_key_file", "did you mean 'privateKeyFile'", ssh__private_key_file="x"
    ),
    wrong("unknown key in ssh", "gpu-fleet:ssh.private_key", "not allowed here", "sshPrivateKey", ssh__private_key=PLANTED),
    wrong(
        "password in ssh",
        "gpu-fleet:ssh.password",
        "a secret is not allowed here",
        "gpu-fleet:sshPrivateKey",
        ssh__password=PLANTED,
    ),
    wrong("snake case in ssh", "gpu-fleet:ssh.known_hosts_file", "'knownHostsFile'", ssh__known_hosts_file="known_hosts"),
    wrong("ssh user with host", "gpu-fleet:ssh.user", '"ops:x"', "without the host", ssh__user="ops:x"),
    wrong("ssh user missing", "gpu-fleet:ssh.user", "no login is known for gpu-node-001, gpu-node-002", ssh__user=REMOVED),
    wrong(
        "names that differ in case alone",
        "gpu-fleet:hosts.GPU-NODE-001",
        "already listed at gpu-fleet:hosts.gpu-node-[001:002] as gpu-node-001, which is the same name to DNS",
        **{"hosts__GPU-NODE-001": {"address": "10.0.1.9"}},
    ),
    wrong("ssh port zero", "gpu-fleet:ssh.port", "found 0", "from 1 to 65535", ssh__port=0),
    wrong("ssh port too high", "gpu-fleet:ssh.port", "found 65536", "from 1 to 65535", ssh__port=65536),
    wrong("ssh port in quotes", "gpu-fleet:ssh.port", 'found "22"', "write 22 without quotes", ssh__port="22"),
    wrong("sudo as a word", "gpu-fleet:ssh.sudo", 'found "yes"', "write true without quotes", ssh__sudo="yes"),
    wrong("known hosts not named", "gpu-fleet:ssh.knownHostsFile", "is missing", "make known-hosts", ssh__knownHostsFile=REMOVED),
    wrong(
        "known hosts file absent",
        "gpu-fleet:ssh.knownHostsFile",
        "nowhere does not exist",
        "make known-hosts",
        ssh__knownHostsFile="nowhere",
    ),
    wrong("known hosts is a directory", "gpu-fleet:ssh.knownHostsFile", "is a directory", ssh__knownHostsFile="."),
    wrong(
        "host not in known hosts",
        "gpu-fleet:ssh.knownHostsFile",
        "no key for new-node",
        "make known-hosts",
        **{"hosts__new-node": {"address": "10.9.9.9"}},
    ),
    wrong(
        "bastion not in known hosts",
        "gpu-fleet:ssh.knownHostsFile",
        "no key for the bastion jump.example.com",
        ssh__bastion={"host": "jump.example.com"},
    ),
    wrong(
        "bastion without host",
        "gpu-fleet:ssh.bastion.host",
        "is missing",
        "add `host: jump.example.com`",
        ssh__bastion={"user": "ops"},
    ),
    wrong("bastion as text", "gpu-fleet:ssh.bastion", 'found "jump', "a mapping with the keys", ssh__bastion="jump.example.com"),
    wrong(
        "bastion with a URL",
        "gpu-fleet:ssh.bastion.host",
        "neither an IP address nor a host name",
        ssh__bastion={"host": "ssh://jump"},
    ),
    wrong(
        "private key file absent", "gpu-fleet:ssh.privateKeyFile", "does not exist", "ssh-agent", ssh__privateKeyFile="nowhere/id"
    ),
    wrong(
        "private key secret without hosts",
        "gpu-fleet:sshPrivateKey",
        "no host is reached by SSH",
        secrets=("sshPrivateKey",),
        hosts=REMOVED,
    ),
    wrong(
        "sudo password without sudo",
        "gpu-fleet:sudoPassword",
        "sudo is used on no host",
        secrets=("sudoPassword",),
        ssh__user="root",
    ),
    wrong(
        "sudo passwords without sudo",
        "gpu-fleet:sudoPasswords",
        "sudo is used on no host",
        secrets=("sudoPasswords",),
        ssh__user="root",
    ),
    wrong("idle timeout below the longest wait", "gpu-fleet:ssh.idleTimeout", "too short", "6m", ssh__idleTimeout="1m"),
    # hosts
    wrong("hosts is a list", "gpu-fleet:hosts", "found a list of 1", "one line per host", hosts=["gpu1"]),
    wrong("hosts is text", "gpu-fleet:hosts", 'found "inventory/hosts.yml"', "gpu-fleet:inventory", hosts="inventory/hosts.yml"),
    wrong("host is an address", "gpu-fleet:hosts.gpu1", 'found "10.0.1.9"', "write {address: 10.0.1.9}", hosts__gpu1="10.0.1.9"),
    wrong(
        "host with unknown key",
        "gpu-fleet:hosts.gpu-node-[001:002].gpu",
        "unknown key 'gpu'",
        "'gpus'",
        **{"hosts__gpu-node-[001:002]__gpu": 8},
    ),
    wrong(
        "host with Ansible's key",
        "gpu-fleet:hosts.gpu1.ansible_host",
        "write `address`",
        **one_host("gpu1", ansible_host="10.0.1.9"),
    ),
    wrong(
        "host with a password",
        "gpu-fleet:hosts.gpu1.sudoPassword",
        "a secret is not allowed here",
        "gpu-fleet:sudoPassword",
        **one_host("gpu1", sudoPassword=PLANTED),
    ),
    wrong(
        "host name with a space", "gpu-fleet:hosts.gpu 1", "cannot be the name of a host", **one_host("gpu 1", address="10.0.1.9")
    ),
    wrong("host name too long", "gpu-fleet:hosts." + "n" * 101, "at most 100", **one_host("n" * 101, address="10.0.1.9")),
    wrong(
        "host name with a dot quotes its path",
        'gpu-fleet:hosts["gpu1.example.com"].gpus',
        "found true",
        **{"hosts": {"gpu1.example.com": {"address": "10.0.1.9", "gpus": True}}},
    ),
    wrong(
        "two patterns name one host",
        "gpu-fleet:hosts.gpu-node-002",
        "gpu-node-002 is already listed at gpu-fleet:hosts.gpu-node-[001:002]",
        **{"hosts__gpu-node-002": {"address": "10.0.1.77"}},
    ),
    wrong(
        "two hosts with one address",
        "gpu-fleet:hosts.twin.address",
        "gpu-node-001, twin are one machine",
        "address 10.0.1.1",
        hosts__twin={"address": "10.0.1.1"},
    ),
    wrong(
        "range not closed", "gpu-fleet:hosts.gpu-[1:3", "[ or ] without its partner", **one_host("gpu-[1:3", address="10.0.1.9")
    ),
    wrong("range of one number", "gpu-fleet:hosts.gpu-[3]", "[3] is not a range", "[001:016]", **one_host("gpu-[3]")),
    wrong("range backwards", "gpu-fleet:hosts.gpu-[9:3]", "runs backwards", **one_host("gpu-[9:3]")),
    wrong("range of unequal width", "gpu-fleet:hosts.gpu-[001:16]", "ends of 3 and 2 digits", **one_host("gpu-[001:16]")),
    wrong("range without end of letters", "gpu-fleet:hosts.gpu-[a:3]", "mixes kinds of ends", **one_host("gpu-[a:3]")),
    wrong("range far too long", "gpu-fleet:hosts.gpu-[1:99999999]", "more than 100,000 hosts", **one_host("gpu-[1:99999999]")),
    wrong(
        "addresses fewer than names",
        "gpu-fleet:hosts.gpu-[001:016].address",
        "gives 15 addresses for 16 hosts",
        "equally long",
        **one_host("gpu-[001:016]", address="10.0.1.[1:15]"),
    ),
    wrong(
        "one address for many",
        "gpu-fleet:hosts.gpu-[1:4].address",
        "gives 1 address for 4 hosts",
        "10.0.1.[1:16]",
        **one_host("gpu-[1:4]", address="10.0.1.1"),
    ),
    wrong(
        "address range broken",
        "gpu-fleet:hosts.gpu-[1:4].address",
        "[1-4] is not a range",
        **one_host("gpu-[1:4]", address="10.0.1.[1-4]"),
    ),
    wrong(
        "address out of range",
        "gpu-fleet:hosts.gpu1.address",
        '"10.0.1.256" is not an IPv4 address',
        **one_host("gpu1", address="10.0.1.256"),
    ),
    wrong(
        "address with user",
        "gpu-fleet:hosts.gpu1.address",
        '"ops@10.0.1.9"',
        "no user, no port",
        **one_host("gpu1", address="ops@10.0.1.9"),
    ),
    wrong(
        "address with port",
        "gpu-fleet:hosts.gpu1.address",
        '"10.0.1.9:22"',
        "no user, no port",
        **one_host("gpu1", address="10.0.1.9:22"),
    ),
    wrong(
        "gpus as text",
        "gpu-fleet:hosts.gpu-node-[001:002].gpus",
        'found "eight"',
        "a whole number from 1 to 64",
        **{"hosts__gpu-node-[001:002]__gpus": "eight"},
    ),
    wrong(
        "gpus in quotes",
        "gpu-fleet:hosts.gpu-node-[001:002].gpus",
        'found "8"',
        "write 8 without quotes",
        **{"hosts__gpu-node-[001:002]__gpus": "8"},
    ),
    wrong(
        "gpus zero",
        "gpu-fleet:hosts.gpu-node-[001:002].gpus",
        "found 0",
        "from 1 to 64",
        **{"hosts__gpu-node-[001:002]__gpus": 0},
    ),
    wrong("gpus a fraction", "gpu-fleet:hosts.gpu-node-[001:002].gpus", "found 7.5", **{"hosts__gpu-node-[001:002]__gpus": 7.5}),
    wrong(
        "exporter misspelt",
        "gpu-fleet:hosts.gpu1.exporter",
        'found "dcgm"',
        "did you mean dcgm-exporter",
        **one_host("gpu1", address="10.0.1.9", exporter="dcgm"),
    ),
    wrong(
        "exporter against vendor",
        "gpu-fleet:hosts.gpu1.exporter",
        "nvidia_gpu_exporter reads NVIDIA GPUs, and the vendor is amd",
        "textfile",
        **one_host("gpu1", address="10.0.1.9", vendor="amd", exporter="nvidia_gpu_exporter"),
    ),
    wrong(
        "dcgm against vendor",
        "gpu-fleet:hosts.gpu1.exporter",
        "dcgm-exporter reads NVIDIA GPUs",
        **one_host("gpu1", address="10.0.1.9", vendor="amd", exporter="dcgm-exporter"),
    ),
    wrong(
        "vendor unknown",
        "gpu-fleet:hosts.gpu1.vendor",
        'found "intel"',
        "auto, nvidia or amd",
        **one_host("gpu1", address="10.0.1.9", vendor="intel"),
    ),
    wrong(
        "connection unknown",
        "gpu-fleet:hosts.gpu1.connection",
        'found "docker"',
        "ssh, local or pull",
        **one_host("gpu1", address="10.0.1.9", connection="docker"),
    ),
    wrong(
        "prefix without local",
        "gpu-fleet:hosts.gpu1.prefix",
        "without `connection: local`",
        **one_host("gpu1", address="10.0.1.9", prefix="/tmp/x"),
    ),
    wrong(
        "address of a local host",
        "gpu-fleet:hosts.gpu1.address",
        "no effect with `connection: local`",
        **one_host("gpu1", connection="local", address="10.0.1.9"),
    ),
    wrong(
        "pattern of local hosts",
        "gpu-fleet:hosts.gpu[1:2]",
        "expands to 2 hosts, and all of them are this machine",
        **one_host("gpu[1:2]", connection="local"),
    ),
    wrong(
        "host key without type",
        "gpu-fleet:hosts.gpu1.hostKey",
        "a public host key",
        "ssh-keyscan",
        **one_host("gpu1", address="10.0.1.9", hostKey="AAAAC3NzaC1lZDI1NTE5"),
    ),
    wrong(
        "kernel log relative",
        "gpu-fleet:hosts.gpu1.kernelLog",
        '"kern.log" is not an absolute path',
        "journal",
        **one_host("gpu1", address="10.0.1.9", kernelLog="kern.log"),
    ),
    wrong(
        "python relative",
        "gpu-fleet:hosts.gpu1.python",
        '"python3" is not an absolute path',
        "auto, present, or an absolute path on the host",
        **one_host("gpu1", address="10.0.1.9", python="python3"),
    ),
    wrong(
        "tool path relative",
        "gpu-fleet:hosts.gpu1.toolPath",
        '"bin" is not an absolute path',
        **one_host("gpu1", address="10.0.1.9", toolPath=["bin"]),
    ),
    wrong(
        "tool path as text",
        "gpu-fleet:hosts.gpu1.toolPath",
        'found "/usr/lib/wsl/lib"',
        "write a list: [/usr/lib/wsl/lib]",
        **one_host("gpu1", address="10.0.1.9", toolPath="/usr/lib/wsl/lib"),
    ),
    wrong(
        "supervisord with systemd",
        "gpu-fleet:hosts.gpu1.supervisord",
        "`serviceManager: systemd`",
        **one_host("gpu1", address="10.0.1.9", supervisord="/x", serviceManager="systemd"),
    ),
    wrong(
        "service manager unknown",
        "gpu-fleet:hosts.gpu1.serviceManager",
        'found "runit"',
        "auto, systemd or supervisor",
        **one_host("gpu1", address="10.0.1.9", serviceManager="runit"),
    ),
    wrong(
        "ports collide on a host",
        "gpu-fleet:hosts.gpu1.ports.nodeExporter",
        "9400 is the port of gpuExporter too",
        **one_host("gpu1", address="10.0.1.9", ports={"nodeExporter": 9400}),
    ),
    wrong(
        "port out of range",
        "gpu-fleet:hosts.gpu1.ports.alloy",
        "found 99999",
        "from 1 to 65535",
        **one_host("gpu1", address="10.0.1.9", ports={"alloy": 99999}),
    ),
    wrong(
        "lost as a word",
        "gpu-fleet:hosts.gpu1.lost",
        'found "maybe"',
        "true or false",
        **one_host("gpu1", address="10.0.1.9", lost="maybe"),
    ),
    wrong(
        "private key of a host absent",
        "gpu-fleet:hosts.gpu1.privateKeyFile",
        "does not exist",
        **one_host("gpu1", address="10.0.1.9", privateKeyFile="no/key"),
    ),
    # metrics and logs
    wrong("metrics missing with hosts", "gpu-fleet:metrics", "is missing, and the stack has hosts", metrics=REMOVED),
    wrong(
        "metrics without url",
        "gpu-fleet:metrics.url",
        "is missing",
        "https://mimir.example.com/api/v1/push",
        metrics__url=REMOVED,
    ),
    wrong(
        "url without scheme",
        "gpu-fleet:metrics.url",
        "does not start with http:// or https://",
        metrics__url="mimir.example.com/api/v1/push",
    ),
    wrong(
        "url with another scheme",
        "gpu-fleet:metrics.url",
        "does not start with http",
        metrics__url="ftp://mimir.example.com/api/v1/push",
    ),
    wrong("url without host", "gpu-fleet:metrics.url", "names no host", metrics__url="https:///api/v1/push"),
    wrong(
        "url with password",
        "gpu-fleet:metrics.url",
        "user name or a password (not shown)",
        metrics__url=f"https://w:{PLANTED}@m.example.com/api/v1/push",
    ),
    wrong(
        "url with a query",
        "gpu-fleet:metrics.url",
        "has a query",
        metrics__url=f"https://m.example.com/api/v1/push?token={PLANTED}",
    ),
    wrong(
        "url with a port out of range",
        "gpu-fleet:metrics.url",
        "is not a URL",
        metrics__url="https://m.example.com:99999/api/v1/push",
    ),
    wrong(
        "Mimir without its push path",
        "gpu-fleet:metrics.url",
        "write https://m.example.com/api/v1/push",
        metrics__url="https://m.example.com",
    ),
    wrong(
        "Prometheus' query path",
        "gpu-fleet:metrics.url",
        "write https://m.example.com/api/v1/push",
        metrics__url="https://m.example.com/prometheus/api/v1/query",
    ),
    wrong(
        "the push path of no store",
        "gpu-fleet:metrics.url",
        "…/api/v1/write for Prometheus and VictoriaMetrics, …/api/v1/receive for Thanos",
        metrics__url="https://m.example.com/api/v1/import",
    ),
    wrong(
        "an endpoint instead of the URL of queries",
        "gpu-fleet:metrics.queryUrl",
        "write https://m.example.com/select/0/prometheus",
        metrics__queryUrl="https://m.example.com/select/0/prometheus/api/v1/query",
    ),
    wrong(
        "a bearer token without its secret",
        "gpu-fleet:logsBearerToken",
        "`pulumi config set --secret gpu-fleet:logsBearerToken`",
        logs__bearerToken=True,
    ),
    wrong(
        "a password and a bearer token",
        "gpu-fleet:metrics.bearerToken",
        "`username` is set too",
        secrets=("metricsPassword", "metricsBearerToken"),
        metrics__username="writer",
        metrics__bearerToken=True,
    ),
    wrong(
        "credentials among the headers",
        "gpu-fleet:metrics.headers",
        "write `username` or `bearerToken`",
        metrics__headers={"authorization": "x"},
    ),
    wrong("a tenant among the headers", "gpu-fleet:logs.headers", "write `tenant`", logs__headers={"X-Scope-OrgID": "a"}),
    wrong(
        "an authority that is not there",
        "gpu-fleet:metrics.tls.ca",
        "certs/ca.pem does not exist",
        metrics__tls={"ca": "certs/ca.pem"},
    ),
    wrong(
        "a file that is no certificate",
        "gpu-fleet:metrics.tls.ca",
        "known.yml holds no certificate",
        metrics__tls={"ca": "known.yml"},
    ),
    wrong(
        "Loki without its push path",
        "gpu-fleet:logs.url",
        "write https://l.example.com/loki/api/v1/push",
        logs__url="https://l.example.com/",
    ),
    wrong(
        "Loki with Mimir's path",
        "gpu-fleet:logs.url",
        "write https://l.example.com/loki/api/v1/push",
        logs__url="https://l.example.com/api/v1/push",
    ),
    wrong("tenant with a space", "gpu-fleet:metrics.tenant", '"us west"', "X-Scope-OrgID", metrics__tenant="us west"),
    wrong("tenant with a slash", "gpu-fleet:logs.tenant", '"a/b"', logs__tenant="a/b"),
    wrong("outage without unit", "gpu-fleet:metrics.outage", '"8" is not a duration', "for example 6h", metrics__outage="8"),
    wrong(
        "outage too long", "gpu-fleet:metrics.outage", '"30h500m50h" is too long', "from 5m to 72h", metrics__outage="30h500m50h"
    ),
    wrong("outage too short", "gpu-fleet:metrics.outage", "is too short", metrics__outage="10s"),
    wrong("outage a number", "gpu-fleet:metrics.outage", "found 8", metrics__outage=8),
    wrong(
        "password in metrics",
        "gpu-fleet:metrics.password",
        "a secret is not allowed here",
        "gpu-fleet:metricsPassword",
        metrics__password=PLANTED,
    ),
    wrong(
        "password in clear text",
        "gpu-fleet:metricsPassword",
        "a secret in clear text",
        "pulumi config set --secret gpu-fleet:metricsPassword",
        metricsPassword=PLANTED,
        metrics__username="writer",
    ),
    wrong(
        "encrypted section",
        "gpu-fleet:metrics",
        "holds an encrypted value",
        "gpu-fleet:metricsPassword",
        secrets=("metrics",),
        metrics=REMOVED,
    ),
    wrong(
        "user without password",
        "gpu-fleet:metricsPassword",
        "is missing",
        "gpu-fleet:metrics.username is writer",
        metrics__username="writer",
    ),
    wrong(
        "password without user",
        "gpu-fleet:metrics.username",
        "is missing",
        "gpu-fleet:metricsPassword is set",
        secrets=("metricsPassword",),
    ),
    wrong(
        "logs user without password",
        "gpu-fleet:logsPassword",
        "is missing",
        "--secret gpu-fleet:logsPassword",
        logs__username="writer",
    ),
    wrong("docker logs without logs", "gpu-fleet:logs.url", "is missing", logs={"docker": True}),
    wrong("docker as text", "gpu-fleet:logs.docker", 'found "true"', "write true without quotes", logs__docker="true"),
    # artifacts, dcgm
    wrong(
        "artifacts source unknown",
        "gpu-fleet:artifacts.source",
        'found "mirorr"',
        "did you mean mirror",
        artifacts={"source": "mirorr"},
    ),
    wrong(
        "controller without directory",
        "gpu-fleet:artifacts.directory",
        "is missing with `source: controller`",
        "`make artifacts` fills",
        artifacts={"source": "controller"},
    ),
    wrong("mirror without url", "gpu-fleet:artifacts.url", "is missing with `source: mirror`", artifacts={"source": "mirror"}),
    wrong(
        "url without mirror",
        "gpu-fleet:artifacts.url",
        "no effect with `source: upstream`",
        artifacts={"url": "https://m.example.com"},
    ),
    wrong(
        "directory without controller",
        "gpu-fleet:artifacts.directory",
        "no effect with `source: upstream`",
        artifacts={"directory": "x"},
    ),
    wrong(
        "counters misspelt",
        "gpu-fleet:dcgm.counters",
        'found "profilling"',
        "did you mean profiling",
        dcgm={"counters": "profilling"},
    ),
    wrong("counters file absent", "gpu-fleet:dcgm.counters", "mine.csv does not exist", dcgm={"counters": "mine.csv"}),
    # grafana, rulers
    wrong(
        "grafana without auth",
        "gpu-fleet:grafanaAuth",
        "is missing",
        "--secret gpu-fleet:grafanaAuth",
        grafana={"url": "https://g.example.com"},
    ),
    wrong("auth without grafana", "gpu-fleet:grafana", "is missing", "gpu-fleet:grafanaAuth is set", secrets=("grafanaAuth",)),
    wrong(
        "grafana auth inside",
        "gpu-fleet:grafana.auth",
        "a secret is not allowed here",
        secrets=("grafanaAuth",),
        grafana={"url": "https://g.example.com", "auth": PLANTED},
    ),
    wrong(
        "grafana endpoint for server",
        "gpu-fleet:grafana.url",
        "write https://g.example.com",
        secrets=("grafanaAuth",),
        grafana={"url": "https://g.example.com/api/dashboards/db"},
    ),
    wrong(
        "ruler with the push path",
        "gpu-fleet:rulers.mimir.url",
        "one endpoint of the server",
        "write https://m.example.com",
        rulers__mimir__url="https://m.example.com/api/v1/push",
    ),
    wrong("ruler unknown", "gpu-fleet:rulers.mimr", "did you mean 'mimir'", rulers__mimr={"url": "https://m.example.com"}),
    wrong("ruler user without password", "gpu-fleet:rulersPassword", "is missing", rulers__loki__username="ruler"),
    # alerts
    wrong("alert target unknown", "gpu-fleet:alerts.targets[0]", 'found "rulr"', "did you mean ruler", alerts__targets=["rulr"]),
    wrong("alert targets empty", "gpu-fleet:alerts.targets", "found an empty list", alerts__targets=[]),
    wrong("alert target twice", "gpu-fleet:alerts.targets", "names a target twice", alerts__targets=["ruler", "ruler"]),
    wrong("target ruler without rulers", "gpu-fleet:alerts.targets", "gpu-fleet:rulers is missing", rulers=REMOVED),
    wrong(
        "target grafana without grafana", "gpu-fleet:alerts.targets", "gpu-fleet:grafana is missing", alerts__targets=["grafana"]
    ),
    wrong(
        "target grafana without the ruler that records",
        "gpu-fleet:alerts.targets",
        "gpu-fleet:rulers is missing",
        alerts__targets=["grafana"],
        secrets=("grafanaAuth",),
        grafana={"url": "https://grafana.example.com"},
        rulers=REMOVED,
    ),
    wrong(
        "target grafana with Loki alone",
        "gpu-fleet:alerts.targets",
        "gpu-fleet:rulers has no mimir",
        alerts__targets=["grafana"],
        secrets=("grafanaAuth",),
        grafana={"url": "https://grafana.example.com"},
        rulers__mimir=REMOVED,
    ),
    wrong(
        "runbook URL that is a path",
        "gpu-fleet:alerts.runbookUrl",
        "does not start with http",
        alerts__runbookUrl="alerts/runbooks",
    ),
    wrong(
        "month misspelt",
        "gpu-fleet:alerts.muteTimings.holidays.months[0]",
        "did you mean december",
        alerts__muteTimings={"holidays": {"months": ["dezember"]}},
    ),
    wrong(
        "folder permission for two",
        "gpu-fleet:grafana.folderPermissions[0]",
        "must be about one subject",
        secrets=("grafanaAuth",),
        grafana={"url": "https://g.example.com", "folderPermissions": [{"role": "Viewer", "teamId": "3", "permission": "View"}]},
    ),
    wrong(
        "price below nothing",
        "gpu-fleet:grafana.costPerGpuHour",
        "found -1",
        "above 0",
        secrets=("grafanaAuth",),
        grafana={"url": "https://g.example.com", "costPerGpuHour": -1},
    ),
    wrong(
        "price in quotes",
        "gpu-fleet:grafana.costPerGpuHour",
        'found "2"',
        "a number",
        secrets=("grafanaAuth",),
        grafana={"url": "https://g.example.com", "costPerGpuHour": "2"},
    ),
    wrong(
        "price of a model below nothing",
        "gpu-fleet:grafana.costPerGpuHour.H100",
        "found 0",
        "above 0",
        secrets=("grafanaAuth",),
        grafana={"url": "https://g.example.com", "costPerGpuHour": {"H100": 0, "default": 1}},
    ),
    wrong(
        "price of a wrong model",
        "gpu-fleet:grafana.costPerGpuHour.H100 (NVL)",
        'found "H100 (NVL)"',
        "words of a GPU's model",
        secrets=("grafanaAuth",),
        grafana={"url": "https://g.example.com", "costPerGpuHour": {"H100 (NVL)": 2}},
    ),
    wrong(
        "price from no day",
        "gpu-fleet:grafana.costPerGpuHour.H100[1].from",
        'found "2026-02-30"',
        "a day such as 2026-11-01",
        secrets=("grafanaAuth",),
        grafana={"url": "https://g.example.com", "costPerGpuHour": {"H100": [{"cost": 2}, {"cost": 2, "from": "2026-02-30"}]}},
    ),
    wrong(
        "price from a day without a price",
        "gpu-fleet:grafana.costPerGpuHour[0].cost",
        "is missing",
        "a number",
        secrets=("grafanaAuth",),
        grafana={"url": "https://g.example.com", "costPerGpuHour": [{"from": "2026-11-01"}]},
    ),
    wrong(
        "prices in disorder",
        "gpu-fleet:grafana.costPerGpuHour.default",
        "not in order",
        "the oldest price first",
        secrets=("grafanaAuth",),
        grafana={
            "url": "https://g.example.com",
            "costPerGpuHour": {"default": [{"from": "2026-11-01", "cost": 2}, {"from": "2026-10-01", "cost": 1}]},
        },
    ),
    wrong(
        "second price without a day",
        "gpu-fleet:grafana.costPerGpuHour.default",
        "only the first price",
        "the day of each later price",
        secrets=("grafanaAuth",),
        grafana={"url": "https://g.example.com", "costPerGpuHour": {"default": [{"cost": 2}, {"cost": 1}]}},
    ),
    wrong(
        "no price of any model",
        "gpu-fleet:grafana.costPerGpuHour",
        "an empty mapping",
        "a mapping",
        secrets=("grafanaAuth",),
        grafana={"url": "https://g.example.com", "costPerGpuHour": {}},
    ),
    wrong(
        "currency in words",
        "gpu-fleet:grafana.currency",
        '"dollar"',
        "ISO 4217",
        secrets=("grafanaAuth",),
        grafana={"url": "https://g.example.com", "costPerGpuHour": 2, "currency": "dollar"},
    ),
    wrong(
        "receiver says nothing",
        "gpu-fleet:alerts.receivers.team",
        "has no channel",
        "webhook, slack, pagerduty or email",
        alerts__receivers__team={},
    ),
    wrong(
        "receiver kind unknown",
        "gpu-fleet:alerts.receivers.team.slak",
        "did you mean 'slack'",
        alerts__receivers__team={"slak": {}},
    ),
    wrong(
        "receiver opsgenie", "gpu-fleet:alerts.receivers.team.opsgenie", "use `webhook`", alerts__receivers__team={"opsgenie": {}}
    ),
    wrong(
        "slack url in clear text",
        "gpu-fleet:alerts.receivers.team.slack.urlSecret",
        "the name of a secret key",
        alerts__receivers__team__slack={"urlSecret": f"https://hooks.slack.com/services/{PLANTED}", "channel": "#gpu"},
    ),
    wrong(
        "slack without channel",
        "gpu-fleet:alerts.receivers.team.slack.channel",
        "is missing",
        secrets=("slackUrl",),
        alerts__receivers__team__slack={"urlSecret": "slackUrl"},
    ),
    wrong(
        "secret of a receiver not set",
        "gpu-fleet:alerts.receivers.team.slack.urlSecret",
        "gpu-fleet:slackUrl is not set",
        "pulumi config set --secret gpu-fleet:slackUrl",
        alerts__receivers__team__slack={"urlSecret": "slackUrl", "channel": "#gpu"},
    ),
    wrong(
        "secret of a receiver is another's",
        "gpu-fleet:alerts.receivers.team.pagerduty.routingKeySecret",
        "has another use",
        alerts__receivers__team__pagerduty={"routingKeySecret": "sudoPassword"},
    ),
    wrong(
        "secret nobody uses",
        "gpu-fleet:slckUrl",
        "unknown key 'slckUrl'",
        "did you mean 'slackUrl'",
        secrets=("slckUrl", "slackUrl"),
        alerts__receivers__team__slack={"urlSecret": "slackUrl", "channel": "#gpu"},
    ),
    wrong(
        "webhook with two urls",
        "gpu-fleet:alerts.receivers.team.webhook",
        "both url and urlSecret",
        secrets=("hook",),
        alerts__receivers__team__webhook__urlSecret="hook",
    ),
    wrong(
        "webhook without url",
        "gpu-fleet:alerts.receivers.team.webhook",
        "neither url nor urlSecret",
        alerts__receivers__team__webhook__url=REMOVED,
    ),
    wrong(
        "webhook user without password",
        "gpu-fleet:alerts.receivers.team.webhook",
        "only one of username and passwordSecret",
        alerts__receivers__team__webhook__username="x",
    ),
    wrong(
        "email to nobody",
        "gpu-fleet:alerts.receivers.team.email.to",
        'found "oncall"',
        alerts__receivers__team__email={"to": "oncall", "from": "a@example.com", "smarthost": "smtp.example.com:587"},
    ),
    wrong(
        "email server without port",
        "gpu-fleet:alerts.receivers.team.email.smarthost",
        'found "smtp.example.com"',
        alerts__receivers__team__email={"to": "o@example.com", "from": "a@example.com", "smarthost": "smtp.example.com"},
    ),
    wrong(
        "two receivers and no default",
        "gpu-fleet:alerts.receiver",
        "there are 2 receivers",
        "night or team",
        alerts__receivers__night={"webhook": {"url": "https://n.example.com"}},
    ),
    wrong(
        "default receiver unknown",
        "gpu-fleet:alerts.receiver",
        '"tam" is not in gpu-fleet:alerts.receivers',
        "did you mean team",
        alerts__receiver="tam",
    ),
    wrong(
        "route to nobody",
        "gpu-fleet:alerts.routes[0].receiver",
        '"boss" is not in',
        alerts__routes=[{"matchers": ["severity=critical"], "receiver": "boss"}],
    ),
    wrong(
        "route without matchers",
        "gpu-fleet:alerts.routes[0].matchers",
        "is missing",
        "severity=critical",
        alerts__routes=[{"receiver": "team"}],
    ),
    wrong(
        "matcher that is none",
        "gpu-fleet:alerts.routes[0].matchers[0]",
        '"critical"',
        "label=value",
        alerts__routes=[{"matchers": ["critical"], "receiver": "team"}],
    ),
    wrong(
        "route mutes an unknown time",
        "gpu-fleet:alerts.routes[0].muteTimings[0]",
        '"nights" is not in gpu-fleet:alerts.muteTimings',
        alerts__routes=[{"matchers": ["a=b"], "receiver": "team", "muteTimings": ["nights"]}],
    ),
    wrong(
        "mute timing without condition",
        "gpu-fleet:alerts.muteTimings.always",
        "silent for ever",
        alerts__muteTimings={"always": {}},
    ),
    wrong(
        "mute timing over midnight",
        "gpu-fleet:alerts.muteTimings.nights.times[0]",
        "runs from 22:00 to 06:00",
        "two ranges",
        alerts__muteTimings={"nights": {"times": [{"start": "22:00", "end": "06:00"}]}},
    ),
    wrong(
        "mute timing in no zone",
        "gpu-fleet:alerts.muteTimings.sunday.location",
        "not a time zone",
        "Europe/Berlin",
        alerts__muteTimings={"sunday": {"weekdays": ["sunday"], "location": "Europe/Berln"}},
    ),
    wrong(
        "weekday misspelt",
        "gpu-fleet:alerts.muteTimings.sunday.weekdays[0]",
        'found "sundy"',
        "did you mean sunday",
        alerts__muteTimings={"sunday": {"weekdays": ["sundy"]}},
    ),
    wrong(
        "time of day that is none",
        "gpu-fleet:alerts.muteTimings.n.times[0].start",
        '"25:00"',
        "HH:MM",
        alerts__muteTimings={"n": {"times": [{"start": "25:00", "end": "24:00"}]}},
    ),
    wrong("repeat interval too short", "gpu-fleet:alerts.repeatInterval", '"1s" is too short', alerts__repeatInterval="1s"),
    # backend
    wrong(
        "backend ports collide",
        "gpu-fleet:backend.loki.port",
        "9009 is gpu-fleet:backend.mimir.port too",
        backend={"loki": {"port": 9009}},
    ),
    wrong(
        "backend against a local host",
        "gpu-fleet:hosts.gpu1.ports.gpuExporter",
        "9400 is gpu-fleet:backend.loki.port too",
        backend={"loki": {"port": 9400}},
        **one_host("gpu1", connection="local", prefix="p"),
    ),
    wrong("backend unknown server", "gpu-fleet:backend.tempo", "unknown key 'tempo'", backend={"tempo": {}}),
    # inventory
    wrong("inventory and hosts", "gpu-fleet:inventory", "the stack has hosts too", inventory="known.yml"),
    wrong("inventory absent", "gpu-fleet:inventory.path", "nowhere.yml does not exist", hosts=REMOVED, inventory="nowhere.yml"),
    wrong(
        "inventory a directory",
        "gpu-fleet:inventory.path",
        "is a directory",
        "ansible-inventory --list --yaml",
        hosts=REMOVED,
        inventory=".",
    ),
    wrong(
        "inventory key unknown",
        "gpu-fleet:inventory.groups",
        "unknown key 'groups'",
        hosts=REMOVED,
        inventory={"path": "known.yml", "groups": ["a"]},
    ),
    wrong(
        "host key with local",
        "gpu-fleet:hosts.gpu1.hostKey",
        "no effect with `connection: local`",
        **one_host("gpu1", connection="local", hostKey=HOST_KEY),
    ),
]


@pytest.mark.parametrize("case", WRONG)
def test_an_error_is_reported_once_where_it_is(case: Wrong, base: Path) -> None:
    (base / "known.yml").write_text("hosts: {spare: {address: 10.0.7.7}}\n")
    errors = problems(stack(**case.changes), base, case.secrets)
    assert errors is not None, f"{case.what} was accepted"
    text = str(errors)
    assert [problem.where for problem in errors.problems] == [case.where], f"reported elsewhere, or not alone:\n{text}"
    for words in case.says:
        assert words in text, f"{words!r} is missing in:\n{text}"
    problem = errors.problems[0]
    assert problem.expected or problem.fix, f"no fix is named:\n{text}"
    assert PLANTED not in text, "a message shows what may be a secret"


def test_there_are_at_least_sixty_kinds_of_errors() -> None:
    assert len({param.values[0].what for param in WRONG}) == len(WRONG) >= 60
