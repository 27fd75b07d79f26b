"""The JavaScript of Vega, Vega-Lite and Vega-Embed, as one text for a page; called by `page` and the live page.

``make/library.sh`` runs this file once to write the text into the installed library, because bundling takes seconds.
Vega-Embed draws with ``{ast: true}``: expressions are interpreted, so a page needs no ``unsafe-eval``.
"""

import sys
from functools import cache
from pathlib import Path

import altair

_GLOBAL = "window.vegaEmbed = vegaEmbed;"
_BUNDLED = Path(__file__).parent / "vega.js"


@cache
def vega_bundle() -> str:
    """Return a classic script that sets ``window.vegaEmbed``.

    It contains neither ``</script`` nor ``<!--``, so that a page can contain it as it is. About 0.9 MB.
    """
    try:
        return _BUNDLED.read_text(encoding="utf-8")
    except FileNotFoundError:
        return bundle()


def bundle() -> str:
    """Bundle the script; takes some seconds."""
    import vl_convert

    version = ".".join(altair.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    known = version in vl_convert.get_vegalite_versions()
    script = vl_convert.javascript_bundle(_GLOBAL, vl_version=version if known else None)
    # a function of its own: the bundle's short names would be global
    return f"(function(){{{script}}})();\n".replace("</script", "<\\/script").replace("<!--", "<\\!--")


def main(folder: str) -> None:
    """Write the script into a folder that has this module."""
    path = Path(folder) / _BUNDLED.name
    path.write_text(bundle(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(_BUNDLED.parent))
