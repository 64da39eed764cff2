"""How often are JobHung, JobStalled and JobSlowedByGpu right? The rules themselves, on generated jobs, at a real Prometheus.

    python -m bench.hangs [--seed 33] [--tapes 100]

A tape is the metrics of one job for 40 minutes: one that hangs, one with a GPU or a host that is slow, or a healthy one that
looks like these: ranks that wait for a checkpoint, small kernels, code that reads no memory, roles of different work, a power cap
of all. Levels of power, activity and clocks are our assumptions about H100, A100 and L40S, not recordings. Precision: of the jobs
and GPUs that are named, those that were to be. Recall: of these, those that are named in time.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

import alerts
from lab.showcase.remote_write import Labels, push
from tests.prometheus_server import PrometheusServer

SEED: Final = 33
TAPES: Final = 100
LENGTH_S: Final = 2400
SCRAPE_S: Final = 15
HUNG, SLOWED = "JobHung", "JobSlowedByGpu"
ALERTS: Final = {HUNG: ("JobHung", "JobStalled"), SLOWED: ("JobSlowedByGpu",)}
# After the beginning. A job of which one rank is idle, and the others wait, looks for minutes like one that writes a checkpoint.
SOON_S: Final = {"all wait": 120, "one is idle": 690, SLOWED: 900}


@dataclass(frozen=True)
class Model:
    name: str
    limit_watts: float
    clock_hertz: float
    waiting: tuple[float, float]  # power of a GPU that spins in a collective, of its limit


MODELS: Final = (
    Model("NVIDIA H100 80GB HBM3", 700, 1.98e9, (0.16, 0.36)),
    Model("NVIDIA A100-SXM4-80GB", 400, 1.41e9, (0.20, 0.40)),
    Model("NVIDIA L40S", 350, 2.52e9, (0.22, 0.42)),
)


@dataclass(frozen=True)
class Work:
    """What a GPU does at a moment. Shares: of time, of the power limit without a cap, of the highest clock."""

    busy: float
    dram: float
    tensor: float
    power: float
    clock: float


IDLE: Final = Work(0, 0, 0, 0.11, 1)


@dataclass
class Gpu:
    instance: str
    gpu: str
    chip: float  # how its clock differs from others, under a power cap
    role: str = ""
    limit: float = 1  # of the model's


@dataclass
class Tape:
    """`truth`: what must be named: the job, or GPUs as (instance, gpu). `begins_s`: when."""

    number: int
    kind: str
    model: Model
    profile: str
    gpus: list[Gpu]
    counters: str
    random: random.Random
    begins_s: float = LENGTH_S
    alert: str = ""
    truth: set[tuple[str, str]] = field(default_factory=set)
    pauses: list[tuple[float, float, str]] = field(default_factory=list)  # begin, end, kind
    waiting: float = 0.25
    slow: float = 0  # of the clock
    floor: float = 0.8  # of the clock under full power


# --- what jobs do --------------------------------------------------------------------------------------------------

# Of quiet tapes, and of what hangs or is slow before it begins. train: synchronous, power limited. network: waits for the network
# in each step. data: for its input. pipeline: stages of different work. roles: some GPUs generate, others learn. small: tiny
# kernels. registers, latency: science that hardly reads memory. capped: training under a power cap. notebook: mostly idle.
QUIET: Final = (
    *("train", "train", "train", "network", "data", "pipeline", "roles", "small", "registers", "latency", "capped", "notebook"),
)
HANGS_IN: Final = ("train", "train", "network", "data", "pipeline", "capped")
SLOWS: Final = ("train", "train", "network", "data", "pipeline", "capped")


def doing(tape: Tape, gpu: Gpu, at_s: float) -> Work:
    draw = tape.random
    normal, uniform = draw.gauss, draw.uniform
    clock = tape.floor * gpu.chip * normal(1, 0.012)
    match tape.profile:
        case "train" | "capped":
            return Work(normal(0.985, 0.008), normal(0.4, 0.05), normal(0.45, 0.05), normal(0.93, 0.03), clock)
        case "network":
            return Work(normal(0.99, 0.006), uniform(0.04, 0.1), uniform(0.03, 0.1), normal(0.45, 0.04), normal(0.99, 0.005))
        case "data":
            share = uniform(0.3, 1)
            return Work(share, 0.4 * share, 0.4 * share, 0.2 + 0.6 * share, normal(0.95, 0.02))
        case "pipeline":
            stage = 0.75 + 0.25 * (int(gpu.gpu) % 4) / 3
            return Work(normal(0.93, 0.02), 0.3 * stage, 0.4 * stage, 0.9 * stage, min(1.0, clock * (1.6 - 0.6 * stage)))
        case "roles" if gpu.role == "generates":
            return Work(normal(0.97, 0.015), normal(0.6, 0.05), uniform(0.03, 0.1), normal(0.5, 0.04), normal(0.99, 0.005))
        case "roles":
            return Work(normal(0.98, 0.01), normal(0.4, 0.05), normal(0.45, 0.05), normal(0.94, 0.03), clock)
        case "small":
            return Work(normal(0.97, 0.02), uniform(0.02, 0.06), uniform(0, 0.005), uniform(0.25, 0.4), normal(0.99, 0.005))
        case "registers":
            return Work(1, uniform(0.002, 0.015), 0, normal(0.7, 0.03), normal(0.97, 0.01))
        case "latency":
            return Work(normal(0.995, 0.003), uniform(0.005, 0.03), 0, normal(0.48, 0.03), normal(0.99, 0.005))
    return doing_in_notebook(tape, at_s)


def doing_in_notebook(tape: Tape, at_s: float) -> Work:
    return Work(0.9, 0.3, 0.3, 0.6, 0.98) if (at_s // 180 + tape.number) % 6 == 0 else IDLE


def waits(tape: Tape) -> Work:
    """In a collective, for a rank that does not come."""
    draw = tape.random
    return Work(draw.gauss(0.998, 0.002), draw.uniform(0, 0.004), 0, draw.gauss(tape.waiting, 0.01), draw.gauss(0.995, 0.003))


def work(tape: Tape, gpu: Gpu, at_s: float) -> Work:
    """With what has begun, and what interrupts the job."""
    first = gpu is tape.gpus[0]
    if at_s >= tape.begins_s and tape.alert == HUNG:
        return IDLE if tape.kind == "one is idle" and first else waits(tape)
    for begin, end, kind in tape.pauses:
        if begin <= at_s < end:
            if kind == "all idle" or (kind == "first idle" and first):
                return IDLE
            return waits(tape)
    done = doing(tape, gpu, at_s)
    if at_s >= tape.begins_s and tape.alert == SLOWED:
        return slowed(tape, gpu, at_s, done)
    return done


def slowed(tape: Tape, gpu: Gpu, at_s: float, done: Work) -> Work:
    """The slow GPU computes all the time, and the others wait for it in each step."""
    share = tape.slow
    if tape.kind == "thermal":
        share = min(1.0, (at_s - tape.begins_s) / 120) * tape.slow + tape.random.gauss(0, 0.02)
    if tape.kind == "at times" and (at_s // 30) % 10 == 0:
        share = 0
    if (gpu.instance, gpu.gpu) in tape.truth:
        power = gpu.limit if tape.kind == "power cap" else done.power * (1 - 0.8 * share)
        return Work(max(done.busy, 0.97), done.dram * (1 - share), done.tensor * (1 - share), power, done.clock * (1 - share))
    power = done.power * (1 - share) + tape.waiting * share
    return Work(max(done.busy, 0.97), done.dram * (1 - share), done.tensor * (1 - share), power, done.clock)


# --- tapes ---------------------------------------------------------------------------------------------------------


def tapes(count: int, seed: int) -> list[Tape]:
    return [_tape(number, random.Random(f"{seed}-{number}")) for number in range(count)]  # noqa: S311


def _tape(number: int, draw: random.Random) -> Tape:
    wanted = ("hang", "slow", "quiet", "quiet", "hang", "slow", "quiet", "hang", "slow", "quiet")[number % 10]
    model = draw.choice(MODELS)
    profile = draw.choice({"hang": HANGS_IN, "slow": SLOWS, "quiet": QUIET}[wanted])
    size = draw.choice((8, 8, 16, 32, 64) if wanted == "slow" else (2, 4, 8, 16, 32))
    gpus = [Gpu(f"n{place // 8}", str(place % 8), draw.gauss(1, 0.02)) for place in range(size)]
    counters = draw.choice(("profiling", "standard", "nvidia-smi"))
    tape = Tape(number, wanted, model, profile, gpus, counters, draw)
    tape.waiting = draw.uniform(*model.waiting)
    tape.floor = draw.uniform(0.55, 0.65) if profile == "capped" else draw.uniform(0.72, 0.88)
    for gpu in gpus:
        gpu.role = "generates" if profile == "roles" and draw.random() < 0.7 else ""
        gpu.limit = 0.65 if profile == "capped" else 1
    if wanted != "quiet":
        tape.begins_s = draw.uniform(600, 1200)
    if wanted == "hang":
        tape.alert = HUNG
        tape.kind = draw.choice(("all wait", "all wait", "one is idle"))
        tape.truth = {(f"job-{number}", "")}
    if wanted == "slow":
        _make_slow(tape)
    if profile not in ("notebook", "registers", "latency"):
        _interrupt(tape)
    return tape


def _make_slow(tape: Tape) -> None:
    draw = tape.random
    kinds = ["thermal", "thermal", "slowdown", "stuck clock", "at times"]
    kinds += ["power cap"] * (tape.profile in ("train", "pipeline", "capped"))  # less power than the cap is not slower
    kinds += ["host", "host"] * (len(tape.gpus) > 8)
    tape.alert, tape.kind = SLOWED, draw.choice(kinds)
    victim = draw.choice(tape.gpus)
    tape.slow = {"slowdown": 0.5, "stuck clock": 0.85}.get(tape.kind, draw.uniform(0.22, 0.5))
    hit = [gpu for gpu in tape.gpus if gpu.instance == victim.instance] if tape.kind == "host" else [victim]
    tape.truth = {(gpu.instance, gpu.gpu) for gpu in hit}
    if tape.kind == "power cap":
        victim.limit *= 1 - tape.slow


def _interrupt(tape: Tape) -> None:
    """Checkpoints that one rank writes, evaluations, late input, short faults of the network; compilation at the start."""
    draw = tape.random
    if draw.random() < 0.4:
        tape.pauses.append((0, draw.uniform(60, 240), "all idle"))
    at_s = draw.uniform(240, 600)
    while at_s < LENGTH_S:
        kind, longest = draw.choice((("first idle", 300), ("first idle", 90), ("all idle", 180), ("all wait", 70)))
        lasts = draw.uniform(15, longest)
        tape.pauses.append((at_s, at_s + lasts, kind))
        at_s += lasts + draw.uniform(300, 900)


def series(tape: Tape, start_s: float) -> Iterator[tuple[Labels, list[tuple[float, float]]]]:
    """As the vocabulary has them."""
    model = tape.model
    job = {"job_id": f"job-{tape.number}", "user": "alice", "account": "vision", "partition": "train", "model": model.name}
    for gpu in tape.gpus:
        of = {"datacenter": "d", "cluster": f"tape-{tape.number}", "instance": gpu.instance, "gpu": gpu.gpu}
        of["uuid"] = f"GPU-{tape.number}-{gpu.instance}-{gpu.gpu}"
        found: dict[str, list[tuple[float, float]]] = {}
        offset_s = sum(map(ord, gpu.instance + str(tape.number))) % SCRAPE_S
        for at_s in range(offset_s, LENGTH_S, SCRAPE_S):
            now, at = work(tape, gpu, at_s), start_s + at_s
            limit = gpu.limit * model.limit_watts
            busy = round(min(1, max(0, now.busy)), 2)
            values = {"gpu:utilization:ratio": busy, "gpu:power_limit:watts": limit}
            values["gpu:power:watts"] = min(limit * 1.02, max(0.08, now.power) * model.limit_watts)
            values["gpu:sm_clock:hertz"] = min(1, max(0.1, now.clock)) * model.clock_hertz
            values["gpu:memory_activity:ratio"] = round(min(1, max(0, now.dram * tape.random.uniform(0.8, 1.3))), 2)
            if tape.counters == "profiling":
                values["gpu:dram_active:ratio"] = max(0, now.dram)
                values["gpu:tensor_active:ratio"] = max(0, now.tensor)
            for name, value in values.items():
                found.setdefault(name, []).append((at, value))
            found.setdefault("gpu:job:info", []).append((at, 1))
        for name, samples in found.items():
            labels = {"__name__": name, **of, **(job if name == "gpu:job:info" else {"model": model.name})}
            yield tuple(sorted(labels.items())), samples


# --- what the rules say --------------------------------------------------------------------------------------------


def rules(*names: str) -> list[tuple[str, int]]:
    """Expressions of alerts or of what is recorded, and the interval of each, s."""
    groups = yaml.safe_load((Path(alerts.__file__).parent / "rules" / "hangs.yaml").read_text())["groups"]
    return [
        (rule["expr"], {"15s": 15, "1m": 60}[group["interval"]])
        for group in groups
        for rule in group["rules"]
        if {rule.get("alert"), rule.get("record")} & {*names}
    ]


@dataclass
class Store:
    server: PrometheusServer
    start_s: float

    def over_time(self, promql: str, step_s: int) -> list[tuple[Mapping[str, str], list[tuple[float, float]]]]:
        """Seconds since the start, and value."""
        asked = {"query": promql, "start": self.start_s, "end": self.start_s + LENGTH_S, "step": step_s}
        request = urllib.request.Request(f"{self.server.url}/api/v1/query_range", data=urllib.parse.urlencode(asked).encode())  # noqa: S310
        with urllib.request.urlopen(request, timeout=300) as answer:  # noqa: S310
            result = json.load(answer)["data"]["result"]
        return [(one["metric"], [(at - self.start_s, float(value)) for at, value in one["values"]]) for one in result]

    def named(self) -> dict[int, dict[str, dict[tuple[str, str], float]]]:
        """By tape and alert: when what is named first."""
        found: dict[int, dict[str, dict[tuple[str, str], float]]] = {}
        for name, rule in [(of, rule) for of, alert in ALERTS.items() for rule in rules(*alert)]:
            for labels, samples in self.over_time(*rule):
                who = (labels["job_id"], "") if name == HUNG else (labels["instance"], labels["gpu"])
                tape = found.setdefault(int(labels["cluster"].removeprefix("tape-")), {}).setdefault(name, {})
                tape[who] = min(samples[0][0], tape.get(who, samples[0][0]))
        return found


def evaluated(directory: Path, made: Sequence[Tape]) -> dict[int, dict[str, dict[tuple[str, str], float]]]:
    start_s = time.time() // 60 * 60 - LENGTH_S - 600
    settings = {"storage": {"tsdb": {"out_of_order_time_window": "1d"}}, "global": {"scrape_interval": f"{SCRAPE_S}s"}}
    flags = ("--web.enable-remote-write-receiver", "--query.max-samples=200000000")
    with PrometheusServer(directory, settings, *flags) as server:
        store, url = Store(server, start_s), f"{server.url}/api/v1/write"
        for tape in made:
            push(url, dict(series(tape, start_s)))
        record = "gpu:slower_than_job:ratio"
        recorded = {
            tuple(sorted({**labels, "__name__": record}.items())): [(start_s + at, value) for at, value in samples]
            for labels, samples in store.over_time(*rules(record)[0])
        }
        push(url, recorded)
        return store.named()


@dataclass
class Score:
    right: int = 0
    wrong: int = 0
    missed: int = 0
    after_s: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def precision(self) -> float:
        return self.right / (self.right + self.wrong) if self.right else 0.0

    @property
    def recall(self) -> float:
        return self.right / (self.right + self.missed) if self.right else 0.0


def scores(made: Sequence[Tape], named: Mapping[int, Mapping[str, Mapping[tuple[str, str], float]]]) -> dict[str, Score]:
    """A slow host is one: it counts as named when half of its GPUs are."""
    found = {HUNG: Score(), SLOWED: Score()}
    for tape in made:
        for alert, score in found.items():
            said = dict(named.get(tape.number, {}).get(alert, {}))
            truth = tape.truth if tape.alert == alert else set()
            about = f"{tape.kind} in {tape.profile}, {len(tape.gpus)} {tape.model.name.split()[1]}, {tape.counters}"
            wrong = [who for who, at_s in said.items() if who not in truth or at_s < tape.begins_s]
            if wrong:
                score.wrong += 1
                score.errors[f"{alert} wrong: {about}"] += 1
            if truth:
                times = sorted(said[who] - tape.begins_s for who in truth & said.keys() if said[who] >= tape.begins_s)
                needed = (len(truth) + 1) // 2
                soon_s = SOON_S.get(tape.kind, SOON_S[SLOWED])
                if len(times) >= needed and times[needed - 1] <= soon_s:
                    score.right += 1
                    score.after_s.append(times[needed - 1])
                else:
                    score.missed += 1
                    score.errors[f"{alert} missed: {about}, slow {tape.slow:.2f}, after {times[:1]}"] += 1
    return found


def measure(count: int = TAPES, seed: int = SEED) -> tuple[dict[str, Score], float]:
    """And the GPU-hours of the tapes that nothing is to be said of."""
    made = tapes(count, seed)
    with tempfile.TemporaryDirectory() as directory:
        found = scores(made, evaluated(Path(directory), made))
    return found, sum(len(tape.gpus) for tape in made if not tape.alert) * LENGTH_S / 3600


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.hangs", description="Precision and recall of JobHung, JobStalled and JobSlowedByGpu."
    )
    parser.add_argument("--tapes", type=int, default=TAPES)
    parser.add_argument("--seed", type=int, default=SEED)
    given: Any = parser.parse_args(arguments)
    found, quiet = measure(given.tapes, given.seed)
    for alert, score in found.items():
        after = sorted(score.after_s) or [0]
        print(
            f"{alert}: precision {score.precision:.3f}, recall {score.recall:.3f}: {score.right} right, {score.wrong} wrong, "
            f"{score.missed} missed; named after {after[len(after) // 2]:.0f} s, at most {after[-1]:.0f} s"
        )
        for what, times in sorted(score.errors.items()):
            print(f"  {times} {what}")
    print(f"{quiet:.0f} GPU-hours of healthy jobs")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
