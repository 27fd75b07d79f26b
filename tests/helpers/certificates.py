"""A certificate for 127.0.0.1 that is its own authority; for tests of TLS."""

import subprocess
from pathlib import Path


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """Write a certificate and its key in PEM format; return both files."""
    certificate, key = directory / "test.crt", directory / "test.key"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    words = ["-addext", "subjectAltName=IP:127.0.0.1", "-out", certificate, "-keyout", key]
    subprocess.run([*command.split(), *words], check=True, capture_output=True)
    return certificate, key
