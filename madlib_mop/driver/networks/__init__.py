"""Networks and configurations proposed for a table that pack_columns packed: pure, except `proposing`."""
