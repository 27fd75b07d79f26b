"""What the command line says where only the client is installed: which commands need the packages of a server."""

from madlib_mop.errors import MopError, Unsupported, hint_of_extra

#: The packages of the extra ``server`` in pyproject.toml, with the module that each brings.
SERVER = {
    "tensorflow-cpu": "tensorflow",
    "keras": "keras",
    "safetensors": "safetensors",
    "h5py": "h5py",
    "tf2onnx": "tf2onnx",
    "pillow": "PIL",
    "optuna": "optuna",
    "cronsim": "cronsim",
    "altair": "altair",
    "vl-convert-python": "vl_convert",
    "Jinja2": "jinja2",
    "starlette": "starlette",
    "uvicorn": "uvicorn",
    "scikit-learn": "sklearn",
    "prometheus_client": "prometheus_client",
}


def missing_package(error: ModuleNotFoundError) -> MopError:
    """Return the error for a module of the server's packages that a command could not import.

    Raises
    ------
    ModuleNotFoundError
        The error itself, if the module is none of theirs.
    """
    module = (error.name or "").split(".")[0]
    if module not in SERVER.values():
        raise error
    return _needed(module)


def _needed(module: str) -> MopError:
    return Unsupported(
        f"this command needs the packages of a server, and {module} is not installed here",
        hint=f"{hint_of_extra('server')} Or run the command with the installation of the server.",
    )
