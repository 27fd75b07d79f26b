"""Models leave: their files for other programs, and their cards."""
