"""Assertions of the shared suites are explained like those of test modules."""

import pytest

pytest.register_assert_rewrite("environment_contract")
