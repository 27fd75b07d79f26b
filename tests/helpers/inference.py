"""Helpers of the tests of evaluate and predict: models in tables as a run writes them, calls, and errors."""

from dataclasses import dataclass, field

import numpy as np

from tests.helpers.sessions import Session

CLASSIFIER = "loss='categorical_crossentropy', optimizer='Adam(lr=0.01)', metrics=['accuracy']"


@dataclass(frozen=True)
class Dependent:
    """One dependent column of the training data, as described by a model table."""

    name: str = "y"
    vartype: str = "text"
    values: list | None = None
    values_type: str = "text[]"


@dataclass(frozen=True)
class ModelTable:
    """The content of a model table and its companion tables, except the models."""

    compile_params: str = CLASSIFIER
    fit_params: str = "batch_size=16, epochs=1"
    metrics_type: list | None = field(default_factory=lambda: ["accuracy"])
    loss_type: str = "categorical_crossentropy"
    independent: list = field(default_factory=lambda: ["x"])
    dependent: list = field(default_factory=lambda: [Dependent()])
    normalizing_const: float = 1.0


def weights_of(model) -> bytes:
    """Return a Keras model's weights in the form of a table."""
    return np.concatenate([array.ravel() for array in model.get_weights()]).astype(np.float32).tobytes()


class User(Session):
    """One session that evaluates and predicts."""

    def table(self, name: str, definition: str, rows: list[tuple], casts: str = "") -> None:
        """Create a table and fill it; ``casts`` are the placeholders of a row, such as ``%s, %s::real[]``."""
        self.rows(f"CREATE TABLE {name} ({definition})")
        with self.connection.cursor() as cursor:
            for row in rows:
                cursor.execute(f"INSERT INTO {name} VALUES ({casts or ', '.join(['%s'] * len(row))})", row)

    def write_models(self, name: str, models: dict, facts: ModelTable | None = None) -> None:
        """Write Keras models, by mst_key, as madlib_keras_fit_multiple_model does."""
        facts = facts or ModelTable()
        self.rows(f"CREATE TABLE {name} (mst_key integer, model_weights bytea, model_arch json, __dist_key__ integer)")
        self.rows(
            f"CREATE TABLE {name}_info (mst_key integer, compile_params text, fit_params text, metrics_type text[],"
            " loss_type text, status text, status_detail text)"
        )
        for key, model in models.items():
            self.rows(f"INSERT INTO {name} VALUES (%s, %s, %s, 0)", key, weights_of(model), model.to_json())
            self.rows(
                f"INSERT INTO {name}_info VALUES (%s, %s, %s, %s, %s, 'trained', NULL)",
                *(key, facts.compile_params, facts.fit_params, facts.metrics_type, facts.loss_type),
            )
        self._write_summary(name, facts, {})

    def write_one_model(self, name: str, model, facts: ModelTable | None = None) -> None:
        """Write one Keras model as madlib_keras_fit does."""
        facts = facts or ModelTable()
        self.rows(
            f"CREATE TABLE {name} AS SELECT %s::bytea AS model_weights, %s::json AS model_arch",
            *(weights_of(model), model.to_json()),
        )
        params = {
            "compile_params": (facts.compile_params, "text"),
            "fit_params": (facts.fit_params, "text"),
            "metrics_type": (facts.metrics_type, "text[]"),
            "loss_type": (facts.loss_type, "text"),
        }
        self._write_summary(name, facts, params)

    def _write_summary(self, name: str, facts: ModelTable, more: dict) -> None:
        columns = {
            "independent_varname": (facts.independent, "text[]"),
            "dependent_varname": ([d.name for d in facts.dependent], "text[]"),
            "dependent_vartype": ([d.vartype for d in facts.dependent], "text[]"),
            "normalizing_const": (facts.normalizing_const, "real"),
            **{f"{d.name}_class_values": (d.values, d.values_type) for d in facts.dependent},
            **more,
        }
        items = ", ".join(f'%s::{kind} AS "{column}"' for column, (_, kind) in columns.items())
        self.rows(f"CREATE TABLE {name}_summary AS SELECT {items}", *(value for value, _ in columns.values()))

    def evaluate(self, model: str | None, test: str | None, output: str | None, **more) -> None:
        """Call madlib_keras_evaluate with named arguments."""
        self._call("madlib_keras_evaluate", {"model_table": model, "test_table": test, "output_table": output}, more)

    def predict(self, model: str | None, test: str | None, output: str | None, **more) -> None:
        """Call madlib_keras_predict with named arguments; id_col and independent_varname are ``id`` and ``x``."""
        names = {"model_table": model, "test_table": test, "output_table": output}
        self._call("madlib_keras_predict", {**names, "id_col": "id", "independent_varname": "x"}, more)

    def _call(self, function, given, more):
        values = given | more
        slots = ", ".join(f"{name} => %s" for name in values)
        self.rows(f"SELECT madlib.{function}({slots})", *values.values())
