"""Configurations judged by the source's answers to clean images."""

import math

import pytest
import torch
from torch import Tensor

from spear_hf import GuardPolicy
from spear_hf.evaluation.calibration.trial import Trial, guard_extremes

TRUTH = torch.tensor([0, 1, 2, 3])


def sure(*classes: int) -> Tensor:
    return 20 * torch.eye(4)[list(classes)]


def trial(fog: Tensor, snow: Tensor, clean: Tensor | None = None) -> Trial:
    return Trial("x", None, {"clean": sure(0, 1, 2, 3) if clean is None else clean, "fog": fog, "snow": snow}, TRUTH)


def test_disagreement_is_over_corrupted_images_alone() -> None:
    found = trial(sure(0, 1, 2, 0), sure(0, 0, 0, 0), clean=sure(0, 1, 2, 2))
    assert (found.disagreement, found.clean_disagreement) == (50.0, 25.0)


def test_the_error_of_a_gain_is_between_images() -> None:
    worse, better = trial(sure(0, 0, 0, 0), sure(0, 0, 0, 0)), trial(sure(0, 1, 0, 0), sure(0, 1, 2, 0))
    gain, error = better.gain_over(worse)  # image by image 0, 100, 50 and 0 points
    assert gain == pytest.approx(37.5)
    assert error == pytest.approx(math.sqrt((37.5**2 * 2 + 62.5**2 + 12.5**2) / 3) / 2)


def test_a_guard_would_see_the_entropy_rise() -> None:
    source, adapted = trial(sure(0, 1, 2, 3), sure(0, 0, 0, 0)), trial(sure(0, 1, 2, 3), torch.zeros(4, 4))
    rise, _ = guard_extremes(source, adapted, 2, GuardPolicy(memory=4))
    assert rise == pytest.approx(1.0, abs=1e-4)


def test_a_stream_on_which_adapting_is_worse_does_not_count() -> None:
    source, adapted = trial(sure(0, 1, 2, 3), sure(0, 1, 2, 3)), trial(sure(0, 1, 2, 3), torch.zeros(4, 4))
    assert guard_extremes(source, adapted, 2, GuardPolicy(memory=4)) == (0.0, 0.0)


def test_a_guard_would_see_the_collapse() -> None:
    source, adapted = trial(sure(3, 2, 1, 1), sure(0, 1, 2, 3)), trial(sure(0, 0, 0, 0), sure(0, 1, 2, 3))
    _, collapse = guard_extremes(source, adapted, 4, GuardPolicy(memory=4))
    assert collapse == pytest.approx(1.5 * math.log(2) / math.log(4))
