"""The policies. Each reads one resource as the program registers it and yields what is wrong with it. Pure.

What the stack file can get wrong is refused when it is read, with its place in the file (gpu_fleet/stackfile/). These checks look
at the result instead, whatever it was made from: also at what a fork of this project adds or changes in its components.

Not here: what only the host, the cluster or the chart archive knows (docs/security.md says which tests guard that).
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

UNKNOWN: Final = "[unknown]"  # a secret, or a value that only a deployed resource has
_HOST, _BUNDLE, _PROVIDER = "gpu-fleet:host:Host", "gpu-fleet:host:Bundle", "pulumi:providers:gpu-fleet"
_RELEASE, _CLUSTER = "kubernetes:helm.sh/v3:Release", "gpu-fleet:kubernetes:Cluster"


@dataclass(frozen=True, kw_only=True)
class Resource:
    """`inputs`: without the engine's marks; what is marked as secret is UNKNOWN. `provider`: the inputs of its provider."""

    type: str
    name: str
    inputs: Mapping[str, Any]
    provider: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Violation:
    """What is wrong with one resource."""

    found: str
    expected: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class Policy:
    """`is_advisory`: shown, but no reason to stop a deployment."""

    name: str
    description: str
    check: Callable[[Resource], Iterator[Violation]]
    is_advisory: bool = False


Grouped = Mapping[tuple[Policy, Violation], Sequence[str]]  # to the resources, TYPE::NAME, in which it was found


def findings(resources: Iterable[tuple[str, str, Mapping[str, Any]]]) -> Grouped:
    """`resources`: type, name and inputs of everything that a stack registers. What a thousand hosts share is one entry."""
    known = sorted(resources, key=lambda one: one[:2])  # a program registers them concurrently, in another order each time
    providers = {type_.removeprefix("pulumi:providers:"): inputs for type_, _, inputs in known if type_.startswith("pulumi:prov")}
    found: dict[tuple[Policy, Violation], list[str]] = {}
    for type_, name, inputs in known:
        one = Resource(type=type_, name=name, inputs=inputs, provider=providers.get(type_.partition(":")[0], {}))
        for policy in POLICIES:
            for violation in policy.check(one):
                found.setdefault((policy, violation), []).append(f"{type_}::{name}")
    return found


# --- SSH ------------------------------------------------------------------------------------------------------------


def _host_keys(one: Resource) -> Iterator[Violation]:
    connection = _mapping(one.inputs.get("connection"))
    if one.type == _HOST and connection.get("kind") == "ssh":
        file = _parsed(one.provider.get("ssh")).get("knownHostsFile")
        if not connection.get("hostKey") and file in (None, "/dev/null"):
            yield Violation(
                found="its host key is read from ~/.ssh/known_hosts of whoever deploys"
                if file is None
                else f"knownHostsFile {file}",
                expected="reviewed host keys in a file of the repository",
                fix="`make known-hosts STACK=s`, review the file, and name it in gpu-fleet:ssh.knownHostsFile",
            )
    elif one.type.startswith("command:remote:") and connection and not connection.get("hostKey"):
        yield Violation(
            found="connection.hostKey is not set, so pulumi-command accepts any host key",
            expected="the public key of the host",
            fix="set connection.hostKey, or use a gpu-fleet:host:Host, which always verifies it",
        )


# --- secrets --------------------------------------------------------------------------------------------------------

# The last word of a key. Not those of files, paths and names: bearer_token_file, secretName.
_SECRET_KEY: Final = re.compile(
    r"(?i)(password|passwd|passphrase|(?<!existing)secret|token|api_?key|private_?key|client_?key|credentials|routing_?key|service_?key"
    r"|^authorization|^auth)s?$"
)
_PRIVATE_KEY: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_LOGIN_IN_URL: Final = re.compile(r"\b[a-z]+://[^\s/:@\"'<>$]+:[^\s/@\"'<>$]+@")


