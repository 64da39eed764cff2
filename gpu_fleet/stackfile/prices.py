"""What a GPU costs for an hour: one price, or prices by model, and each from a day on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Discriminator, Field, Tag, TypeAdapter

from gpu_fleet.stackfile.values import Day, GpuModel, Price, Section, Texts, refuse

# Models that no other key names.
OTHERS: Final = "default"


class PriceFrom(Section):
    """A price, and the first day that has it."""

    cost: Price
    """What a GPU costs for an hour."""
    from_: Day | None = Field(default=None, alias="from")
    """First day, UTC. Default, for the first price of a list: since ever."""


def _in_order(prices: tuple[PriceFrom, ...]) -> tuple[PriceFrom, ...]:
    days = [price.from_ or "" for price in prices]
    if "" in days[1:]:
        raise refuse("only the first price may be without `from`", expected="the day of each later price", fix="add `from`")
    if days != sorted(set(days)):
        raise refuse("the days are not in order", expected="the oldest price first, each day once", fix="sort them")
    return prices


def _kind(value: Any) -> str:
    """As problems.py expects the tag of a choice: [type of the schema]."""
    return "[object]" if isinstance(value, Mapping) else "[array]" if isinstance(value, (list, tuple)) else "[number]"


_Number = Annotated[Price, Tag("[number]")]
_Periods = Annotated[tuple[PriceFrom, ...], Texts, Field(min_length=1), AfterValidator(_in_order), Tag("[array]")]
_OfModel = Annotated[_Number | _Periods, Discriminator(_kind)]
_Models = Annotated[dict[GpuModel, _OfModel], Field(min_length=1), Tag("[object]")]

CostPerGpuHour = Annotated[_Number | _Periods | _Models, Discriminator(_kind)]
_Given = float | tuple[PriceFrom, ...]


@dataclass(frozen=True)
class Prices:
    """`by_words`: of models, the most words first, so that the first that fits a model has its price; OTHERS last."""

    by_words: tuple[tuple[str, tuple[PriceFrom, ...]], ...]

    @classmethod
    def of(cls, given: _Given | Mapping[str, _Given]) -> Prices:
        models = given if isinstance(given, Mapping) else {OTHERS: given}
        found = {words: (PriceFrom(cost=each),) if isinstance(each, float) else each for words, each in models.items()}
        return cls(tuple(sorted(found.items(), key=lambda item: (item[0] == OTHERS, -len(item[0]), item[0]))))

    @classmethod
    def read(cls, value: object) -> Prices:
        """costPerGpuHour as the stack file has it. Raises pydantic.ValidationError."""
        return cls.of(TypeAdapter[_Given | dict[str, _Given]](CostPerGpuHour).validate_python(value))

    def at(self, model: str, day: str) -> float | None:
        """Of a GPU-hour. `day`: as 2026-11-01. None: the model, or the day, has no price."""
        for words, prices in self.by_words:
            if words == OTHERS or re.fullmatch(_pattern(words), model):
                return next((price.cost for price in reversed(prices) if (price.from_ or "") <= day), None)
        return None

    def newest(self) -> Iterator[tuple[str, float]]:
        """The matchers of PromQL for a group of models, and its last price."""
        before: list[str] = []
        for words, prices in self.by_words:
            own = [] if words == OTHERS else [f'model=~"{_pattern(words)}"']
            yield ", ".join([*own, *(f'model!~"{_pattern(other)}"' for other in before)]), prices[-1].cost
            before.append(words)


def _pattern(words: str) -> str:
    """Of the models that have these words; L4 is no part of L40. For Python and for RE2."""
    return rf"(?i)(.*[^a-z0-9])?{words.replace('.', '[.]')}([^a-z0-9].*)?"
