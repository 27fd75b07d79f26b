"""Exported models in a process without a database: loading their files, and predictions with Keras or ONNX Runtime."""
