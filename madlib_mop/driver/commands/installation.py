"""madlib_mop.version(): the versions in use, read from the installed packages; no large package is imported."""

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

from madlib_mop import __version__
from madlib_mop.driver.session.call import Call


def version(call: Call) -> dict[str, str | None]:
    """Return the versions of the package, Python, TensorFlow, Keras and NumPy."""
    return {
        "package": __version__,
        "python": platform.python_version(),
        "tensorflow": _version("tensorflow-cpu") or _version("tensorflow"),
        "keras": _version("keras"),
        "numpy": _version("numpy"),
    }


def _version(package: str) -> str | None:
    try:
        return installed(package)
    except PackageNotFoundError:
        return None
