"""What the tests of benchmarks have of those of the product: a missing package fails where extras are required."""

from tests.conftest import pytest_make_collect_report, pytest_runtest_makereport

__all__ = ["pytest_make_collect_report", "pytest_runtest_makereport"]
