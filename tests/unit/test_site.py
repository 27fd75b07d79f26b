"""The manual builds as a site in strict mode, with the README as its first page, without external resources."""

import os
import re
import subprocess
import sys

import pytest

from tests.helpers.pages import ROOT, every_page

LOADED = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=["']?(https?:[^"'\s>]*)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of a strictly built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    return folder


def test_every_page_of_the_manual_is_in_the_site(site):
    pages = {str(file.relative_to(site)) for file in site.rglob("*.html")} - {"404.html"}
    assert "index.html" in pages and len(pages) == len(every_page())


def test_the_first_page_is_the_readme_and_its_links_lead_into_the_site(site):
    first = (site / "index.html").read_text()
    assert "madlib_mop trains many Keras networks inside PostgreSQL" in first
    assert 'href="architecture.html"' in first and 'href="predict.html"' in first and 'href="containers.html"' in first


def test_pages_load_nothing_from_other_servers(site):
    for file in site.rglob("*.html"):
        loaded = [address for address in LOADED.findall(file.read_text()) if "canonical" not in address]
        assert loaded == [], file.name


def test_the_search_finds_words_of_the_pages(site):
    index = (site / "search" / "search_index.json").read_text()
    assert "early_stopping" in index and "Model Hopper Parallelism" in index
