"""The figure of the classes: how often each is answered, against how often it is right."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spear_hf.evaluation.batch_record import BatchRecord
from spear_hf.evaluation.plots.canvas import GREY, LAST, blank, need_steps, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_BARS = 40


def class_histogram(steps: Sequence[BatchRecord], names: Sequence[str] | None = None) -> "Figure":
    """Answers of the last method in each class, over those that are right: a collapse shows as few tall bars.

    More classes than `MOST_BARS` become one curve each, from the most to the least frequent.

    Args:
        names: of the classes, in index order.
    """
    need_steps(steps)
    answers: Counter[int] = sum((Counter(record.answers) for record in steps), Counter())
    labels: Counter[int] = sum((Counter(record.labels) for record in steps), Counter())
    classes = sorted(answers | labels)
    figure = blank(7.2, 3.2)
    axes = figure.subplots()
    if len(classes) > MOST_BARS:
        for counts, colour, name in ((labels, GREY, "labels"), (answers, LAST, "answers")):
            axes.step(range(len(classes)), sorted((counts[c] for c in classes), reverse=True), color=colour, label=name)
        axes.set_xlabel("classes, the most frequent first", fontsize=9)
    else:
        places = range(len(classes))
        axes.bar(places, [answers[c] for c in classes], 0.75, color=LAST, alpha=0.75, label="answers")
        axes.hlines(
            [labels[c] for c in classes], [p - 0.42 for p in places], [p + 0.42 for p in places], GREY, label="labels"
        )
        shown = [str(c) if names is None else names[c] for c in classes]
        axes.set_xticks(places, shown, rotation=0 if names is None else 40, ha="center" if names is None else "right")
    axes.set_ylabel("images", fontsize=9)
    axes.set_ylim(bottom=0)
    plain(axes)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure
