"""Prometheus, run for a test as collector-config/ says, and its answers to queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from . import service
from .collector import CONFIGURATIONS


@dataclass(frozen=True)
class Prometheus:
    """Where a running one listens."""

    port: int

    def query(self, expression: str) -> dict[tuple[tuple[str, str], ...], float]:
        """The value now of each series, by its labels, of which ``labels`` makes a key."""
        data = self._ask("query", query=expression)
        assert data["resultType"] == "vector"
        return {labels(one["metric"]): float(one["value"][1]) for one in data["result"]}

    def number(self, expression: str) -> float:
        """The one value of an expression, 0 if there is none."""
        values = list(self.query(expression).values())
        assert len(values) <= 1
        return values[0] if values else 0

    def exemplars(self, expression: str, start: float, end: float) -> list[dict[str, str]]:
        """The labels of all exemplars that belong to a series in this expression."""
        data = self._ask("query_exemplars", query=expression, start=start, end=end)
        return [exemplar["labels"] for series in data for exemplar in series["exemplars"]]

    def rules(self) -> list[dict[str, Any]]:
        """The alert rules that it loaded, as it spells them."""
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def _ask(self, what: str, **parameters: Any) -> Any:
        answer = service.get_json(f"http://127.0.0.1:{self.port}/api/v1/{what}", **parameters)
        assert answer["status"] == "success"
        return answer["data"]


def labels(mapping: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Labels in an order of their own."""
    return tuple(sorted(mapping.items()))


@contextmanager
def running(program: Path, folder: Path, targets: Mapping[str, int]) -> Iterator[Prometheus]:
    """A Prometheus with prometheus.yaml, but that it scrapes these ports, and each second."""
    configuration = yaml.safe_load((CONFIGURATIONS / "prometheus.yaml").read_text())
    configuration["global"] |= {"scrape_interval": "1s", "scrape_timeout": "1s"}
    configuration["rule_files"] = [str(CONFIGURATIONS / f) for f in configuration["rule_files"]]
    assert [job["job_name"] for job in configuration["scrape_configs"]] == list(targets)
    for job in configuration["scrape_configs"]:
        job["static_configs"] = [{"targets": [f"127.0.0.1:{targets[job['job_name']]}"]}]
    written = folder / "prometheus.yaml"
    written.write_text(yaml.safe_dump(configuration))
    (port,) = service.free_ports(1)
    command = [
        program,
        f"--config.file={written}",
        f"--storage.tsdb.path={folder / 'prometheus-data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
    ]
    with service.running(command, folder / "prometheus", f"http://127.0.0.1:{port}/-/ready"):
        prometheus = Prometheus(port)
        # The first scrape comes some seconds later: without it nothing seems to have changed.
        service.eventually(lambda: prometheus.query("up == 1"), lambda up: len(up) == len(targets))
        yield prometheus
