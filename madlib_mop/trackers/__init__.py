"""Runs for other programs that track experiments: TensorBoard, MLflow and Optuna; called by the command line.

The record is read once, with the rights of the role that logs in, and all three trackers get the same facts
(`catalog/facts/`). A tracker writes what it does not have yet, so a run can be written again, or followed while it
trains (`following`).
"""
