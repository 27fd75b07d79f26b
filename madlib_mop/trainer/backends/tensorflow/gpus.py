"""Opens a trainer's GPUs before it enters the sandbox; called by ``backend.py``."""

import tensorflow as tf
from tensorflow.python.client import device_lib

from madlib_mop.errors import NotReady
from madlib_mop.trainer.process.failures import INPUT, Failure


def take(need: bool = True) -> list[str]:
    """Make TensorFlow open its GPUs with growing memory; return TensorFlow's description of each.

    Everything that CUDA opens, it opens here: device nodes, libraries, kernels' caches.

    Raises
    ------
    Failure
        input: with ``need``, if TensorFlow can use none.
    """
    devices = tf.config.list_physical_devices("GPU")
    if not devices:
        if not need:
            return []
        raise Failure(
            INPUT,
            NotReady(
                f"use_gpus: the host has a GPU, but TensorFlow {tf.__version__} cannot use it",
                hint="Its CUDA libraries are missing or do not fit NVIDIA's driver: install tensorflow[and-cuda] into "
                "the library's virtual environment; the server's log has TensorFlow's messages.",
            ),
        )
    for device in devices:
        tf.config.experimental.set_memory_growth(device, True)
    found = [d.physical_device_desc for d in device_lib.list_local_devices() if d.device_type == "GPU"]
    for number in range(len(devices)):
        with tf.device(f"/GPU:{number}"):
            ones = tf.ones((8, 8, 8, 8))
            tf.matmul(ones, tf.nn.conv2d(ones, tf.ones((3, 3, 8, 8)), 1, "SAME")).numpy()
    return found
