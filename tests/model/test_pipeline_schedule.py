"""The order of the work in a pipeline, and its bubbles."""

import pytest

from gshard_nmt.model.pipeline_schedule import Schedule


def table(schedule: Schedule) -> list[list[str]]:
    """Returns, for each iteration and stage, a microbatch and a visit such as "2b", or "-"."""
    rows = []
    for iteration in range(schedule.iterations):
        work = [schedule.work(iteration, stage) for stage in range(schedule.stages)]
        rows.append([f"{w.microbatch}{'abcd'[w.visit]}" if w.is_valid else "-" for w in work])
    return rows


def test_gpipe():
    assert table(Schedule(2, 3)) == [["0a", "-"], ["1a", "0a"], ["2a", "1a"], ["-", "2a"]]


def test_circular_in_the_order_of_lingvo():
    """A group of two microbatches makes both visits before the next group enters."""
    assert table(Schedule(2, 4, visits=2)) == [
        ["0a", "-"],
        ["1a", "0a"],
        ["0b", "1a"],
        ["1b", "0b"],
        ["2a", "1b"],
        ["3a", "2a"],
        ["2b", "3a"],
        ["3b", "2b"],
        ["-", "3b"],
    ]


@pytest.mark.parametrize(
    "schedule",
    [Schedule(2, 3), Schedule(4, 2), Schedule(4, 1, 3), Schedule(3, 7, 2), Schedule(1, 3, 4)],
    ids=str,
)
def test_each_microbatch_passes_the_stages_in_order_and_no_iteration_is_empty(schedule):
    for microbatch in range(schedule.microbatches):
        enters = schedule.enters(microbatch)
        steps = schedule.stages * schedule.visits
        for step in range(steps):
            work = schedule.work(enters + step, step % schedule.stages)
            assert (work.microbatch, work.visit) == (microbatch, step // schedule.stages)
            assert work.is_valid
        assert schedule.leaves(microbatch) == enters + steps
    valid = [[s != "-" for s in row] for row in table(schedule)]
    assert all(map(any, valid))
    work = schedule.microbatches * schedule.visits * schedule.stages
    assert sum(map(sum, valid)) == work


# The pipelines of GSPMD, with the ideal bubbles that follow from their schedules. The papers print 5.6,
# 14.8, 8.0 and 16.5 % (table 4), and 9.6, 29.9, 9.0, 10.4, 31.0 and 10.0 % (table 5), as shares of a
# whole step, which also has work outside of the pipeline.
@pytest.mark.parametrize(
    ("schedule", "iterations", "percent"),
    [
        (Schedule(2, 16), 17, 5.88),
        (Schedule(4, 16), 19, 15.79),
        (Schedule(4, 32), 35, 8.57),
        (Schedule(8, 32), 39, 17.95),
        (Schedule(8, 64), 71, 9.86),
        (Schedule(8, 16), 23, 30.43),
        (Schedule(8, 16, 4), 71, 9.86),
        (Schedule(16, 128), 143, 10.49),
        (Schedule(16, 32), 47, 31.91),
        (Schedule(16, 32, 4), 143, 10.49),
    ],
    ids=str,
)
def test_the_bubbles_of_the_papers_pipelines(schedule, iterations, percent):
    assert schedule.iterations == iterations
    busy = schedule.microbatches * schedule.visits / schedule.iterations
    assert round(100 * (1 - busy), 2) == percent
