"""Pages outside of docs/ for the site: called by MkDocs as a hook (mkdocs.yml).

The README is the first page. Other files of the repository that pages link to are added under names of their own, and
links in all pages are rewritten to the names in the site.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
#: Files outside docs/ and their paths in the site.
ADDED = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security_policy.md",
    "docker/README.md": "containers.md",
    "demo/digits.sql": "digits.sql",
    "dashboards/grafana.json": "grafana.json",
}
SOURCES = {site: source for source, site in ADDED.items()}
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def on_files(files, config):
    """Add the files outside of docs/."""
    for source, site in ADDED.items():
        files.append(File.generated(config, site, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown, page, **_):
    """Rewrite the links of a page from paths in the repository to paths in the site."""
    here = page.file.src_uri
    source = SOURCES.get(here, f"docs/{here}")

    def rewritten(link):
        target = link[2]
        if "://" in target or target.startswith("mailto:"):
            return link[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        site = ADDED.get(path, path.removeprefix("docs/"))
        return link[1] + posixpath.relpath(site, posixpath.dirname(here) or ".") + link[3]

    fences = _FENCE.findall(markdown)
    prose = iter(_FENCE.split(markdown))
    parts = [_LINK.sub(rewritten, next(prose))]
    for fence in fences:
        parts += [fence, _LINK.sub(rewritten, next(prose))]
    return "".join(parts)
