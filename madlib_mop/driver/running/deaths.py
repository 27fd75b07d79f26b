"""Finds the cause of a trainer's death in its standard error: out of memory or not, and the last output.

Called by ``retries.py``. A trainer reports each failed request with its traceback and continues; so only the
last message of its standard error can be the cause of its death.
"""

import re

from madlib_mop.errors import is_about_memory

#: Start of the report of ``faulthandler`` after a fatal signal: the stacks of all threads, and extension modules.
_STACKS = re.compile(r"^Fatal Python error: ", re.MULTILINE)
#: The last line of a traceback; messages of TensorFlow's exceptions continue on the following lines.
_EXCEPTION = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(?::(?P<text>.*))?$")
_MEMORY_ERRORS = ("MemoryError", "_ArrayMemoryError", "ResourceExhaustedError")
_OWN_REPORT = ("madlib_mop.trainer.process.failures.RequestFailure", " not enough memory")
#: Lines with the reason of an abort in C++ code: the runtime's (the last one of these with PyTorch's text), LLVM's, and
#: TensorFlow's log lines of severity F.
_FATAL = (
    re.compile(r"terminate called .*\bstd::bad_alloc\b"),
    re.compile(r"\s*what\(\):\s+(std::bad_alloc|MemoryError)\b"),
    re.compile(r"\s*what\(\):\s.*DefaultCPUAllocator: can't allocate memory"),
    re.compile(r"LLVM ERROR: out of memory"),
    re.compile(r"(F\d{4} |\S+ \S+: F )[^\]]*\].*(OOM when allocating|RESOURCE_EXHAUSTED|ran out of memory)"),
)


def ran_out_of_memory(status: int, stderr: str) -> bool:
    """Return whether the last message of a trainer reports a lack of memory.

    Parameters
    ----------
    status : int
        Exit status; ``-n`` where signal n ended it.
    stderr : str
        The end of its standard error.
    """
    lines = _before_stacks(stderr).splitlines()
    exceptions = [number for number, line in enumerate(lines) if _is_exception(line)]
    if status >= 0:
        return bool(exceptions) and _is_memory_error(lines[exceptions[-1]])
    after = exceptions[-1] + 1 if exceptions else 0
    return any(pattern.match(line) for line in lines[after:] for pattern in _FATAL)


def last_words(stderr: str) -> str:
    """Return the last line before the stacks, at most 300 characters of it; "none" if there is none."""
    lines = [line.strip() for line in _before_stacks(stderr).splitlines() if line.strip()]
    if not lines:
        lines = [line.strip() for line in stderr.splitlines() if line.strip()][:1] or ["none"]
    return lines[-1][-300:]


def _before_stacks(stderr: str) -> str:
    found = _STACKS.search(stderr)
    return stderr[: found.start()] if found else stderr


def _is_exception(line: str) -> bool:
    found = _EXCEPTION.match(line)
    return found is not None and found["name"].endswith(("Error", "Exception", "Failure", "Exit", "Interrupt"))


def _is_memory_error(line: str) -> bool:
    found = _EXCEPTION.match(line)
    if found is None:
        return False
    name, text = found["name"], found["text"] or ""
    last = name.rpartition(".")[2]
    is_own = name == _OWN_REPORT[0] and text.startswith(_OWN_REPORT[1])
    return is_own or last in _MEMORY_ERRORS or is_about_memory(last, text)
