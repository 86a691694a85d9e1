"""How long a job does without an engine: as long as it gets further, or waits for nothing, and then so long."""

from __future__ import annotations

import pytest

from eps.cluster.docker.silence import EngineSilence, LaunchPatience


@pytest.fixture
def silence() -> EngineSilence:
    """Give a job that got further at second 5, with an engine that is silent since second 10."""
    silence = EngineSilence(60.0)
    silence.on_progress(3, 5.0)
    silence.on_silence(10.0)
    return silence


def test_a_job_that_stands_still_waits_so_long_from_the_first_silence_on(silence: EngineSilence) -> None:
    for second in (20.0, 40.0, 69.0):
        silence.on_silence(second)
        silence.on_progress(3, second)
        assert silence.silent_s(second) == second - 10.0 and not silence.is_too_long(second, waits=True)
    assert silence.is_too_long(70.0, waits=True)


def test_a_job_that_gets_further_without_it_is_not_ended(silence: EngineSilence) -> None:
    silence.on_progress(4, 65.0)
    assert not silence.is_too_long(124.0, waits=True) and silence.silent_s(124.0) == 114.0
    assert silence.is_too_long(125.0, waits=True)


def test_a_job_that_waits_for_no_container_is_not_ended(silence: EngineSilence) -> None:
    """As where its containers outlive the engine, and an iteration takes long."""
    assert not silence.is_too_long(1000.0, waits=False)


def test_an_answer_ends_the_silence(silence: EngineSilence) -> None:
    silence.on_answer(68.0)
    assert silence.silent_s(69.0) == 0.0 and not silence.is_too_long(1000.0, waits=True)
    silence.on_silence(1000.0)
    assert not silence.is_too_long(1059.0, waits=True) and silence.is_too_long(1060.0, waits=True)


def test_a_silence_begins_with_the_question_that_is_not_answered(silence: EngineSilence) -> None:
    """An engine that hangs is found to be silent when the question has been waited for; it may have answered others."""
    silence.on_answer(20.0)
    silence.on_silence(30.0)
    assert silence.silent_s(60.0) == 30.0 and silence.is_too_long(90.0, waits=True)
    silence.on_answer(100.0)
    silence.on_silence(95.0)
    assert silence.silent_s(125.0) == 25.0


def test_a_launch_that_alone_is_not_answered_is_given_up() -> None:
    launch = LaunchPatience(60.0)
    launch.on_failure(10.0, others_answered=True)
    assert not launch.is_over(69.0) and launch.is_over(70.0)
    launch.on_failure(30.0, others_answered=True)
    assert launch.is_over(70.0), "it was asked for before"


def test_a_launch_that_takes_as_long_as_it_may_is_tried_once() -> None:
    launch = LaunchPatience(300.0)
    launch.on_failure(0.0, others_answered=True)
    assert launch.is_over(300.0)


def test_a_launch_is_not_given_up_for_an_engine_that_is_away() -> None:
    """Whether it would do this nobody knows; not that it did others once, nor that it does them again."""
    launch = LaunchPatience(60.0)
    launch.on_failure(0.0, others_answered=True)
    launch.on_failure(1.0, others_answered=False)
    assert not launch.is_over(1000.0) and launch.tried_s(1000.0) == 0.0
    launch.on_failure(1000.0, others_answered=True)
    assert not launch.is_over(1059.0) and launch.is_over(1060.0)