def _secrets(one: Resource) -> Iterator[Violation]:
    for path, key, text in _texts(one.inputs):
        if _SECRET_KEY.search(key) and "\n" not in text and text not in ("true", "false"):
            what = f"`{path}` is plain text"
        elif _PRIVATE_KEY.search(text):
            what = f"`{path}` contains a private key in plain text"
        elif _LOGIN_IN_URL.search(text):
            what = f"`{path}` contains a URL with a password in plain text"
        else:
            continue
        yield Violation(
            found=what + ", which the state stores unencrypted",
            expected="a secret",
            fix="change this secret, since it has been stored; then set it by `pulumi config set --secret` (docs/secrets.md)",
        )


# --- digests --------------------------------------------------------------------------------------------------------

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_DIGEST: Final = re.compile(r"@?sha256:[0-9a-f]{64}$")
_POD_OWNERS: Final = re.compile(r"kubernetes:(core/v1:Pod|apps/v1:\w+|batch/v1:\w+)$")


def _digests(one: Resource) -> Iterator[Violation]:
    if one.type == _BUNDLE:
        for line in str(_mapping(one.inputs.get("files")).get("manifest", "")).splitlines():
            verb, *words = line.split("\t")
            if verb == "download" and not (len(words) > 3 and _SHA256.fullmatch(words[3])):
                yield Violation(
                    found=f"the download {words[-1]} has no SHA-256",
                    expected="the SHA-256 of the file",
                    fix="`make pin` writes it to gpu_fleet/toolchain/versions.yaml",
                )
    if one.type in (_BUNDLE, _HOST):
        settings = _settings(one)
        image = settings.get("GPU_FLEET_DCGM_IMAGE", "")
        if image and settings.get("GPU_FLEET_DCGM_SOURCE", "image") == "image" and not _DIGEST.search(image):
            yield _unpinned(f"the image {image} of dcgm-exporter")
    if one.type == _RELEASE:
        if not one.inputs.get("version") and not str(one.inputs.get("chart", "")).endswith(".tgz"):
            yield Violation(
                found=f"the chart {one.inputs.get('chart')} has no version",
                expected="an exact version",
                fix="set it in gpu_fleet/toolchain/versions.yaml or in gpu-fleet:kubernetes.charts",
            )
        for path, image in _images_of_values(one.inputs.get("values")):
            yield _unpinned(f"`values.{path}`: {image}")
    elif _POD_OWNERS.match(one.type):
        for path, key, text in _texts(one.inputs):
            if key == "image" and not _DIGEST.search(text):
                yield _unpinned(f"`{path}`: {text}")


