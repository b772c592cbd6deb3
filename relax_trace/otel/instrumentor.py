"""RelaxVMInstrumentor: spans for every VirtualMachine of the process, or for some."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Collection, Mapping
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider, get_tracer

from .. import reach
from ..exporters.otlp.templates import text
from . import conventions as names
from .invocations import InvocationSpans
from .losses import Losses
from .metrics import metrics_of
from .ops import Ops
from .settings import Settings, settings_of
from .wrapping import unwrap, wrap, wrapped_vms

_log = logging.getLogger("relax_trace")

_UNNAMED = "vm"  # one name for all: numbers would grow without end where VMs come and go


class RelaxVMInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Spans of Relax VMs through the application's TracerProvider; there is one per process."""

    _spans: InvocationSpans | None = None
    _losses = Losses()

    def instrumentation_dependencies(self) -> Collection[str]:
        """None: TVM need not be there yet, and isn't imported before the application does."""
        return ()

    @property
    def enabled(self) -> bool:
        """Whether spans are made; can be set at any time. Without, invocations run as they are."""
        return self._spans is not None and self._spans.enabled

    @enabled.setter
    def enabled(self, enabled: bool) -> None:
        self._spans_now().enabled = bool(enabled)

    def instrument_vm(self, vm: Any, name: str | None = None) -> None:
        """Make spans for one VM, without :meth:`instrument` too; or say what it is called.

        ``vm`` is a ``tvm.relax.VirtualMachine`` or its module; ``name`` is its ``tvm.model.name``.
        Raises ``TypeError`` for anything else.
        """
        vm, spans = _vm_of(vm), self._spans_now()
        wrap(vm, functools.partial(spans.call, text(name or _UNNAMED)))
        if spans.ops:
            spans.ops.add(vm)

    def uninstrument_vm(self, vm: Any) -> None:
        """Make no spans for this VM any more; a recording of it goes on."""
        vm = _vm_of(vm)
        unwrap(vm)
        if self._spans and self._spans.ops:
            self._spans.ops.remove(vm)

    def force_flush(self, timeout_seconds: float = 30.0) -> bool:
        """Wait until the op spans of the invocations that have ended are made.

        To be called before the provider's own ``force_flush()``. False if it takes too long.
        """
        return not (self._spans and self._spans.ops) or self._spans.ops.flush(timeout_seconds)

    @property
    def dropped(self) -> dict[str, int]:
        """Number of ops without a span, by reason: the constants of losses.py."""
        return dict(self._losses.counts)

    def _instrument(self, **keywords: Any) -> None:
        if keywords:
            self._start(**keywords)
            return
        try:
            self._start()
        except Exception:  # raised, it would keep other instrumentations from starting
            _log.exception("VirtualMachines could not be instrumented")

    def _start(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        **keywords: Any,
    ) -> None:
        settings = settings_of({**_file_settings(keywords), **keywords}, os.environ)
        self._set_up(settings, tracer_provider, meter_provider)
        reach.listen(self._add)

    def _uninstrument(self, **_: Any) -> None:
        reach.forget(self._add)
        for vm in wrapped_vms():
            unwrap(vm)
        if self._spans and self._spans.ops:
            self._spans.ops.stop()

    def _set_up(
        self,
        settings: Settings,
        provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> InvocationSpans:
        """VMs that were instrumented one by one go on, by the new settings."""
        version = names.scope_version() or None
        tracer = get_tracer(names.SCOPE, version, provider)
        metrics = metrics_of(meter_provider, version, self._losses)
        ops = None
        if settings.ops != "none":
            ops_tracer = get_tracer(names.OPS_SCOPE, version, provider)
            ops = Ops(settings, ops_tracer, provider, metrics.losses, metrics.totals)
        if self._spans is None:
            self._spans = InvocationSpans(tracer, metrics, ops, enabled=settings.enabled)
        else:
            if self._spans.ops:
                self._spans.ops.stop()
            self._spans.use(tracer, metrics, ops, enabled=settings.enabled)
        if ops:
            for vm in wrapped_vms():
                ops.add(vm)
        return self._spans

    def _spans_now(self) -> InvocationSpans:
        return self._spans or self._set_up(settings_of({}, os.environ))

    def _add(self, vm: Any) -> None:
        """One more VM of the process."""
        if vm not in wrapped_vms():
            self.instrument_vm(vm)


def _vm_of(vm: Any) -> Any:
    import tvm_ffi
    from tvm.relax import VirtualMachine

    if isinstance(vm, tvm_ffi.Module):
        vm = reach.vm_of_module(vm) or vm
    if not isinstance(vm, VirtualMachine):
        raise TypeError(f"only a tvm.relax.VirtualMachine has spans, not a {type(vm).__name__}")
    return vm


def _file_settings(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """What a configuration file says where that switches us off.

    OpenTelemetry then doesn't call us for the file, but ``opentelemetry-instrument`` does.
    """
    file = os.environ.get("OTEL_CONFIG_FILE")
    if keywords or not file:
        return {}
    try:
        from opentelemetry.configuration import load_config_file

        found = load_config_file(file).instrumentation_development
        said = dict((found.python or {}).get("relax_vm") or {}) if found else {}
    except Exception:  # what is wrong with it is OpenTelemetry's to say
        return {}
    return {"enabled": False} if said.get("enabled") is False else {}
