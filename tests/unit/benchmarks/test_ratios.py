"""The check of the benchmarks reports ratios that became worse, and ratios without a record."""

from ratios import Ratio, has_record, losses, medians, processor, record


def test_a_loss_of_over_15_percent_is_told(tmp_path):
    path = tmp_path / "ratios.json"
    record([Ratio("a", 0.40), Ratio("b", 1.0)], path)
    assert losses([Ratio("a", 0.459), Ratio("b", 1.1)], path) == []
    (line,) = losses([Ratio("a", 0.47), Ratio("b", 0.2)], path)
    assert line.startswith("a: 0.470, recorded 0.400: a loss of 17%")


def test_a_limit_holds_whatever_is_recorded(tmp_path):
    path = tmp_path / "ratios.json"
    record([Ratio("a", 0.40)], path)
    (line,) = losses([Ratio("a", 0.41, limit=0.35)], path)
    assert "at most 0.35" in line


def test_what_was_never_recorded_is_told(tmp_path):
    path = tmp_path / "ratios.json"
    record([Ratio("a", 1.0)], path)
    (line,) = losses([Ratio("new", 0.1)], path)
    assert line.startswith("new: ") and "no value is recorded" in line


def test_recording_keeps_the_others(tmp_path):
    path = tmp_path / "ratios.json"
    record([Ratio("a", 1.0), Ratio("b", 2.0)], path)
    record([Ratio("b", 1.5)], path)
    assert losses([Ratio("a", 1.0), Ratio("b", 1.5)], path) == []
    assert losses([Ratio("b", 1.8)], path) != []


def test_medians_in_the_order_of_the_first_run():
    runs = [
        [Ratio("b", 3.0, 9.0), Ratio("a", 1.0)],
        [Ratio("b", 1.0), Ratio("a", 5.0)],
        [Ratio("b", 2.0), Ratio("a", 2.0)],
    ]
    assert medians(runs) == [Ratio("b", 2.0, 9.0, least=1.0), Ratio("a", 2.0, least=1.0)]


def test_a_loss_counts_if_every_run_shows_it(tmp_path):
    """Slower code is slower in each run; other work on the machine is not."""
    path = tmp_path / "ratios.json"
    record([Ratio("a", 1.0)], path)
    assert losses(medians([Ratio("a", value)] for value in (1.3, 1.1, 1.4)), path) == []
    (line,) = losses(medians([Ratio("a", value)] for value in (1.3, 1.2, 1.4)), path)
    assert line.startswith("a: 1.200, recorded 1.000: a loss of 20%")
    (line,) = losses(medians([Ratio("a", value, 1.25)] for value in (1.3, 1.1, 1.4)), path)
    assert "it must be at most 1.25" in line


def test_each_kind_of_processor_has_its_own_record(tmp_path):
    path = tmp_path / "ratios.json"
    record([Ratio("a", 1.0)], path, "wide")
    record([Ratio("a", 2.0)], path, "narrow")
    assert losses([Ratio("a", 2.1)], path, "narrow") == []
    assert len(losses([Ratio("a", 2.1)], path, "wide")) == 1
    assert has_record(path, "wide") and not has_record(path, "other")


def test_without_a_record_of_the_processor_limits_hold(tmp_path):
    path = tmp_path / "ratios.json"
    record([Ratio("a", 1.0)], path, "wide")
    assert losses([Ratio("a", 9.0)], path, "narrow") == []
    (line,) = losses([Ratio("a", 9.0, limit=3.0)], path, "narrow")
    assert "at most 3.00" in line


def test_the_processor_is_named_by_its_widest_vectors_and_its_model(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("flags\t\t: fpu sse2 avx avx2 fma\n")
    assert processor(path).endswith(", avx2")
    path.write_text("vendor_id\t: Maker\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: M 7\nflags\t\t: avx avx2\n")
    assert processor(path).endswith(", avx2, Maker 25 1")
    path.write_text("flags\t\t: fpu avx2 avx512f avx\n")
    assert processor(path).endswith(", avx512f")
    assert processor(tmp_path / "none").endswith(", no vectors")
