from kepsvgp.paper.costs import paper_hours
from kepsvgp.paper.request import plan_request


def test_hours_of_what_the_paper_did_not_time_are_unknown() -> None:
    assert paper_hours(plan_request(("table7",), dataset="digits").tasks) is None
    hours = paper_hours(plan_request(("table1",), dataset="cola").tasks)
    assert hours is not None
    assert hours > 0
