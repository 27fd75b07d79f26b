#!/bin/sh
# Builds Horovod for the way "horovod_ring": its last release, less one file, as TensorFlow 2.21 has not its headers
# ("fatal error: tensorflow/compiler/xla/client/xla_builder.h: No such file or directory"). It is that for XLA.
set -eu
python=${1:?usage: install_horovod.sh PYTHON, of an environment that has TensorFlow; needs g++, make and cmake}
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
"$python" -m pip install setuptools wheel
"$python" -m pip download --no-deps --no-binary :all: --dest "$directory" horovod==0.28.1
tar -xzf "$directory/horovod-0.28.1.tar.gz" -C "$directory"
sed -i '/xla_mpi_ops\.cc/d' "$directory/horovod-0.28.1/horovod/tensorflow/CMakeLists.txt"
# Without isolation, for the build asks the environment's TensorFlow for its headers.
HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITH_GLOO=1 \
    "$python" -m pip install --no-build-isolation "$directory/horovod-0.28.1"
