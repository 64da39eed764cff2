"""Batches of replays: hosts up, steps at their time, notifications scored."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lab.gpu.scenario import compile_scenario
from lab.scorecard.host import SimulatedHost
from lab.scorecard.relay import Relays
from lab.scorecard.rules import Group
from lab.scorecard.score import Score, episodes, score
from lab.scorecard.stores import Stores
from lab.scorecard.tape import Tape

# From the last host's first sample to the first fault: every alert about the beginning of a host has had its time.
_WARM_UP_S: Final = 100
_READY_S: Final = 300
# Between the first faults of two hosts: a hundred at the same instant would measure the queue and not the path.
_APART_S: Final = 0.5
_SETTLE_S: Final = 5
MOST_AT_ONCE: Final = 254
NO_RULES: Final[Mapping[str, list[Group]]] = {}


class ReplayFailed(RuntimeError):
    """The replay says nothing about the rules; the text says what broke."""


@dataclass(frozen=True)
class Result:
    """`others`: by other rule sets, by name."""

    tape: Tape
    mode: str
    score: Score
    others: Mapping[str, Score]


def batches(chosen: Sequence[tuple[Tape, str]], size: int) -> Iterator[list[tuple[Tape, str]]]:
    """Tapes of similar length together: a batch takes as long as its longest. The short ones first: their results stay."""
    by_length = sorted(chosen, key=lambda one: one[0].length_s)
    for start in range(0, len(by_length), size):
        yield by_length[start : start + size]


def host_name(tape: Tape, mode: str) -> str:
    return f"{tape.name}--{mode}"


def replay(
    batch: Sequence[tuple[Tape, str]],
    keep: Path | None = None,
    longest_s: float | None = None,
    others: Mapping[str, list[Group]] = NO_RULES,
) -> list[Result]:
    """`keep`: where the notifications are written. `longest_s`: tapes are cut off there. `others`: rule sets beside ours.
    Raises ReplayFailed."""
    with tempfile.TemporaryDirectory(prefix="gpu-fleet-scorecard-") as directory:
        return _replay(batch, keep, longest_s, others, Path(directory))


def _replay(
    batch: Sequence[tuple[Tape, str]],
    keep: Path | None,
    longest_s: float | None,
    others: Mapping[str, list[Group]],
    directory: Path,
) -> list[Result]:
    relays = Relays()
    hosts: list[SimulatedHost] = []
    stores: Stores | None = None
    try:
        names = [host_name(*one) for one in batch]
        expected = {host_name(*one): len(compile_scenario(one[0].scenario)["gpus"]) for one in batch if one[0].is_listed}
        stores = Stores(directory, expected, others)
        for number, (tape, mode) in enumerate(batch):
            path = directory / names[number]
            path.mkdir()
            hosts.append(
                SimulatedHost(
                    tape,
                    mode,
                    name=names[number],
                    directory=path,
                    address=_address(number),
                    stores=(stores.mimir, stores.loki),
                    relays=relays,
                )
            )
        for host in hosts:
            for step in host.tape.steps:
                if step["at"] < 0:
                    host.do(step)
            host.start()
        _wait_until_ready(hosts)
        time.sleep(_WARM_UP_S)
        begun = _play(hosts, longest_s)
        return _scored(hosts, begun, stores, keep, others)
    finally:
        with ThreadPoolExecutor(16) as pool:  # a server takes a second to stop
            list(pool.map(SimulatedHost.stop, hosts))
        relays.stop()
        if stores:
            stores.stop()


def _address(number: int) -> str:
    """Of the loopback interface, different for two runs at the same time."""
    run = os.getpid() % 16_384
    return f"127.{64 + run // 256}.{run % 256}.{number + 1}"


def _wait_until_ready(hosts: Sequence[SimulatedHost]) -> None:
    deadline = time.monotonic() + _READY_S
    for host in hosts:
        while not host.is_ready():
            if failure := host.failure():
                raise ReplayFailed(f"Alloy of {host.name} ended:\n{failure}")
            if time.monotonic() > deadline:
                raise ReplayFailed(f"Alloy of {host.name} is not ready after {_READY_S} s")
            time.sleep(0.5)


def _play(hosts: Sequence[SimulatedHost], longest_s: float | None) -> dict[str, float]:
    """Each host's second 0 as Unix seconds, once every tape has ended."""
    start_s = time.time() + 1
    begun = {host.name: start_s + _APART_S * number for number, host in enumerate(hosts)}
    failures: list[str] = []

    def play(host: SimulatedHost) -> None:
        try:
            for step in sorted(host.tape.steps, key=lambda step: step["at"]):
                if step["at"] >= 0 and (longest_s is None or step["at"] < longest_s):
                    time.sleep(max(0.0, begun[host.name] + step["at"] - time.time()))
                    host.do(step)
        except Exception as error:
            failures.append(f"{host.name}: {error!r}")

    threads = [threading.Thread(target=play, args=(host,), daemon=True) for host in hosts]
    for thread in threads:
        thread.start()
    end_s = max(begun[host.name] + min(host.tape.length_s, longest_s or host.tape.length_s) for host in hosts) + _SETTLE_S
    while (rest := end_s - time.time()) > 0:
        time.sleep(min(5, rest))
        if failures:
            raise ReplayFailed("\n".join(failures))
    for thread in threads:
        thread.join(timeout=60)
    return begun


def _scored(
    hosts: Sequence[SimulatedHost], begun: dict[str, float], stores: Stores, keep: Path | None, others: Iterable[str]
) -> list[Result]:
    results = []
    for host in hosts:
        expected = host.tape.expected
        found = episodes(stores.inbox.posts, host.name, begun[host.name])
        names = host.names_of(expected.gpu)
        by_others = {
            name: score(expected, episodes(stores.inbox.posts, host.name, begun[host.name], name), names) for name in others
        }
        results.append(Result(host.tape, host.mode, score(expected, found, names), by_others))
        if keep:
            lines: list[dict[str, Any]] = [
                {"start": round(one.start_s, 1), "end": one.end_s and round(one.end_s, 1), "page": one.is_page, **one.alert}
                for one in found
            ]
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{host.name}.json").write_text(json.dumps(lines, indent=1))
    return results
