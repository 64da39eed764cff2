"""Alerts: names that refer to each other, and the secrets that receivers need."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from zoneinfo import available_timezones

from gpu_fleet.stackfile.alerts import Alerts, MuteTiming, Receiver
from gpu_fleet.stackfile.naming import PROJECT
from gpu_fleet.stackfile.problems import Problem, listed, nearest, unknown_key
from gpu_fleet.stackfile.sections import SECRETS, StackFile
from gpu_fleet.stackfile.validation.subject import Stack, problem


def check(stack: Stack) -> Iterator[Problem]:
    if "alerts" in stack.broken:
        return
    if alerts := stack.file.alerts:
        yield from _targets(stack, alerts)
        yield from _routing(alerts)
        for name, receiver in alerts.receivers.items():
            is_default = name == alerts.default_receiver
            yield from _receiver(f"alerts.receivers.{name}", receiver, stack, is_default=is_default)
        for name, timing in alerts.mute_timings.items():
            yield from _mute_timing(f"alerts.muteTimings.{name}", timing)
    yield from _unused_secrets(stack)


def _targets(stack: Stack, alerts: Alerts) -> Iterator[Problem]:
    cluster = stack.file.kubernetes
    if cluster and cluster.prometheus_operator != "none" and cluster.prometheus_rules is not False and stack.is_absent("rulers"):
        # The operator's Prometheus evaluates them, as PrometheusRules, and its Alertmanager notifies.
        if alerts.receivers and "grafana" not in alerts.targets:
            what = f"has no effect: the operator's Alertmanager notifies, and {PROJECT}:rulers is missing"
            fix = "add the receivers to the Alertmanager of your operator (docs/kubernetes.md), and remove them here"
            yield problem("alerts.receivers", what, fix=fix)
        return
    if alerts.targets == ("ruler",) and stack.is_absent("rulers") and not alerts.receivers:
        # A Prometheus with an Alertmanager of its own: the section has the overrides, labels and links of what it loads.
        stack.listing.warnings.append(
            f"{PROJECT}:alerts: without {PROJECT}:rulers `up` writes no alerts; `make rules FOR=prometheus STACK=s` writes them "
            "as files, with these labels and overrides"
        )
        return
    for target, sections in {"ruler": ("rulers",), "grafana": ("grafana", "rulers")}.items():
        for section in sections:
            if target in alerts.targets and stack.is_absent(section):
                what = f"holds {target}, and {PROJECT}:{section} is missing"
                yield problem("alerts.targets", what, fix=f"add {PROJECT}:{section}, or remove {target}")
    records = "rulers" in stack.broken or (stack.file.rulers and stack.file.rulers.mimir)
    if "grafana" in alerts.targets and not stack.is_absent("rulers") and not records:
        what = f"holds grafana, and {PROJECT}:rulers has no mimir: Grafana evaluates what Mimir's recording rules record"
        yield problem("alerts.targets", what, fix=f"add mimir to {PROJECT}:rulers")
    if set(alerts.targets) == {"ruler", "grafana"} and alerts.receivers:
        stack.listing.warnings.append(
            f"{PROJECT}:alerts.targets: Mimir's Alertmanager and Grafana both notify the receivers: each notification comes "
            "twice; keep one target once you have seen both work"
        )
    if len(set(alerts.targets)) < len(alerts.targets):
        yield problem("alerts.targets", "names a target twice", "each once", "remove one")


def _routing(alerts: Alerts) -> Iterator[Problem]:
    names = sorted(alerts.receivers)
    if alerts.receiver is not None:
        yield from _reference("alerts.receiver", alerts.receiver, names, "receivers")
    elif len(names) > 1:
        fix = "name the one that gets the alerts that match no route"
        yield problem("alerts.receiver", f"is missing: there are {len(names)} receivers", listed(names), fix)
    for index, route in enumerate(alerts.routes):
        path = f"alerts.routes[{index}]"
        yield from _reference(f"{path}.receiver", route.receiver, names, "receivers")
        for position, timing in enumerate(route.mute_timings):
            yield from _reference(f"{path}.muteTimings[{position}]", timing, sorted(alerts.mute_timings), "muteTimings")


def _reference(path: str, name: str, known: list[str], section: str) -> Iterator[Problem]:
    if name not in known:
        meant = nearest(name, known)
        fix = f"did you mean {meant}?" if meant else f"add it to {PROJECT}:alerts.{section}"
        yield problem(path, f'"{name}" is not in {PROJECT}:alerts.{section}', listed(known) if known else "", fix)


def _receiver(path: str, receiver: Receiver, stack: Stack, *, is_default: bool) -> Iterator[Problem]:
    if is_default and not receiver.channels:
        what = "gets the alerts that match no route, and has no channel"
        yield problem(path, what, listed(Receiver.model_fields), "add one of them")
    for kind, channel in receiver.channels.items():
        for key, secret in channel.secrets:
            where, fix = f"{path}.{kind}.{key}", f"`pulumi config set --secret {PROJECT}:{secret}`"
            if secret in SECRETS:
                what, fix = f"{PROJECT}:{secret} has another use: {SECRETS[secret]}", "use a secret of its own"
                yield problem(where, what, fix=fix)
            elif secret not in stack.secrets_set:
                yield problem(where, f"the secret {PROJECT}:{secret} is not set", fix=fix)
        username, password = getattr(channel, "username", None), getattr(channel, "password_secret", None)
        if bool(username) != bool(password):
            yield problem(f"{path}.{kind}", "has only one of username and passwordSecret", "both or none", "add the other")
    if webhook := receiver.webhook:
        if bool(webhook.url) == bool(webhook.url_secret):
            what = "has both url and urlSecret" if webhook.url else "has neither url nor urlSecret"
            yield problem(f"{path}.webhook", what, "one of them", "keep url; urlSecret is for a URL that is itself a secret")
        if webhook.username and webhook.authorization_secret:
            fix = "remove username or authorizationSecret"
            yield problem(f"{path}.webhook", "has a password and a bearer token", "one of them", fix)


def _mute_timing(path: str, timing: MuteTiming) -> Iterator[Problem]:
    zones = _time_zones()
    if timing.location not in zones:
        meant = nearest(timing.location, zones)
        fix = f"did you mean {meant}?" if meant else "write the name of a zone of the tz database"
        yield problem(f"{path}.location", f'"{timing.location}" is not a time zone', "a name such as Europe/Berlin", fix)
    if not (timing.weekdays or timing.times or timing.days_of_month or timing.months or timing.years):
        what, expected = "has no condition and would be silent for ever", "weekdays, times, daysOfMonth, months or years"
        yield problem(path, what, expected, "add one")
    for index, times in enumerate(timing.times):
        if times.start >= times.end:
            what, fix = f"runs from {times.start} to {times.end}", "write two ranges for a time that crosses midnight"
            yield problem(f"{path}.times[{index}]", what, "an end after the start", fix)


@cache
def _time_zones() -> set[str]:
    return available_timezones()  # looks through 600 files


def _unused_secrets(stack: Stack) -> Iterator[Problem]:
    """A secret that nothing uses has a misspelled name, or can be removed."""
    used = stack.file.alerts.secret_names if stack.file.alerts else set()
    sections = {field.alias or name for name, field in StackFile.model_fields.items()}
    for key in sorted(stack.secrets_set - used - set(SECRETS) - sections):
        fix = f"correct the name, let a receiver use it, or `pulumi config rm {PROJECT}:{key}`"
        yield unknown_key(f"{PROJECT}:{key}", key, used | set(SECRETS), fix)
