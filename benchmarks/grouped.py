"""Grouped convolution on TensorFlow: eight convolutions as one operation, compared with one operation for each.

Fused training could compute convolutions so. It does not, because on processors this is rarely faster.
"""

import os
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

N_MODELS, N_ROWS, KERNEL = 8, 32, 3
#: Height and width of the images, channels in and out: of small networks for images of 28 and 32 pixels.
SHAPES = ((28, 1, 16), (14, 16, 32), (32, 3, 32), (16, 32, 64))
_N_TIMES = 9


def compare_grouped() -> None:
    """Print the processor time of a forward and backward pass for each shape, separate and grouped."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    print(f"{N_MODELS} convolutions of {KERNEL} x {KERNEL}, {N_ROWS} rows, one thread; milliseconds of all {N_MODELS}")
    for size, n_in, n_out in SHAPES:
        xs = [tf.random.normal((N_ROWS, size, size, n_in)) for _ in range(N_MODELS)]
        kernels = [tf.random.normal((KERNEL, KERNEL, n_in, n_out)) for _ in range(N_MODELS)]
        apart_s = _least(tf.function(_gradients), xs, kernels)
        grouped_s = _least(tf.function(_gradients), [tf.concat(xs, -1)], [tf.concat(kernels, -1)])
        print(
            f"  {size} x {size}, {n_in:2} to {n_out} channels: apart {1e3 * apart_s:5.1f},"
            f" grouped {1e3 * grouped_s:5.1f}, {apart_s / grouped_s:.2f} times as fast",
            flush=True,
        )


def _gradients(xs: list, kernels: list) -> list:
    """Return the gradients of each convolution; one has groups where its kernel has fewer channels than its rows."""
    import tensorflow as tf

    found = []
    for x, kernel in zip(xs, kernels, strict=True):
        with tf.GradientTape() as tape:
            tape.watch((x, kernel))
            loss = tf.reduce_sum(tf.nn.conv2d(x, kernel, 1, "SAME") ** 2)
        found.append(tape.gradient(loss, (x, kernel)))
    return found


def _least(function: Callable, *arguments: list) -> float:
    """Return the least processor time of several calls in seconds, which excludes other processes."""
    function(*arguments)
    times = []
    for _ in range(_N_TIMES):
        start = time.process_time()
        function(*arguments)
        times.append(time.process_time() - start)
    return min(times)


if __name__ == "__main__":
    compare_grouped()
