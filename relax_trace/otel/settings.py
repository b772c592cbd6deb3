"""What can be set: keywords of ``instrument()`` and environment variables, with the same names."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

_log = logging.getLogger("relax_trace")

PREFIX = "OTEL_PYTHON_RELAX_"  # of an environment variable; the name follows in capitals

Ops = Literal["sampled", "slow", "all", "none"]
Road = Literal["sdk", "direct"]
Calls = Literal["tensors", "all"]


@dataclass(frozen=True)
class Settings:
    """The keywords of :meth:`RelaxVMInstrumentor.instrument`.

    ``enabled``: whether spans are made; ``RelaxVMInstrumentor().enabled`` changes it at run time.

    ``ops``: the ops of which invocations become spans: ``"sampled"`` of those whose span is
    sampled, ``"slow"`` of these if they were slow or failed, ``"all"`` of every one (the sampler
    then decides on each op's span), ``"none"`` of none. ``calls``: of which calls there are spans,
    those with a tensor among their arguments (``"tensors"``) or ``"all"``.

    ``"slow"`` is what took more than ``slow_seconds`` (0: no such limit), or longer than
    ``slow_percentile`` per cent (0: no such limit) of the last 1,000 invocations of the same model
    and function, once there are 200. Where such a one isn't sampled, its ops are written to a file
    in ``slow_folder``, if that is given, at most every ten seconds.

    ``road``: whether op spans go through the application's TracerProvider (``"sdk"``), or beside
    it at a fraction of the cost, where ``OTEL_EXPORTER_OTLP_*`` says (``"direct"``): those of
    sampled invocations, unseen by the application's samplers, processors and exporters.

    ``ops_per_invocation``, ``ops_per_trace``, ``ops_per_second`` (of the process): how many op
    spans are made at most; the longest are kept. ``queue``: how many invocations may wait for their
    op spans to be made; the ops of more are dropped.

    Raises ``ValueError`` for a value that can't be.
    """

    enabled: bool = True
    ops: Ops = "sampled"
    calls: Calls = "tensors"
    slow_seconds: float = 0.0
    slow_percentile: float = 99.0
    slow_folder: str = ""
    road: Road = "sdk"
    ops_per_invocation: int = 256
    ops_per_trace: int = 2000
    ops_per_second: int = 1000
    queue: int = 100

    def __post_init__(self) -> None:
        if not isinstance(self.enabled, bool):
            raise ValueError(f"enabled must be True or False, not {self.enabled!r}")
        for name, known in (("ops", Ops), ("calls", Calls), ("road", Road)):
            _one_of(name, getattr(self, name), get_args(known))
        for name in ("ops_per_invocation", "ops_per_trace", "ops_per_second", "queue"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number from 1 on, not {value!r}")
        _number("slow_seconds", self.slow_seconds, float("inf"))
        _number("slow_percentile", self.slow_percentile, 100)
        if not isinstance(self.slow_folder, str):
            raise ValueError(f"slow_folder must be text, not {self.slow_folder!r}")


def _one_of(name: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be {' or '.join(map(repr, known))}, not {value!r}")


def _number(name: str, value: object, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < most:
        below = "" if most == float("inf") else f" and below {most}"
        raise ValueError(f"{name} must be a number from 0 on{below}, not {value!r}")


def settings_of(keywords: Mapping[str, Any], environment: Mapping[str, str]) -> Settings:
    """What the keywords say and, where they say nothing, the environment.

    Raises ``ValueError`` for a keyword that isn't known or has a value that can't be. What is wrong
    in the environment is logged, and the default holds.
    """
    known = {field.name for field in fields(Settings)}
    for name in keywords:
        if name not in known:
            raise ValueError(f"there is no setting {name!r}; there are: {', '.join(sorted(known))}")
    settings = Settings()
    for name in sorted(known - set(keywords)):
        variable = PREFIX + name.upper()
        if environment.get(variable):
            settings = _with_variable(settings, name, variable, environment[variable])
    return replace(settings, **keywords)


def _with_variable(settings: Settings, name: str, variable: str, text: str) -> Settings:
    default = getattr(settings, name)
    try:
        return replace(settings, **{name: _value_of(text, default)})
    except ValueError as error:
        _log.warning("%s is ignored, and %s is %r: %s", variable, name, default, error)
        return settings


def _value_of(text: str, default: object) -> Any:
    """What ``text`` says, of the default's type; the text itself where it says no such value."""
    text = text.strip()
    if isinstance(default, bool):
        return {"true": True, "false": False}.get(text.lower(), text)
    if isinstance(default, int) and text.lstrip("-").isdecimal():
        return int(text)
    if isinstance(default, float):
        with suppress(ValueError):
            return float(text)
    return text
