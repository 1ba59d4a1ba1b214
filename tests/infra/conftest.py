"""The fixture that builds the container images once for all tests."""

from __future__ import annotations

import pytest

from tests.infra.engine import Images, build_images


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    return build_images(tmp_path_factory.mktemp("bases"))
