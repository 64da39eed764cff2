"""Which GPUs the host has and which driver, from the vendor's own tool: without a driver no exporter works.

GPU_FLEET_VENDOR: auto, nvidia or amd. GPU_FLEET_GPUS: how many GPUs the stack file says this host has, empty: not counted.
GPU_FLEET_MIN_DRIVER: the oldest driver that the stack file accepts, empty: any.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Callable, Mapping, Sequence

from ..nvidia_smi import passed_through
from .host import Hangs, Host, Refusal

if TYPE_CHECKING:
    from ..tools import Answer

NO_DRIVER, WRONG_COUNT, OLD_DRIVER = 10, 11, 14
PATIENCE_S = 60  # eight GPUs without persistence mode take up to half a minute to wake up

# What nvidia-smi says when it lists no GPU, and what to do.
_NEXT_STEPS = (
    (
        "couldn't find libnvidia-ml.so",
        "libnvidia-ml.so.1 is missing: install the whole driver; in a container: start it with the NVIDIA Container Toolkit",
    ),
    (
        "between nvidia-smi and NVML",
        "nvidia-smi and libnvidia-ml.so.1 are of different drivers: remove one, or name the right directory (toolPath)",
    ),
    (
        "Driver/library version mismatch",
        "the driver was upgraded under the loaded module: reboot, or reload the nvidia modules",
    ),
    (
        "communicate with the NVIDIA driver",
        "the kernel module is not loaded: `modprobe nvidia`, then `journalctl -k --grep NVRM`",
    ),
    (
        "Unknown Error",
        "in a container: it lost access to the devices, recreate it; on a host: `journalctl -k --grep NVRM`",
    ),
    ("", "check `journalctl -k --grep NVRM` and `lspci -d 10de:`"),
)
_LISTED = re.compile(r"^GPU (\d+): ", re.MULTILINE)
_MODEL = re.compile(r"^GPU \d+: (.*) \(UUID: ", re.MULTILINE)
_OF_THE_LIST = re.compile(r"GPU \d*: | *MIG |(card)?\d+,|(gpu|device),|\s*$")

Ask = Callable[..., "Answer"]


def probe(host: Host) -> Mapping[str, str]:
    """GPU_VENDOR, GPU_COUNT, GPU_MODELS, GPU_DRIVER_VERSION, CUDA_VERSION or ROCM_VERSION; GPU_GUESTS where guests have some that
    the driver does not list. Raises Refusal."""
    vendor = host.setting("VENDOR", "auto")
    for check, names in ((_nvidia, ("nvidia-smi",)), (_amd, ("rocm-smi", "amd-smi"))):
        if vendor == ("amd" if check is _nvidia else "nvidia"):
            continue
        tool = host.driver_tool(*names)
        if not tool:
            continue
        try:
            return check(host, tool)
        except Hangs as error:
            raise Refusal(NO_DRIVER, f"{error}.", "Next: `journalctl -k`, then reboot the host.") from None
    sought = {"nvidia": "nvidia-smi", "amd": "rocm-smi or amd-smi"}.get(vendor, "nvidia-smi, rocm-smi or amd-smi")
    raise Refusal(
        NO_DRIVER,
        f"no GPU driver: {sought} is neither in GPU_FLEET_TOOL_PATH nor in PATH nor in the usual install directories.",
        "Next: install the GPU vendor's driver and reboot; or set the tool's directory in the stack file (toolPath of the host).",
        "A host without GPUs does not belong in `hosts`.",
    )


def _nvidia(host: Host, tool: str) -> Mapping[str, str]:
    def ask(*arguments: str) -> Answer:
        return host.ask(tool, *arguments, within_s=PATIENCE_S, with_stderr=True)

    listing = ask("-L")
    listed = _LISTED.findall(listing.text)
    if not listed:
        raise Refusal(NO_DRIVER, f"{tool} -L lists no GPU: {said(listing)}", f"Next: {next_step(listing.text)}.")
    of_guests = len(passed_through(host.root))
    _expect_gpus(host, len(listed), f"{tool} -L", listing, of_guests)
    # Old drivers have no --version, and print CUDA's only above the plain table.
    answer = ask("--version").text
    driver, cuda = nvidia_version(answer), cuda_version(answer)
    # The first GPU alone: while another has none but errors, drivers until 555 at least answer for no GPU.
    if not driver:
        answer = ask("--query-gpu=driver_version", "--format=csv,noheader", "-i", listed[0]).text
        driver = _first(r"^([0-9][0-9.]*)$", answer)
    _expect_driver(host, driver)
    cuda = cuda or cuda_version(ask("-i", listed[0]).text)
    facts = _facts("nvidia", _MODEL.findall(listing.text), len(listed), driver)
    return {**facts, "CUDA_VERSION": cuda or "unknown", **({"GPU_GUESTS": str(of_guests)} if of_guests else {})}


def _amd(host: Host, tool: str) -> Mapping[str, str]:
    is_new = tool.endswith("/amd-smi")
    arguments = ("list", "--csv") if is_new else ("--showproductname", "--showbus", "--csv")
    listing = host.ask(tool, *arguments, within_s=PATIENCE_S, with_stderr=True)
    models = amd_models(listing.text)
    if not models:
        raise Refusal(
            NO_DRIVER,
            f"{tool} {arguments[0]} lists no GPU: {said(listing)}",
            "Next: `modprobe amdgpu`, then `journalctl -k --grep amdgpu`; the user needs the groups video and render.",
        )
    _expect_gpus(host, len(models), f"{tool} {arguments[0]}", listing)
    # ROCm's own module has a version; the one built into the kernel has none, and rocm-smi then reports the kernel's version.
    driver = host.text("/sys/module/amdgpu/version").strip()
    if not driver and not is_new:
        answer = host.ask(tool, "--showdriverversion", "--csv", within_s=PATIENCE_S, with_stderr=True)
        driver = _first(r'.*[^0-9.\n](\d+\.\d[^", \n]*)', answer.text)
    _expect_driver(host, driver)
    rocm = host.text("/opt/rocm/.info/version").partition("\n")[0]
    return {**_facts("amd", models, len(models), driver), "ROCM_VERSION": rocm or "unknown"}


def _facts(vendor: str, models: Sequence[str], count: int, driver: str) -> dict[str, str]:
    return {
        "GPU_VENDOR": vendor,
        "GPU_COUNT": str(count),
        "GPU_MODELS": ", ".join(f"{number} x {model}" for model, number in sorted(Counter(models).items())),
        "GPU_DRIVER_VERSION": driver or "unknown",
    }


def said(answer: Answer) -> str:
    """What the tool printed besides its list of GPUs, shortened for an error message."""
    if answer.status is None:
        return f"no answer within {PATIENCE_S} s"
    return " ".join([line for line in answer.text.splitlines() if not _OF_THE_LIST.match(line)][:3])


def next_step(text: str) -> str:
    return next(step for words, step in _NEXT_STEPS if words in text)


def nvidia_version(text: str) -> str:
    """Of `nvidia-smi --version`. Since 610 it says "KMD version"."""
    return _first(r"^(?:DRIVER|KMD) version *: *([0-9][0-9.]*) *$", text)


def cuda_version(text: str) -> str:
    """Of `nvidia-smi --version` and of the plain table. Since 610 it says "CUDA UMD version"."""
    return _first(r".*CUDA (?:UMD )?[Vv]ersion *: *([0-9][0-9.]*)", text)


def amd_models(text: str) -> list[str]:
    """The model of each GPU, of `amd-smi list --csv` or `rocm-smi --showproductname --showbus --csv`.

    Partitions (CPX, DPX) are listed one by one, as functions of the PCI address of the GPU that has them.
    """
    models: list[str] = []
    addresses: set[str] = set()
    columns: list[str] = []
    for line in text.splitlines():
        cells = line.rstrip("\r").split(",")
        if re.match(r"(gpu|device),", line):
            columns = [cell.lower() for cell in cells]
        elif re.match(r"(card)?\d+,", line):
            row = dict(zip(columns, cells))
            address = re.match(r"(.*)\.\d+ *$", row.get("gpu_bdf", row.get("pci bus", "")))
            if address and address[1] in addresses:
                continue
            if address:
                addresses.add(address[1])
            model = row.get("card series", row.get("market_name", ""))
            # A GPU that is newer than the tool has a number.
            models.append("AMD GPU" if re.fullmatch(r"(N/A|0x.*)?", model) else model)
    return models


def is_older(version: str, than: str) -> bool:
    """Number by number; a part that is missing counts as 0."""
    one, other = ([int(_first(r"(\d+)", part) or 0) for part in text.split(".")] for text in (version, than))
    length = max(len(one), len(other))
    return one + [0] * (length - len(one)) < other + [0] * (length - len(other))


def _expect_gpus(host: Host, count: int, source: str, answer: Answer, of_guests: int = 0) -> None:
    expected = host.setting("GPUS")
    if not expected or int(expected) == count + of_guests:
        return
    words = said(answer)
    raise Refusal(
        WRONG_COUNT,
        f"the stack file says gpus: {expected}, but {source} lists {count}.",
        "If a GPU is missing, it may have fallen off the bus: check `journalctl -k --grep 'NVRM|amdgpu'` and `lspci`,",
        f"then reset or reboot the host. If the host has {count}, correct `gpus` in the stack file.",
        *([f"Besides the list, {source} printed: {words}"] if words else []),
    )


def _expect_driver(host: Host, driver: str) -> None:
    oldest = host.setting("MIN_DRIVER")
    if not oldest or (re.match(r"\d", driver) and not is_older(driver, oldest)):
        return
    raise Refusal(
        OLD_DRIVER,
        f"the stack file says minDriver: {oldest}, and this host has driver {driver or 'of an unknown version'}.",
        "Next: upgrade the driver and reboot; or lower `minDriver` of the host in the stack file.",
    )


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1] if found else ""
