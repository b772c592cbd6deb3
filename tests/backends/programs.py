"""The real programs: the collector and Jaeger, built once with Go, and Prometheus as installed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
RELEASE = "v0.161.0"  # of the collector, as in builder.yaml
NEEDED = {
    "go": "Go, which builds the collector and Jaeger",
    "prometheus": "Prometheus (Debian: apt-get install prometheus)",
    "promtool": "Prometheus' promtool (Debian: apt-get install prometheus)",
}


def missing() -> list[str]:
    """What is needed and not on the PATH, in words."""
    return [words for program, words in NEEDED.items() if not shutil.which(program)]


def collector() -> Path:
    """The OpenTelemetry Collector, from the cache or built into it: that takes minutes.

    The cache is RELAX_TRACE_CACHE, or relax_trace in the user's cache folder.
    """
    return _cached("otelcol", HERE / "builder.yaml", RELEASE, _build_collector)


def jaeger() -> Path:
    """Jaeger, from the same cache."""
    return _cached("jaeger", HERE / "jaeger" / "go.mod", "", _build_jaeger)


def _build_collector(folder: Path, recipe: Path) -> Path:
    builder = f"go.opentelemetry.io/collector/cmd/builder@{RELEASE}"
    _go(folder, "run", builder, "--config", str(recipe), "--skip-compilation")
    _go(folder / "source", "build", "-trimpath", "-ldflags=-s -w", "-o", "../otelcol", ".")
    return folder / "otelcol"


def _build_jaeger(folder: Path, recipe: Path) -> Path:
    shutil.copy(recipe, folder)
    package = "github.com/jaegertracing/jaeger/cmd/jaeger"
    _go(folder, "build", "-mod=mod", "-trimpath", "-ldflags=-s -w", "-o", "jaeger", package)
    return folder / "jaeger"


def _cached(name: str, recipe: Path, more: str, build: Callable[[Path, Path], Path]) -> Path:
    digest = hashlib.sha256(recipe.read_bytes() + more.encode()).hexdigest()[:12]
    program = _cache() / f"{name}-{digest}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as folder:
            os.replace(build(Path(folder), recipe), program)
    return program


def _cache() -> Path:
    chosen = os.environ.get("RELAX_TRACE_CACHE")
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(user, "relax_trace")


def _go(folder: Path, *arguments: str) -> None:
    ended = subprocess.run(
        [shutil.which("go") or "go", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise RuntimeError(f"go {' '.join(arguments)} failed:\n{ended.stdout[-4000:]}")
