"""The CSV queries of nvidia-smi that exporters and collectors make: --query-gpu and --query-compute-apps."""

from __future__ import annotations

from lab.gpu import TYPE_CHECKING
from lab.gpu.machine import Gpu, Machine
from lab.gpu.nvidia import field_list
from lab.gpu.nvidia.answering import Refused, processes
from lab.gpu.nvidia.fields import Answers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab.gpu.nvidia.answering import Rows

    Cells = dict[str, str | None]

# The first five name the GPU.
_GPU_FIELDS = dict.fromkeys(("timestamp", "gpu_name", "gpu_bus_id", "gpu_serial", "gpu_uuid"), "")
_APPS = {**_GPU_FIELDS, "pid": "", "process_name": "", "used_gpu_memory": "MiB"}
QUERIES = ("--query-gpu", "--query-compute-apps")
_ALIASES = {
    "name": "process_name",
    "used_memory": "used_gpu_memory",
}


def rows(machine: Machine, switch: str, fields: str, form: str | None) -> Rows:
    """What a query prints per GPU. Raises Refused for a format or field that the driver does not know."""
    styles = _styles(form)
    if switch == "--query-gpu":
        units = field_list.known(machine.driver_major)
        names = [field_list.own_name(name.strip(), machine.driver_major) for name in fields.split(",")]
    else:
        units = _APPS
        names = [_ALIASES.get(name.strip(), name.strip()) for name in fields.split(",")]
    for asked, name in zip(fields.split(","), names):
        if name not in units:
            raise Refused(f'Field "{asked.strip()}" is not a valid field to query.')

    def of(gpu: Gpu | None) -> list[str]:
        if gpu is None:
            return [] if "noheader" in styles else [", ".join(field_list.header(name, units[name]) for name in names)]
        records = [Answers(gpu)] if switch == "--query-gpu" else _compute_apps(gpu)
        return [", ".join(_cell(record[name], units[name], styles) for name in names) for record in records]

    return of


def _styles(form: str | None) -> set[str]:
    if form is None:
        raise Refused("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.")
    styles = {style.strip() for style in form.split(",")}
    if "csv" not in styles or styles - {"csv", "noheader", "nounits"}:
        raise Refused(f"\"{form}\" is not a valid format. Please run 'nvidia-smi -h' for help.")
    return styles


def _cell(value: str | None, unit: str, styles: set[str]) -> str:
    if value is None:
        return "[N/A]"
    return f"{value} {unit}" if unit and "nounits" not in styles and value[:1] != "[" else value


def _whose(answers: Answers) -> Cells:
    own = {"gpu_name": "name", "gpu_bus_id": "pci.bus_id", "gpu_serial": "serial", "gpu_uuid": "uuid"}
    return {field: answers[own.get(field, field)] for field in _GPU_FIELDS}


def _compute_apps(gpu: Gpu) -> Iterator[Cells]:
    answers = Answers(gpu)
    for pid, process, used in processes(gpu, answers):
        yield {**_whose(answers), "pid": str(pid), "process_name": process, "used_gpu_memory": str(used)}
