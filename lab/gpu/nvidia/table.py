"""The bare table of nvidia-smi: 91 columns wide from driver 550 on, 79 before 535. That of 535 itself is not imitated."""

from __future__ import annotations

import time

from lab.gpu.machine import Gpu, Machine
from lab.gpu.nvidia.answering import processes
from lab.gpu.nvidia.fields import Answers, bus_id


def render(machine: Machine, gpus: list[Gpu]) -> str:
    answers = [(gpu, Answers(gpu)) for gpu in gpus]
    stamp = time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(machine.at_s))
    lines = [f"{stamp:<31}", *(_wide(machine, answers) if machine.driver_major >= 535 else _narrow(machine, answers))]
    return "\n".join(lines)


def _wide(machine: Machine, answers: list[tuple[Gpu, Answers]]) -> list[str]:
    cells = "+-----------------------------------------+------------------------+----------------------+"
    full = "+" + "-" * 89 + "+"
    lines = [
        full,
        _wide_title(machine),
        cells if machine.driver_major >= 580 else "|" + cells[1:],
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        "|                                         |                        |               MIG M. |",
        "|=========================================+========================+======================|",
    ]
    for gpu, answer in answers:
        utilization = f"{'N/A':>8}     " if gpu.mig else f"{answer['utilization.gpu']:>7}%     "
        power = f"{int(float(answer['power.draw'] or 0)):>15}W / {int(float(answer['power.limit'] or 0)):>4}W"
        lines += [
            f"| {gpu.index:>3}  {_short(gpu.product['name'], 27):<30} On  |   {bus_id(gpu)} Off | {_ecc(gpu, answer):>20} |",
            f"| N/A  {answer['temperature.gpu']:>3}C    {answer['pstate']}{power} | {answer['memory.used']:>7}MiB / "
            f"{answer['memory.total']:>6}MiB |{utilization}{'Default':>8} |",
            f"|{'':41}|{'':24}| {answer['mig.mode.current'] or 'N/A':>20} |",
            cells,
        ]
    if any(gpu.mig for gpu, _ in answers):
        lines += ["", *_mig(answers, full)]
    blank = "" if machine.driver_major >= 580 else " " * 89
    pid_width = 16 if machine.driver_major >= 570 else 10
    lines += [
        blank,
        full,
        f"| {'Processes:':<87} |",
        f"|  GPU   GI   CI{'PID':>{pid_width + 1}}   Type   {'Process name':<{52 - pid_width}}GPU Memory |",
        f"|        ID   ID{'':>{pid_width + 1}}          {'':<{52 - pid_width}}Usage      |",
        "|" + "=" * 89 + "|",
    ]
    rows = _processes(
        answers,
        lambda gpu, pid, name, used: f"|{gpu:>5}   N/A  N/A{pid:>{pid_width}}      C   {name:<{52 - pid_width}}{used:>10} |",
    )
    return [*lines, *(rows or [f"|  {'No running processes found':<87}|"]), full]


def _wide_title(machine: Machine) -> str:
    if machine.driver_major >= 610:
        return f"| NVIDIA-SMI {machine.driver:<22} KMD Version: {machine.driver:<13} CUDA UMD Version: {machine.cuda:<8} |"
    return f"| NVIDIA-SMI {machine.driver:<22} Driver Version: {machine.driver:<14} CUDA Version: {machine.cuda:<8} |"


def _mig(answers: list[tuple[Gpu, Answers]], full: str) -> list[str]:
    cells = "+------------------+----------------------------------+-----------+-----------------------+"
    lines = [
        full,
        f"| {'MIG devices:':<87} |",
        cells,
        "| GPU  GI  CI  MIG |              Shared Memory-Usage |        Vol|        Shared         |",
        "|      ID  ID  Dev |                Shared BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |",
        "|                  |                                  |        ECC|                       |",
        "|==================+==================================+===========+=======================|",
    ]
    for gpu, answer in answers:
        for part in gpu.mig:
            used = round(part["memory_mib"] * answer.reading.memory_used_ratio)
            slices, ids = part["slices"], f"{gpu.index:>3}{part['gi']:>5}{part['ci']:>4}{part['device']:>4}"
            lines += [
                f"|{ids}  |{used:>16}MiB / {part['memory_mib']:>5}MiB    |"
                f"{part['sms']:>3}      0 |{slices:>3}   0{slices:>5}    0{slices:>5} |",
                f"|{'':18}|{0:>16}MiB / {part['bar1_mib']:>5}MiB    |{'':11}|{'':23}|",
                cells,
            ]
    return lines


def _narrow(machine: Machine, answers: list[tuple[Gpu, Answers]]) -> list[str]:
    cells = "+-------------------------------+----------------------+----------------------+"
    full = "+" + "-" * 77 + "+"
    lines = [
        full,
        f"| NVIDIA-SMI {machine.driver:<12} Driver Version: {machine.driver:<12} CUDA Version: {machine.cuda:<8} |",
        "|" + cells[1:],
        "| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |",
        "|                               |                      |               MIG M. |",
        "|===============================+======================+======================|",
    ]
    for gpu, answer in answers:
        power = f"{int(float(answer['power.draw'] or 0)):>4}W / {int(float(answer['power.limit'] or 0)):>3}W"
        lines += [
            f"| {gpu.index:>3}  {_short(gpu.product['name'], 17):<18}  On   | {bus_id(gpu)} Off | {_ecc(gpu, answer):>20} |",
            f"| N/A  {answer['temperature.gpu']:>3}C    {answer['pstate']}  {power} | {answer['memory.used']:>6}MiB / "
            f"{answer['memory.total']:>5}MiB |{answer['utilization.gpu']:>7}%     {'Default':>8} |",
            f"|{'':31}|{'':22}| {answer['mig.mode.current'] or 'N/A':>20} |",
            cells,
        ]
    lines += [
        " " * 79,
        full,
        f"| {'Processes:':<75} |",
        f"|  GPU   GI   CI        PID   Type   {'Process name':<30}GPU Memory |",
        f"|        ID   ID                     {'':<30}Usage      |",
        "|" + "=" * 77 + "|",
    ]
    rows = _processes(answers, lambda gpu, pid, name, used: f"|{gpu:>5}   N/A  N/A{pid:>10}      C   {name:<30}{used:>10} |")
    return [*lines, *(rows or [f"|  {'No running processes found':<75}|"]), full]


def _processes(answers: list[tuple[Gpu, Answers]], row) -> list[str]:
    return [row(gpu.index, pid, name, f"{used}MiB") for gpu, answer in answers for pid, name, used in processes(gpu, answer)]


def _ecc(gpu: Gpu, answer: Answers) -> str:
    if gpu.mig:
        return "On"
    return answer["ecc.errors.uncorrected.volatile.total"] or "N/A"


def _short(name: str, width: int) -> str:
    return name if len(name) <= width else name[: width - 3] + "..."
