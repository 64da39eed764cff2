"""`make test-alert`: sends a harmless alert along the whole path of a real one, and reports each stage and who was notified.

    python -m gpu_fleet.operations.alert_path --stack us-west-training [--host NAME] [--severity warning]

On a host, one line is written to a file that Alloy reads: it becomes a log line in Loki and a metric in Mimir, both rulers raise
GpuFleetTestAlert, and Mimir's Alertmanager notifies the receivers of that severity. For a stack without hosts that can be
reached from here (Kubernetes, pull mode) the line is pushed to Loki, with the login of gpu-fleet:logs: that tests Loki's ruler,
Alertmanager and the receivers, and not the agents. The alert resolves by itself. operator_alert.py has the start of an alert in a
cluster that evaluates our rules itself, prometheus_alert.py a Prometheus that does.

Not done here: alerts that Grafana evaluates are followed as far as Mimir.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from gpu_fleet.operations import operator_alert, prometheus_alert
from gpu_fleet.operations.cluster import cluster_api
from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.mimir import Server, login_of
from gpu_fleet.operations.on_host import run_on_host
from gpu_fleet.operations.output import run
from gpu_fleet.operations.stack import Configuration, configuration, enter_project
from gpu_fleet.provider.kubernetes import ClusterApi, KubeconfigError, Refused, Unreachable
from gpu_fleet.stackfile.config import ConfigErrors, HostSpec, StackConfig
from gpu_fleet.stackfile.monitoring import has_gpus
from gpu_fleet.stackfile.naming import PROJECT

ALERT: Final = "GpuFleetTestAlert"
METRIC: Final = "gpu_fleet_test_alert_timestamp_seconds"
SEVERITIES: Final = ("critical", "warning")
INSTANCE_WITHOUT_HOST: Final = "make-test-alert"
# Typical: 30 s for critical alerts, a minute for warnings, which wait for others of their group. A Mimir with default settings
# evaluates a minute late. And a scrape.
WITHIN_S: Final = 225
# The operator writes a ConfigMap, which a kubelet brings to the pod within a minute and a half; then the reloader reads it.
OPERATOR_WITHIN_S: Final = 360
_POLL_S: Final = 1.0
_LOGIN_S: Final = 60
_DIRECTORY: Final = "/var/lib/gpu-fleet/textfile"
_CONFIG: Final = "/etc/gpu-fleet/alloy/collect_test_alert.alloy"
_REQUESTS: Final = re.compile(r"^(?:cortex_)?alertmanager_notification_requests(_failed)?_total\{(.*)\} (\S+)$", re.MULTILINE)


class Stuck(OperationError):
    """A stage that will not be passed by waiting."""


@dataclass(frozen=True)
class Stage:
    """`passed`: what was found, in words; None while it is not there. `hint`: what to check when it never is."""

    name: str
    passed: Callable[[], str | None]
    hint: str


@dataclass
class Test:
    """One test alert. `labels`: those of the alert. `started`: its time, by the clock of whoever wrote the line."""

    labels: dict[str, str]
    mimir: Server
    loki: Server | None = None
    started: int = 0
    requests_before: Counter[str] | None = None
    receivers: dict[str, list[str]] = field(default_factory=dict)  # name to the kinds of its channels

    @property
    def selector(self) -> str:
        return ", ".join(f'{name}="{value}"' for name, value in self.labels.items() if name != "alertname")

    # --- stages ---------------------------------------------------------------------------------------------------------

    def line_in_loki(self) -> str | None:
        assert self.loki
        query = f'{{job="test_alert", {self.selector}}} |= "started={self.started}"'
        start = ("start", str((self.started - 60) * 10**9))
        streams = self.loki.get("/loki/api/v1/query_range", [("query", query), start])["data"]["result"]
        return "" if streams else None

    def metric_in_mimir(self) -> str | None:
        series = self.mimir.get("/prometheus/api/v1/query", [("query", f"{METRIC}{{{self.selector}}}")])["data"]["result"]
        return "" if any(float(one["value"][1]) >= self.started for one in series) else None

    def fires_in(self, server: Server) -> str | None:
        alerts = server.get("/prometheus/api/v1/alerts")["data"]["alerts"]
        return "" if any(one["state"] == "firing" and self._is(one["labels"]) for one in alerts) else None

    def at_alertmanager(self) -> str | None:
        for one in active(self.mimir, self.labels):
            kinds = channels(self.mimir)
            self.receivers = {receiver["name"]: kinds.get(receiver["name"], []) for receiver in one["receivers"]}
            return "for " + ", ".join(f"{name} ({', '.join(found) or 'no channel'})" for name, found in self.receivers.items())
        return None

    def notified(self) -> str | None:
        """Counted by Alertmanager: a request to each channel that did not fail."""
        for one in active(self.mimir, self.labels):
            if why := suppressed(one):
                raise Stuck(f"Alertmanager sends nothing: {why}")
        if timings := muted(self.mimir, self.labels):
            raise Stuck(f"Alertmanager sends nothing: a mute timing matches ({', '.join(timings)})")
        wanted = Counter(kind for kinds in self.receivers.values() for kind in kinds)
        if not self.receivers:
            return None
        if not wanted:
            raise Stuck(f"the receivers of this alert have no channel: {', '.join(self.receivers)}")
        now = delivered(self.mimir)
        if now is None or self.requests_before is None:
            return f"not confirmed: {self.mimir.url}/metrics cannot be read, so ask {', '.join(self.receivers)}"
        sent = now - self.requests_before
        return "each channel accepted a notification" if all(sent[kind] >= count for kind, count in wanted.items()) else None

    def _is(self, labels: Mapping[str, str]) -> bool:
        return self.labels.items() <= labels.items()


def active(mimir: Server, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """The alerts with these labels that Alertmanager holds."""
    filters = [("filter", f'{name}="{value}"') for name, value in labels.items()]
    found: list[dict[str, Any]] = mimir.get("/alertmanager/api/v2/alerts", filters)
    return found


def channels(mimir: Server) -> dict[str, list[str]]:
    """Receiver to the kinds of its channels. Alertmanager shows its configuration without the secrets."""
    original = yaml.safe_load(mimir.get("/alertmanager/api/v2/status")["config"]["original"])
    return {
        receiver["name"]: [key.removesuffix("_configs") for key in receiver if key.endswith("_configs") for _ in receiver[key]]
        for receiver in original["receivers"]
    }


def suppressed(alert: Mapping[str, Any]) -> str:
    """Why Alertmanager does not notify anybody; empty if it does."""
    status = alert["status"]
    causes = {"silencedBy": "a silence", "inhibitedBy": "an inhibiting alert"}
    return ", ".join(f"{text} matches ({', '.join(status[key])})" for key, text in causes.items() if status.get(key))


def muted(mimir: Server, labels: Mapping[str, str]) -> list[str]:
    """The mute timings of the alert, where all of its routes are muted. Alertmanager says it of groups alone, since 0.28."""
    filters = [("filter", f'{name}="{value}"') for name, value in labels.items()]
    try:
        groups: list[dict[str, Any]] = mimir.get("/alertmanager/api/v2/alerts/groups", filters)
    except OperationError:
        return []  # a proxy that lets through what is needed alone
    found = [one["status"].get("mutedBy") for group in groups for one in group["alerts"]]
    return sorted({name for names in found for name in names}) if found and all(found) else []


def delivered(mimir: Server) -> Counter[str] | None:
    """Requests that succeeded so far, by kind of channel; None where Mimir's own metrics cannot be read from here."""
    try:
        text = mimir.text("/metrics")
    except OperationError:
        return None
    tenant = mimir.headers.get("X-Scope-OrgID")
    count: Counter[str] = Counter()
    for failed, labels, value in _REQUESTS.findall(text):
        values = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if tenant is None or values.get("user", tenant) == tenant:
            count[values["integration"]] += -int(float(value)) if failed else int(float(value))
    return count


