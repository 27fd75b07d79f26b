"""Opens a trainer's GPUs before it enters the sandbox; called by ``backend.py``."""

import tensorflow as tf
from tensorflow.python.client import device_lib


def take() -> list[str]:
    """Make TensorFlow open its GPUs with growing memory; return TensorFlow's description of each.

    Everything that CUDA opens, it opens here: device nodes, libraries, kernels' caches.
    """
    devices = tf.config.list_physical_devices("GPU")
    for device in devices:
        tf.config.experimental.set_memory_growth(device, True)
    found = [d.physical_device_desc for d in device_lib.list_local_devices() if d.device_type == "GPU"]
    for number in range(len(devices)):
        with tf.device(f"/GPU:{number}"):
            ones = tf.ones((8, 8, 8, 8))
            tf.matmul(ones, tf.nn.conv2d(ones, tf.ones((3, 3, 8, 8)), 1, "SAME")).numpy()
    return found
