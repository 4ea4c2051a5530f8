from kepsvgp.paper.costs import paper_hours
from kepsvgp.paper.request import Request


def test_hours_of_what_the_paper_did_not_time_are_unknown() -> None:
    assert paper_hours(Request(("table7",), dataset="digits").plan().tasks) is None
    hours = paper_hours(Request(("table1",), dataset="cola").plan().tasks)
    assert hours is not None
    assert hours > 0