def _images_of_values(values: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Images that the values name without a digest. Of images that they do not name, the chart decides."""
    if isinstance(values, Mapping):
        repository = values.get("repository")
        if isinstance(repository, str) and not path.endswith("repositoryOpts"):
            parts = [str(values.get(key) or "") for key in ("repository", "tag", "digest", "sha")]
            if not any(_DIGEST.search(part) or _SHA256.fullmatch(part) for part in parts):
                yield path, ":".join(filter(None, parts))
        for key, value in values.items():
            yield from _images_of_values(value, f"{path}.{key}" if path else str(key))
    elif isinstance(values, list):
        for place, value in enumerate(values):
            yield from _images_of_values(value, f"{path}.{place}")


def _unpinned(what: str) -> Violation:
    return Violation(
        found=f"{what} is not pinned: its registry decides what runs",
        expected="an image with a digest, NAME:TAG@sha256:...",
        fix="add the digest in gpu_fleet/toolchain/versions.yaml (`make pin`), or where the stack file names the image",
    )


_IMAGE: Final = re.compile(r"(?m)^[\s-]*image: \"?([^\s\"]+)")


def _chart_images(one: Resource) -> Iterator[Violation]:
    if one.type != "gpu-fleet:kubernetes:Manifest":
        return
    rendered = "\n".join(map(str, _mapping(one.inputs.get("objects")).values()))
    images = dict.fromkeys(_IMAGE.findall(rendered))
    for image in (found for found in images if not _DIGEST.search(found)):
        yield Violation(
            found=f"the chart runs the image {image} without a digest",
            expected="an image with a digest",
            fix="set the image's digest in the chart's values (gpu-fleet:kubernetes.charts), if your policy requires it",
        )


# --- listening ------------------------------------------------------------------------------------------------------


def _listening(one: Resource) -> Iterator[Violation]:
    if one.type in (_BUNDLE, _HOST):
        manifest = str(_mapping(one.inputs.get("files")).get("manifest", ""))
        for name, value in _settings(one).items():
            if not name.endswith("_LISTEN") or _is_loopback(value):
                continue
            if name.startswith("GPU_FLEET_SCRAPE_") and (one.type == _HOST or "secret\tscrape-web-config" in manifest):
                continue  # TLS and the login are in that file: components/fleet/scrape.py
            yield _exposed(f"{name}={value}")
    elif one.type.startswith("command:"):
        environment = _mapping(one.inputs.get("environment"))
        for address in str(environment.get("SERVICE_LISTEN", "")).split():
            if not _is_loopback(address):
                yield _exposed(f"SERVICE_LISTEN={address}")


def _exposed(what: str) -> Violation:
    return Violation(
        found=f"{what} listens beyond loopback without TLS and a login",
        expected="an address of 127.0.0.0/8 or ::1",
        fix="listen on 127.0.0.1; let an external Prometheus in by gpu-fleet:scrape, which requires TLS and a login",
    )


def _is_loopback(address: str) -> bool:
    """`address`: host:port. One that is not known yet is checked when it is."""
    host = address.rpartition(":")[0].strip("[]")
    if UNKNOWN in address or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _network_policies(one: Resource) -> Iterator[Violation]:
    if one.type == _CLUSTER and one.inputs.get("networkPolicies") is False:
        yield Violation(
            found="networkPolicies is false: every pod of the cluster can connect to the exporters and agents",
            expected="true",
            fix="remove gpu-fleet:kubernetes.networkPolicies",
        )


# --- alerts ---------------------------------------------------------------------------------------------------------


def _runbooks(one: Resource) -> Iterator[Violation]:
    for alert, notes in _alerts(one):
        if not (notes.get("runbook_url") or notes.get("runbook")):
            yield Violation(
                found=f"the alert {alert} has no runbook",
                expected="an annotation runbook_url or runbook",
                fix="write alerts/runbooks/NAME.md, or add the annotation runbook_url to an alert of your own",
            )


def _alerts(one: Resource) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Name and annotations of each alert."""
    rules: list[Any] = []
    if one.type == "gpu-fleet:ruler:RuleGroup":
        rules = _mapping(yaml.load(str(one.inputs.get("rules", "")), yaml.CSafeLoader)).get("rules") or []
    elif one.type == "kubernetes:monitoring.coreos.com/v1:PrometheusRule":
        groups = _mapping(one.inputs.get("spec")).get("groups") or []
        rules = [rule for group in groups for rule in _mapping(group).get("rules") or []]
    elif one.type == "grafana:alerting/ruleGroup:RuleGroup":
        rules = [{**rule, "alert": rule.get("name")} for rule in one.inputs.get("rules") or [] if isinstance(rule, Mapping)]
    for rule in rules:
        if isinstance(rule, Mapping) and rule.get("alert"):
            yield str(rule["alert"]), _mapping(rule.get("annotations"))


# --- retention ------------------------------------------------------------------------------------------------------

# By the name of a chart: where its values say how long it keeps what it stores.
_RETENTION_OF_CHARTS: Final[Mapping[str, str]] = {
    "kube-prometheus-stack": "prometheus.prometheusSpec.retention",
    "prometheus": "server.retention",
    "loki": "loki.limits_config.retention_period",
    "mimir-distributed": "mimir.structuredConfig.limits.compactor_blocks_retention_period",
}
_STORES: Final = {"mimir": "METRICS_RETENTION", "loki": "LOGS_RETENTION"}  # of the embedded backend
_NEVER: Final = ("", "0", "0s", "0d", "None")


def _retention(one: Resource) -> Iterator[Violation]:
    if one.type == _HOST:
        settings = _settings(one)
        names = ("GPU_FLEET_MONITORING_METRICS_RETENTION", "GPU_FLEET_MONITORING_LOGS_RETENTION")
        if settings.get("GPU_FLEET_ROLE") in ("monitoring", "both"):
            yield from (_unlimited(name, "gpu-fleet:monitoring.retention") for name in names if settings.get(name, "") in _NEVER)
    elif one.type.startswith("command:"):
        environment = _mapping(one.inputs.get("environment"))
        words = str(environment.get("SERVICE_COMMAND", "")).split()
        for program, name in _STORES.items():
            if program in words and str(environment.get(name, "")) in _NEVER:
                yield _unlimited(name, f"{name} in the environment of the command")
    elif one.type == _RELEASE:
        chart = str(one.inputs.get("chart", "")).rpartition("/")[2]
        if path := _RETENTION_OF_CHARTS.get(re.sub(r"-[\d.]+\.tgz$", "", chart)):
            value: Any = one.inputs.get("values")
            for key in path.split("."):
                value = _mapping(value).get(key)
            if str(value) in _NEVER:
                yield _unlimited(f"`values.{path}`", "the value in gpu-fleet:kubernetes.charts")


def _unlimited(what: str, where: str) -> Violation:
    return Violation(
        found=f"{what} is not set: the store keeps data until its disk is full, or for a time that only its default says",
        expected="a retention such as 90d",
        fix=f"set {where}",
    )


# --- stand-ins ------------------------------------------------------------------------------------------------------

_OF_LAB: Final = re.compile(
    r"(^|[\s/=:\"'])(lab/(gpu|grafana|standins|kubernetes|hosts)\b|\.dev/(gpus|artifacts)\b)|\blab\.(gpu|grafana|standins)\b"
)


def _stand_ins(one: Resource) -> Iterator[Violation]:
    for path, _, text in _texts({key: value for key, value in one.inputs.items() if key != "files"}):
        if found := _OF_LAB.search(text):
            yield Violation(
                found=f"`{path}` names {found[0].strip(' =:/' + chr(34) + chr(39))}, a simulated device or program of the lab",
                expected="the real one",
                fix="remove it from the stack file; simulated GPUs and servers are for the stack dev",
            )


# --- privileges -----------------------------------------------------------------------------------------------------

# Those that docs/security.md names: what they read or change belongs to root.
_ROOT_SERVICES: Final = (
    "gpu-fleet-check",
    "gpu-fleet-container-toolkit",
    "gpu-fleet-dcgm-exporter-podman",
    "gpu-fleet-pull",
)


def _users(one: Resource) -> Iterator[Violation]:
    if one.type != _BUNDLE:
        return
    for path, text in _mapping(one.inputs.get("files")).items():
        service = re.fullmatch(r"/etc/systemd/system/(.+)\.service", path)
        if not service or service[1] in _ROOT_SERVICES:
            continue
        user = re.search(r"(?m)^User=(.*)$", str(text))
        if user is None or user[1] in ("", "root", "0"):
            yield Violation(
                found=f"{path} runs as root",
                expected="a user of its own",
                fix="add User= to the unit and the user to its part (gpu_fleet/host/parts/)",
            )


def _privileges(one: Resource) -> Iterator[Violation]:
    if one.type != _RELEASE:
        return
    values = _mapping(one.inputs.get("values"))
    is_profiling = "DCGM_FI_PROF_" in json.dumps(values.get("customMetrics", ""))
    for path, found in _walk(values):
        key = path.rpartition(".")[2]
        if key in ("privileged", "allowPrivilegeEscalation") and found is True:
            yield _privileged(f"`values.{path}` is true", "false")
        elif key == "add" and path.endswith("capabilities.add") and found:
            added = [name for name in found if not (is_profiling and name == "SYS_ADMIN")]
            if added:
                yield _privileged(f"`values.{path}` adds {', '.join(added)}", "SYS_ADMIN for dcgm.counters: profiling, else none")
        elif key == "resources" and isinstance(found, list) and {"secrets", "*"} & set(map(str, found)):
            yield _privileged(f"`values.{path}` grants access to {', '.join(map(str, found))}", "no access to Secrets")


def _privileged(found: str, expected: str) -> Violation:
    return Violation(
        found=found, expected=expected, fix="remove it from the values in gpu-fleet:kubernetes.charts (docs/security.md)"
    )


# --- transport ------------------------------------------------------------------------------------------------------

_HTTP: Final = re.compile(r"\bhttp://(\[[0-9a-f:]+\]|[^\s/:\"'?#,]+)")


def _transport(one: Resource) -> Iterator[Violation]:
    """URLs that metrics, logs, rules and logins are sent to."""
    urls: dict[str, str] = {}
    if one.type in (_HOST, _BUNDLE):
        urls = {name: value for name, value in _settings(one).items() if name.endswith("_URL")}
    elif one.type.startswith(("gpu-fleet:ruler:", "grafana:", "pulumi:providers:grafana")):
        urls = {path: text for path, key, text in _texts(one.inputs) if key == "url"}
    for name, url in urls.items():
        if (found := _HTTP.match(url)) and not _is_near(found[1]):
            yield Violation(
                found=f"{name} is {url}: metrics, logs and logins can be read and changed on the network",
                expected="an https:// URL",
                fix="use https://, with a private authority if needed (`tls.ca`, docs/stores.md)",
            )


def _is_near(host: str) -> bool:
    """On this machine, or within a cluster, whose network is the cluster's matter."""
    return host.endswith((".svc", ".svc.cluster.local")) or _is_loopback(f"{host}:0")


# --- reading inputs -------------------------------------------------------------------------------------------------


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _parsed(value: Any) -> Mapping[str, Any]:
    """A provider's configuration is text, and what is no text in it JSON."""
    try:
        return _mapping(json.loads(value) if isinstance(value, str) else value)
    except ValueError:
        return {}


def _settings(one: Resource) -> dict[str, str]:
    """A host's environment file: those of its bundle, or those that it has instead."""
    if one.type == _HOST:
        return {name: str(value) for name, value in _mapping(one.inputs.get("settings")).items()}
    text = str(_mapping(one.inputs.get("files")).get("settings", ""))
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def _walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for place, item in enumerate(value):
            yield from _walk(item, f"{path}.{place}")
    yield path, value


def _texts(value: Any) -> Iterator[tuple[str, str, str]]:
    """Path, last key and text of everything that is known and not empty; JSON of a provider is read."""
    for path, item in _walk(value):
        if not isinstance(item, str) or item in ("", UNKNOWN):
            continue
        if item.startswith("{") and (inner := _parsed(item)):
            yield from ((f"{path}.{below}", key, text) for below, key, text in _texts(inner))
        else:
            yield path, re.sub(r"\.\d+$", "", path).rpartition(".")[2], item


POLICIES: Final = (
    Policy(name="ssh-host-keys", description="SSH host keys are reviewed and verified.", check=_host_keys),
    Policy(name="secrets-encrypted", description="Passwords, tokens and keys are secrets, never plain text.", check=_secrets),
    Policy(
        name="digests-pinned",
        description="Programs, images and charts are pinned by checksum, digest or version.",
        check=_digests,
    ),
    Policy(
        name="loopback-only", description="Exporters listen on loopback unless TLS and a login protect them.", check=_listening
    ),
    Policy(name="alert-runbooks", description="Every alert has a runbook.", check=_runbooks),
    Policy(name="retention-stated", description="Every store states how long it keeps data.", check=_retention),
    Policy(name="no-stand-ins", description="No stand-in or simulated device is used.", check=_stand_ins),
    Policy(name="own-users", description="Services on hosts run as users of their own.", check=_users),
    Policy(name="pod-privileges", description="Charts get no privileges beyond the documented ones.", check=_privileges),
    Policy(
        name="network-policies",
        description="Only the scraper connects to exporters in a cluster.",
        check=_network_policies,
        is_advisory=True,
    ),
    Policy(
        name="encrypted-transport", description="Metrics, logs and logins are sent over TLS.", check=_transport, is_advisory=True
    ),
    Policy(
        name="chart-images", description="Images that charts choose are pinned by digest.", check=_chart_images, is_advisory=True
    ),
)
