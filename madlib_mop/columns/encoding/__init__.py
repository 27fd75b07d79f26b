"""Rows to tensors and back: the only code that encodes, in packing, predictions and exports."""