def stages(test: Test, config: StackConfig, host: HostSpec | None) -> Iterator[Stage]:
    on_host = f"on {host.name}: journalctl -u gpu-fleet-alloy" if host else f"the URL and the login of {PROJECT}:logs"
    if test.loki:
        hint = f"{on_host}; compare {PROJECT}:logs with {PROJECT}:rulers.loki: server and tenant must be the same"
        yield Stage("the log line is in Loki", test.line_in_loki, hint)
    if host:
        hint = f"{on_host}; compare {PROJECT}:metrics with {PROJECT}:rulers.mimir: server and tenant must be the same"
        yield Stage("the metric is in Mimir", test.metric_in_mimir, hint)
    if not evaluated_by_ruler(config):
        return
    if host:
        yield Stage(
            "the alert fires in Mimir's ruler",
            lambda: test.fires_in(test.mimir),
            f"{test.mimir.url}/prometheus/api/v1/rules shows the health and last error of the group test-alert",
        )
    if test.loki:
        loki = test.loki
        yield Stage(
            "the alert fires in Loki's ruler",
            lambda: test.fires_in(loki),
            f"{loki.url}/prometheus/api/v1/rules shows the health and last error of the group test-alert",
        )
    hint = "the rulers' setting alertmanager_url, and Mimir's log: the alerts do not reach its Alertmanager"
    yield Stage("Alertmanager has the alert", test.at_alertmanager, hint)
    hint = f"the URL and secret of the receiver in {PROJECT}:alerts, and Alertmanager's log: a request failed or was not sent yet"
    yield Stage("the receivers are notified", test.notified, hint)


