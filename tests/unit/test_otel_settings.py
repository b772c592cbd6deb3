"""Settings: keywords and environment variables of the same names."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from relax_trace.otel.settings import Settings, settings_of


@pytest.mark.parametrize(
    ("keywords", "environment", "expected"),
    [
        ({}, {}, Settings()),
        ({"enabled": False}, {}, Settings(enabled=False)),
        ({}, {"OTEL_PYTHON_RELAX_ENABLED": " False "}, Settings(enabled=False)),
        ({}, {"OTEL_PYTHON_RELAX_ENABLED": ""}, Settings()),
        ({"enabled": True}, {"OTEL_PYTHON_RELAX_ENABLED": "false"}, Settings(enabled=True)),
        (
            {"ops": "slow"},
            {
                "OTEL_PYTHON_RELAX_SLOW_SECONDS": "0.25",
                "OTEL_PYTHON_RELAX_SLOW_FOLDER": "here",
                "OTEL_PYTHON_RELAX_ROAD": "direct",
                "OTEL_PYTHON_RELAX_QUEUE": "7",
            },
            Settings(ops="slow", slow_seconds=0.25, slow_folder="here", road="direct", queue=7),
        ),
    ],
)
def test_a_keyword_comes_before_the_environment(
    keywords: dict[str, Any], environment: dict[str, str], expected: Settings
) -> None:
    """And both before the default."""
    assert settings_of(keywords, environment) == expected


def test_a_bad_variable_is_said_and_the_default_holds(caplog: pytest.LogCaptureFixture) -> None:
    """One line, with the variable's name."""
    with caplog.at_level(logging.WARNING, "relax_trace"):
        assert settings_of({}, {"OTEL_PYTHON_RELAX_ENABLED": "maybe"}) == Settings()
    assert caplog.messages == [
        "OTEL_PYTHON_RELAX_ENABLED is ignored, and enabled is True: "
        "enabled must be True or False, not 'maybe'"
    ]


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"enabled": "no"}, "enabled must be True or False, not 'no'"),
        ({"ops": "some"}, "ops must be 'sampled' or 'slow' or 'all' or 'none', not 'some'"),
        ({"queue": 0}, "queue must be a whole number from 1 on, not 0"),
        ({"slow_seconds": -1}, "slow_seconds must be a number from 0 on, not -1"),
        ({"slow_percentile": 100}, "slow_percentile must be a number from 0 on and below 100, not"),
        ({"slow_percentile": float("nan")}, "slow_percentile must be a number .* not nan"),
        ({"slow_folder": None}, "slow_folder must be text, not None"),
        ({"enable": True}, "there is no setting 'enable'; there are: .*enabled"),
    ],
)
def test_a_bad_keyword_raises(keywords: dict[str, Any], message: str) -> None:
    """The caller is there to read it."""
    with pytest.raises(ValueError, match=message):
        settings_of(keywords, {})
