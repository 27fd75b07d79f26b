"""The SQL functions on jobs: submit writes one in the caller's transaction; the others change the record."""