def operator_stages(test: Test) -> Iterator[Stage]:
    server = test.mimir
    hint = "the operator's log: it loads a new PrometheusRule within two minutes, unless another one is invalid"
    yield Stage("Prometheus evaluates the rule of the test", test.metric_in_mimir, hint)
    hint = f"kubectl get --raw '{server.url}/api/v1/rules': health and last error of the group test-alert"
    yield from _from_prometheus(test, hint, "spec.alerting of the Prometheus, and its log")


def prometheus_stages(test: Test, host: HostSpec) -> Iterator[Stage]:
    server = test.mimir
    hint = f"on {host.name}: journalctl -u gpu-fleet-alloy; and the URL and the login of {PROJECT}:metrics"
    yield Stage("the metric is in Prometheus", test.metric_in_mimir, hint)
    hint = f"{server.url}/api/v1/rules shows the health and last error of the group test-alert"
    yield from _from_prometheus(test, hint, "`alerting` of prometheus.yml, and Prometheus's log")


def _from_prometheus(test: Test, rules: str, alerting: str) -> Iterator[Stage]:
    """`rules`, `alerting`: where to look when the alert does not fire, and when it does not reach Alertmanager."""
    yield Stage("the alert fires in Prometheus", lambda: test.fires_in(test.mimir), rules)
    yield Stage("Alertmanager has the alert", test.at_alertmanager, f"{alerting}: the alerts do not reach Alertmanager")
    yield Stage("the receivers are notified", test.notified, "Alertmanager's log: a request failed or was not sent yet")


def evaluated_by_prometheus(config: StackConfig) -> bool:
    return config.rulers is None or config.rulers.mimir is None


def evaluated_by_operator(config: StackConfig) -> bool:
    """As components/kubernetes/wiring.py decides where the rules are deployed."""
    section = config.kubernetes
    return section is not None and section.prometheus_operator != "none" and config.rulers is None


def evaluated_by_ruler(config: StackConfig) -> bool:
    """Whether the rulers raise the alerts; a stack without the section leaves them to another stack, which has rulers."""
    return config.alerts is None or "ruler" in config.alerts.targets


def follow(found: list[Stage], began: float, within_s: float = WITHIN_S) -> bool:
    """Prints each stage when it is passed, and at the end which ones were not. Whether all were."""
    waiting, errors, is_stuck = list(found), dict[str, str](), False
    while waiting and not is_stuck:
        for stage in list(waiting):
            try:
                detail = stage.passed()
            except OperationError as error:
                errors[stage.name] = str(error)
                is_stuck = is_stuck or isinstance(error, Stuck)
                continue
            if detail is not None:
                waiting.remove(stage)
                print(f"{time.monotonic() - began:6.0f} s  {stage.name}{f': {detail}' if detail else ''}", flush=True)
        if time.monotonic() - began > within_s:
            break
        if waiting and not is_stuck:
            time.sleep(_POLL_S)
    for number, stage in enumerate(waiting):
        print(f"{'MISSING':>8}  {stage.name}" + (f": {errors[stage.name]}" if stage.name in errors else ""))
        if number == 0 and not is_stuck:  # the later ones wait for it
            print(f"{'':8}  Check {stage.hint}.")
    return not waiting


# --- where the alert starts ----------------------------------------------------------------------------------------------


def host_of(config: StackConfig, wanted: str) -> HostSpec | None:
    """The host that the alert starts on; None: none can be reached from here. Raises OperationError."""
    reached = {name: host for name, host in config.hosts.items() if not host.lost and host.connection != "pull"}
    if not wanted:  # a host with GPUs, whose data and logs take the longest way
        return min(reached.values(), key=lambda host: not has_gpus(host), default=None)
    if wanted in reached:
        return reached[wanted]
    if wanted in config.hosts:
        raise OperationError(f"{wanted} cannot be reached from here: it is lost or in pull mode. Leave HOST out, or name another")
    raise OperationError(f"the stack has no host {wanted}; it has {', '.join(list(config.hosts)[:10]) or 'none'}")


