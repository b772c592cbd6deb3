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
        ({"enable": True}, "there is no setting 'enable'; there are: .*enabled"),
    ],
)
def test_a_bad_keyword_raises(keywords: dict[str, Any], message: str) -> None:
    """The caller is there to read it."""
    with pytest.raises(ValueError, match=message):
        settings_of(keywords, {})
