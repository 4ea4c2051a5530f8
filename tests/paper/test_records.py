from kepsvgp.paper.plan import Study, tasks_of
from kepsvgp.paper.records import paper_hours
from kepsvgp.paper.tables import find


def test_hours_of_what_the_paper_did_not_time_are_unknown() -> None:
    assert paper_hours(tasks_of(find("table7"), Study(dataset="digits"))) is None
    hours = paper_hours(tasks_of(find("table1"), Study(dataset="cola")))
    assert hours is not None
    assert hours > 0
