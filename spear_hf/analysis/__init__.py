"""The paper's configuration analysis: how steering changes representations, and what each part of SPeaR contributes.

    measures    AMD, linear CKA and a linear probe: functions of tensors
    recording   the representation at each boundary of a SpearModel
    adapted     learn for a number of updates, then predict with the RSPs held; or online
    placement   AMD, CKA and probe for RSPs at the stem, stem+1, early, deep and all boundaries
    ablation    the hard gate on and off, streams without confident images, error against alpha
    grids       means over rows, as tables and figures

`examples/analyze.py` runs them. Probes and figures need the extra `analysis`.
"""

from spear_hf.analysis.ablation import (
    AlphaRow,
    GateRow,
    ScarcityRow,
    gate_ablation,
    mixing_errors,
    scarce_confidence,
    source_entropy,
    without_confident,
)
from spear_hf.analysis.adapted import (
    ImageSet,
    OnlineResult,
    Outputs,
    answer_online,
    learn,
    outputs_of,
    predict,
)
from spear_hf.analysis.measures import accuracy, amd, linear_cka, probe_accuracy
from spear_hf.analysis.placement import (
    Adapted,
    DriftRow,
    ProbeRow,
    adapted_representations,
    drift,
    placed,
    placements,
    separability,
    source_representations,
)
from spear_hf.analysis.recording import CLASSIFIER, Recording, find_classifier, pooled, recording

__all__ = [
    "CLASSIFIER",
    "Adapted",
    "AlphaRow",
    "DriftRow",
    "GateRow",
    "ImageSet",
    "OnlineResult",
    "Outputs",
    "ProbeRow",
    "Recording",
    "ScarcityRow",
    "accuracy",
    "adapted_representations",
    "amd",
    "answer_online",
    "drift",
    "find_classifier",
    "gate_ablation",
    "learn",
    "linear_cka",
    "mixing_errors",
    "outputs_of",
    "placed",
    "placements",
    "pooled",
    "predict",
    "probe_accuracy",
    "recording",
    "scarce_confidence",
    "separability",
    "source_entropy",
    "source_representations",
    "without_confident",
]
