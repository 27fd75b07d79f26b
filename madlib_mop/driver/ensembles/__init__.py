"""Ensembles: models of an output table, chosen by their predictions of a validation table."""
