"""Entry of the trainer process: ties it to its parent before anything else, then serves frames until told to stop."""

from madlib_mop.trainer import lifetime


def main() -> None:
    """Serve requests on stdin and stdout; ends at end of file, at ``stop``, and with its parent."""
    read_fd, write_fd = lifetime.settle()
    from madlib_mop.trainer import server

    server.serve(read_fd, write_fd)


if __name__ == "__main__":
    main()
