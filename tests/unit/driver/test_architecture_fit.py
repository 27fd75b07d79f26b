"""Architectures that a run's backend cannot train; other misfits are in ``tests/integration/test_bad_input_fit.py``."""

from types import SimpleNamespace

import pytest
from mop_backend.keras_backends import BackendName

from madlib_mop.driver.planning.data_fit import check_fit
from madlib_mop.errors import Unsupported
from madlib_mop.models.architecture import check_architecture
from tests.helpers.unit.documents import dense, keras_3, layer

PACKED = SimpleNamespace(
    relation="packed", independent=["x"], dependent=["y"], dependent_vartype=["real"], class_values=[], num_classes=[],
    shapes=[[4], [1]],
)  # fmt: skip
HASHING = check_architecture(keras_3(layer("Hashing", num_bins=3), dense(1)))
NESTED = check_architecture(keras_3(keras_3(layer("Hashing", num_bins=3)), dense(1)))
PLAIN = check_architecture(keras_3(dense(1)))


@pytest.mark.parametrize("backend", [BackendName.JAX, BackendName.TORCH])
@pytest.mark.parametrize("arch", [HASHING, NESTED], ids=["first", "nested"])
def test_layers_of_tensorflow_are_refused_on_other_backends(arch, backend):
    with pytest.raises(Unsupported) as caught:
        check_fit([(3, PLAIN), (4, arch)], PACKED, backend)
    assert caught.value.message == (
        "model_arch_table: model_id 4: layers of class Hashing need TensorFlow, and the run's backend is " + backend
    )


def test_layers_of_tensorflow_are_taken_on_tensorflow():
    check_fit([(3, PLAIN), (4, HASHING), (5, NESTED)], PACKED, BackendName.TENSORFLOW)
