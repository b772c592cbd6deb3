"""Files of collector-config/ against the collector, and against each other."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from backends.collector import CONFIGURATIONS

COMPOSE = yaml.safe_load((CONFIGURATIONS / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]


@pytest.mark.parametrize("name", ["laptop", "agent", "gateway"])
def test_the_collector_accepts(name: str, otelcol: Path, tmp_path: Path) -> None:
    """Each as it is; with a letter more in a key, it doesn't."""
    text = (CONFIGURATIONS / f"{name}.yaml").read_text()
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(text.replace("limit_mib:", "limit_mibs:"))
    for file, accepted in ((CONFIGURATIONS / f"{name}.yaml", True), (wrong, False)):
        command = [otelcol, "validate", "--config", file]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (said.returncode == 0) is accepted, said.stderr
    assert "limit_mibs" in said.stderr


def mounts(service: dict[str, Any]) -> dict[str, Path]:
    """Its mounted files and folders, by where they are inside."""
    found = [volume.split(":") for volume in service["volumes"]]
    return {inside: CONFIGURATIONS / here for here, inside, *_ in found if here.startswith(".")}


@pytest.mark.parametrize("name", SERVICES)
def test_services_of_the_compose_file(name: str) -> None:
    """Pinned; on the loopback only; what is mounted exists, and knows the variables set for it."""
    service = SERVICES[name]
    assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+\.\d+", service["image"])
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in service["ports"])
    assert all(path.exists() for path in mounts(service).values())
    volumes = [volume.split(":")[0] for volume in service["volumes"]]
    assert all(one in COMPOSE["volumes"] for one in volumes if not one.startswith("."))
    assert set(service.get("depends_on", [])) <= SERVICES.keys()
    for variable in service.get("environment", {}):
        if not variable.startswith("GF_"):
            assert any(f"${{env:{variable}:-" in f.read_text() for f in mounts(service).values())
    for word in service.get("command", []):
        path = word.partition("config.file=")[2] or word
        assert path in mounts(service) or word.startswith("--")


def test_services_find_each_other() -> None:
    """By the names and ports that the compose file gives them."""
    collector, jaeger = SERVICES["collector"]["environment"], SERVICES["jaeger"]["environment"]
    assert collector["JAEGER"] == "jaeger:" + jaeger["JAEGER_LISTEN_GRPC"].split(":")[1]
    scraped = yaml.safe_load((CONFIGURATIONS / "prometheus.yaml").read_text())["scrape_configs"]
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in scraped}
    own_port = re.search(r"OWN_METRICS_PORT:-(\d+)", (CONFIGURATIONS / "laptop.yaml").read_text())
    assert own_port
    assert targets == {
        "applications": ["collector:" + collector["LISTEN_METRICS"].split(":")[1]],
        "collectors": ["collector:" + own_port[1]],
    }


def test_grafana_finds_its_dashboard_and_its_sources() -> None:
    """Where the compose file mounts them, and by the identifiers that are used."""
    inside = mounts(SERVICES["grafana"])
    provisioning = inside["/etc/grafana/provisioning"]
    providers = yaml.safe_load((provisioning / "dashboards/relax_trace.yaml").read_text())
    (provider,) = providers["providers"]
    (file,) = inside[provider["options"]["path"]].glob("*.json")
    sources = yaml.safe_load((provisioning / "datasources/relax_trace.yaml").read_text())
    urls = {source["uid"]: source["url"] for source in sources["datasources"]}
    assert urls == {"prometheus": "http://prometheus:9090", "jaeger": "http://jaeger:16686"}
    assert set(re.findall(r'"uid": "(\w+)"', file.read_text())) == {"prometheus"}
    panels = json.loads(file.read_text())["panels"]
    places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels}
    assert len(places) == len({p["id"] for p in panels}) == len(panels)
