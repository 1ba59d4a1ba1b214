"""Tests of the Flask and Django code of docs/how-to/sync.md, run under these frameworks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.local import emulators
from tests.support.pages import ROOT, blocks_of
from tests.support.patience import HUNG_SECONDS

pytestmark = pytest.mark.looptime(False)

CREATE = """
from shop import Order, outbox
for n in range(8):
    outbox.run(lambda uow: uow.repository(Order).create(Order(id=f"o{n}")))
"""
THREADS = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as threads:
    print(sorted(threads.map(post, [f"o{n % 8}" for n in range(32)] + ["missing"])))
"""
FLASK = """
from flask_app import app
def post(order_id):
    return app.test_client().post(f"/orders/{order_id}/payment", headers={"X-Request-Id": "r1"}).status_code
"""
DJANGO = """
import django
from django.conf import settings
settings.configure(ROOT_URLCONF="urls", ALLOWED_HOSTS=["*"], SECRET_KEY="s")
django.setup()
from django.test import Client
def post(order_id):
    return Client(headers={"X-Request-Id": "r1"}).post(f"/orders/{order_id}/payment").status_code
"""
URLS = """
from django.urls import path
from django_views import payment
urlpatterns = [path("orders/<order_id>/payment", payment)]
"""


@pytest.mark.parametrize("program", [FLASK, DJANGO], ids=["flask", "django"])
def test_concurrent_requests_pay_each_order_once(program: str, tmp_path: Path):
    for block in blocks_of((ROOT / "docs/how-to/sync.md").read_text()):
        if block.file:
            (tmp_path / block.file).write_text(block.text)
    (tmp_path / "urls.py").write_text(URLS)
    with emulators() as local:
        answer = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-c", CREATE + program + THREADS],
            cwd=tmp_path,
            env=local.environment | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=HUNG_SECONDS,
            check=False,
        )
        assert (0, f"{[200] * 32 + [404]}\n") == (answer.returncode, answer.stdout), answer.stderr
