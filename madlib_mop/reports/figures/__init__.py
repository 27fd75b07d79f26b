"""Figures of a run, made from its facts with Altair: `figures_of` returns those that the run has data for."""
