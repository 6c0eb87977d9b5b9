"""pytest -p nki.standins.pytest_plugin --nki-standins: tests written for a device find the stand-ins."""

from __future__ import annotations

import importlib
from typing import Any


def pytest_addoption(parser: Any) -> None:
    parser.addoption(
        "--nki-standins", action="store_true", help="stand-ins of Open NKI for Neuron's packages"
    )


def pytest_configure(config: Any) -> None:
    if config.getoption("--nki-standins"):
        importlib.import_module("nki.standins")