def command(host: HostSpec, severity: str) -> list[str]:
    """Writes the line and prints its time."""
    config, directory = shlex.quote(f"{host.prefix}{_CONFIG}"), shlex.quote(f"{host.prefix}{_DIRECTORY}")
    script = (
        f"set -eu; umask 022; if [ ! -f {config} ]; then"
        " echo 'the bundle on this host is older than make test-alert: deploy the stack first (make up)' >&2; exit 3; fi; "
        f"now=$(date +%s); line='gpu-fleet test alert: severity={severity} started='$now; "
        f'echo "$line" >{directory}/test-alert-$now.log; echo $now'
    )
    return ["sh", "-c", script]


def removal(host: HostSpec, started: int) -> list[str]:
    return ["rm", "-f", f"{host.prefix}{_DIRECTORY}/test-alert-{started}.log"]


def push(loki: Server, path: str, labels: Mapping[str, str]) -> int:
    """Pushes the line to Loki and returns its time, by Loki's clock: the ruler reads the last minutes."""
    started = loki.clock(path)
    stream = {"job": "test_alert", **{name: value for name, value in labels.items() if name != "alertname"}}
    line = f"gpu-fleet test alert: severity={labels['severity']} started={started}"
    loki.post(path, {"streams": [{"stream": stream, "values": [[f"{started}{0:09}", line]]}]})
    return started


# --- the command -----------------------------------------------------------------------------------------------------------


def prepared(config: StackConfig, stack: str, host: HostSpec | None, severity: str) -> Test:
    """Raises OperationError for what would make the test pointless."""
    rulers = config.rulers
    assert rulers and rulers.mimir
    servers = {
        name: Server(ruler.url, *login_of(ruler, "rulers", config, stack), name)
        for name, ruler in (("Mimir", rulers.mimir), ("Loki", rulers.loki if config.logs else None))
        if ruler
    }
    if host is None and "Loki" not in servers:
        raise OperationError(
            f"no host of the stack {stack} can be reached from here, and without {PROJECT}:logs and {PROJECT}:rulers.loki "
            "there is no Loki to push the test alert to. Add both sections, or run this for a stack with hosts."
        )
    labels = _labels(config, host.name if host else INSTANCE_WITHOUT_HOST, severity)
    test = Test(labels, servers["Mimir"], servers.get("Loki"))
    if not evaluated_by_ruler(config):
        return test
    if not has_rule(test.mimir):
        raise OperationError(
            f"Mimir's ruler at {rulers.mimir.url} has no rule {ALERT} for this tenant. "
            f"`make up` of the stack with {PROJECT}:alerts deploys it"
        )
    _remember(test)
    return test


def prepared_for_prometheus(config: StackConfig, stack: str, host: HostSpec | None, severity: str) -> tuple[Test, HostSpec]:
    """Raises OperationError for what would make the test pointless."""
    server = prometheus_alert.found_by(config, stack)
    if host is None:
        raise OperationError(f"no host of the stack {stack} can be reached from here, and a test alert starts on one")
    if not has_rule(server):
        raise OperationError(
            f"the Prometheus at {server.url} has no rule {ALERT}: `make rules FOR=prometheus STACK={stack}` writes it, for its "
            "rule_files (docs/import-by-hand.md)"
        )
    test = Test(_labels(config, host.name, severity), server)
    _remember(test)
    return test, host


def prepared_for_operator(config: StackConfig, api: ClusterApi, severity: str) -> Test:
    """Raises OperationError for what would make the test pointless."""
    section = config.kubernetes
    assert section
    server = operator_alert.found_in(api, section)
    test = Test(_labels(config, INSTANCE_WITHOUT_HOST, severity), server)
    if not has_rule(server):
        raise OperationError(
            f"the Prometheus at {server.url} has no rule {ALERT}: `make up` of this stack deploys it, and the operator loads it "
            "within two minutes"
        )
    _remember(test)
    return test


def _labels(config: StackConfig, instance: str, severity: str) -> dict[str, str]:
    return {
        "alertname": ALERT,
        "datacenter": config.datacenter,
        "cluster": config.cluster,
        "instance": instance,
        "severity": severity,
    }


