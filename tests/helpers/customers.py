"""A data frame of customers for tests of the Python client."""

import numpy as np
import pandas as pd

SOFTMAX_16 = {"optimizer": "Adam(learning_rate=0.01)", "loss": "categorical_crossentropy", "metrics": ["accuracy"]}


def customers(n_rows: int = 300) -> pd.DataFrame:
    """Return rows with most kinds of columns, and an index of their own."""
    draw = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "Age in years": np.where(draw.random(n_rows) < 0.1, np.nan, draw.integers(18, 80, n_rows)),
            "city": pd.Categorical(draw.choice(["Bonn", "Kiel", "Ulm"], n_rows)),
            "joined": pd.Timestamp("2020-01-01", tz="UTC") + pd.to_timedelta(draw.integers(0, 900, n_rows), "D"),
            "vip": pd.array(np.where(draw.random(n_rows) < 0.2, None, draw.random(n_rows) < 0.5), "boolean"),
            "scores": list(draw.random((n_rows, 3)).round(3)),
        },
        index=pd.Index([f"c{i}" for i in range(n_rows)], name="customer"),
    )
    frame["left"] = (frame["Age in years"].fillna(50) + 20 * (frame["city"] == "Ulm") > 60).astype("int64")
    return frame
