"""The ways to train a workload that are compared, each a program: ``python -m ways.NAME SPEC.json OUTCOME.json``.

A way reads its `contract.Spec`, trains and evaluates every configuration, and writes its `contract.Outcome`.
"""
