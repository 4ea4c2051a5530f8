import sys

import pytest

from benchmarks.traffic import DIM, RANK, Traffic, measure


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the bytes of sockets")
def test_traffic_is_two_directions_each_way_whatever_the_length() -> None:
    for measured in measure([64, 4096]):
        short, long = measured.bytes_sent
        # two directions of p × s for each head, forwards and backwards, in float32
        payload = 2 * 2 * DIM * RANK * 4
        assert payload <= short <= 1.1 * payload
        assert long == pytest.approx(short, abs=200)
        assert measured.difference <= 1e-9
        assert measured.passed


@pytest.mark.parametrize(
    ("bytes_sent", "difference", "passed"),
    [((100, 102), 1e-9, True), ((100, 200), 1e-9, False), ((100, 100), 1e-3, False)],
)
def test_growing_traffic_and_wrong_numbers_do_not_pass(bytes_sent, difference, passed) -> None:
    assert Traffic("", (1, 2), bytes_sent, (0, 0), difference).passed is passed