def _remember(test: Test) -> None:
    """What was notified before. Raises OperationError while an earlier test is not over."""
    if active(test.mimir, test.labels):
        instance = test.labels["instance"]
        raise OperationError(f"{ALERT} of {instance} is still active: wait until it is resolved, six minutes at most")
    test.requests_before = delivered(test.mimir)


def has_rule(server: Server) -> bool:
    groups = server.get("/prometheus/api/v1/rules", [("type", "alert")])["data"]["groups"]
    return any(rule.get("name") == ALERT for group in groups for rule in group["rules"])


def send(test: Test, config: StackConfig, stack: str, found: Configuration, host: HostSpec | None) -> None:
    if host:
        line = command(host, test.labels["severity"])
        test.started = int(_on(host, line, config, stack, found))
        print(f"A test alert of severity {test.labels['severity']} starts on {host.name}.", flush=True)
        return
    assert config.logs and test.loki
    base, _, path = config.logs.url.partition("/loki/")
    loki = Server(base, *login_of(config.logs, "logs", config, stack), "Loki")
    test.started = push(loki, f"/loki/{path}", test.labels)
    print(
        "No host of this stack can be reached from here, so the test alert starts in Loki. It tests Loki's ruler, Alertmanager\n"
        "and the receivers; the agents of a cluster or of hosts in pull mode are not tested.",
        flush=True,
    )


def _on(host: HostSpec, line: list[str], config: StackConfig, stack: str, found: Configuration) -> str:
    return run_on_host(host, line, config=config, stack=stack, found=found, what="the test alert", timeout_s=_LOGIN_S)


def in_rulers(config: StackConfig, stack: str, found: Configuration, options: argparse.Namespace) -> tuple[Test, bool]:
    host = host_of(config, options.host)
    if evaluated_by_prometheus(config):
        test, host = prepared_for_prometheus(config, stack, host, options.severity)
        passed = prometheus_stages(test, host)
    else:
        test = prepared(config, stack, host, options.severity)
        passed = stages(test, config, host)
    send(test, config, stack, found, host)
    try:
        return test, follow(list(passed), time.monotonic(), WITHIN_S + config.scrape_interval_s)
    finally:
        if host:
            _on(host, removal(host, test.started), config, stack, found)


def in_operator(config: StackConfig, stack: str, found: Configuration, severity: str) -> tuple[Test, bool]:
    section = config.kubernetes
    assert section
    api = cluster_api(config, stack, found)
    try:
        test = prepared_for_operator(config, api, severity)
        test.started = operator_alert.start(api, section, METRIC, test.labels)
        print(
            f"A test alert of severity {severity} starts in the cluster's Prometheus. It tests rules, Alertmanager and\n"
            "receivers, not the agents. The operator takes up to two minutes to load its rule.",
            flush=True,
        )
        try:
            return test, follow(list(operator_stages(test)), time.monotonic(), OPERATOR_WITHIN_S)
        finally:
            operator_alert.end(api, section)
    except (KubeconfigError, Unreachable, Refused) as error:
        raise OperationError(str(error)) from None


def main(arguments: list[str]) -> int:
    """Exit status: 0 when every stage was passed."""
    parser = argparse.ArgumentParser(
        prog="python -m gpu_fleet.operations.alert_path", description="Send a test alert and follow it."
    )
    parser.add_argument("--stack", required=True)
    parser.add_argument("--host", default="", help="where it starts; default: the first host")
    parser.add_argument("--severity", default="critical", choices=SEVERITIES, help="which route it takes (critical)")
    options = parser.parse_args(arguments)
    try:
        enter_project()
        found = configuration(options.stack)
        config = found.load()
        if evaluated_by_operator(config):
            test, is_complete = in_operator(config, options.stack, found, options.severity)
        else:
            test, is_complete = in_rulers(config, options.stack, found, options)
    except (OperationError, ConfigErrors) as error:
        print(error, file=sys.stderr)
        return 1
    if is_complete:
        print(_conclusion(test, config))
    return int(not is_complete)


def _conclusion(test: Test, config: StackConfig) -> str:
    if not evaluated_by_operator(config) and not evaluated_by_ruler(config):
        assert config.grafana
        return (
            f"Grafana evaluates this alert and notifies: {config.grafana.url}/alerting/list?search={ALERT} shows it, and\n"
            "the page of the contact points shows the last attempt and error of each."
        )
    return (
        f"Notified: {', '.join(test.receivers)}. The alert resolves by itself within six minutes; receivers with sendResolved\n"
        "are notified of that too."
    )


if __name__ == "__main__":
    run(main)
